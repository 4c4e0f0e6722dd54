"""Profiled times of an executable: milliseconds of its nets, steps and stages."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from statistics import fmean
from typing import TypeAlias

from codl.errors import DeviceError
from codl.ir.executable import (
    Command,
    Copy,
    Executable,
    Launch,
    RunNet,
    Transfer,
    Unmap,
)
from codl.ir.types import PROCESSORS, Processor
from codl.plan.price import StageTimes
from codl.records.results import SpanKind, TimeSpan
from codl.records.span_names import SpanName, span_of
from codl.records.statistic import nearest

#: The parts of data sharing that a profile shows. It does not show the duration of a wait without
#: the time until the data was ready.
SEEN: tuple[SpanKind, ...] = ("transform", "copy", "unmap")
#: Milliseconds by a number.
ByNumber: TypeAlias = dict[int, float]
#: Milliseconds in a profile by (kind, label), of a net or of all kernels of an op.
Totals: TypeAlias = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class ProfiledTimes:
    """Measured milliseconds by number, as in `StageTimes`, and of each stage.

    A transfer has all parts of `SEEN`; parts without a command took 0.
    """

    nets_ms: ByNumber = field(default_factory=dict)
    kernels_ms: ByNumber = field(default_factory=dict)
    transfers_ms: dict[int, dict[str, float]] = field(default_factory=dict)
    stages_ms: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, executable: Executable, spans: Iterable[TimeSpan]) -> ProfiledTimes:
        """From the spans of one profiled inference; raises `DeviceError` if a span is missing."""
        times, done_ms = cls(), 0.0
        for stage in spans_by_command(executable, spans):
            end_ms = done_ms
            for command, span in stage:
                times._add(executable, command, span.kind, span.ms)
                end_ms = max(end_ms, span.end_ms)
            times.stages_ms.append(end_ms - done_ms)
            done_ms = end_ms
        return times

    @classmethod
    def of_totals(cls, executable: Executable, totals: Totals) -> ProfiledTimes:
        """From totals by (kind, label), without stages; commands of one name share equally.

        Commands without a total are left out.
        """
        names = [span_of(executable, command) for command in executable.commands]
        times, counts = cls(), Counter(names)
        for command, name in zip(executable.commands, names, strict=True):
            if name is not None and name in totals:
                times._add(executable, command, name.kind, totals[name] / counts[name])
        return times

    @classmethod
    def typical(cls, profiles: Sequence[ProfiledTimes]) -> ProfiledTimes:
        """The mean of the runs whose length is nearest to the statistic of all runs.

        Parts of the same runs add up to those runs' lengths; percentiles of each part would not.
        """
        near = nearest(profiles, lambda run: fsum(run.stages_ms))
        first = near[0]
        return cls(
            {n: fmean(run.nets_ms[n] for run in near) for n in first.nets_ms},
            {n: fmean(run.kernels_ms[n] for run in near) for n in first.kernels_ms},
            {
                n: {part: fmean(run.transfers_ms[n][part] for run in near) for part in parts}
                for n, parts in first.transfers_ms.items()
            },
            [fmean(stage_ms) for stage_ms in zip(*(run.stages_ms for run in near), strict=True)],
        )

    def _add(self, executable: Executable, command: Command, kind: SpanKind, ms: float) -> None:
        if isinstance(command, RunNet):
            self.nets_ms[command.net] = self.nets_ms.get(command.net, 0.0) + ms
        elif isinstance(command, Launch | Copy | Unmap):
            number = command.step
            if isinstance(executable.steps[number], Transfer):
                parts = self.transfers_ms.setdefault(number, dict.fromkeys(SEEN, 0.0))
                parts[kind] += ms
            else:
                self.kernels_ms[number] = self.kernels_ms.get(number, 0.0) + ms

    # Predicted times with measured ones in their place; unmeasured times stay as predicted.

    def with_all(self, times: Sequence[StageTimes]) -> list[StageTimes]:
        return self.with_transfers(self.with_kernels(self.with_nets(times)))

    def with_nets(self, times: Sequence[StageTimes]) -> list[StageTimes]:
        def measured(predicted: Mapping[int, float]) -> ByNumber:
            return {n: self.nets_ms.get(n, ms) for n, ms in predicted.items()}

        return [replace(stage, nets_ms=measured(stage.nets_ms)) for stage in times]

    def with_kernels(self, times: Sequence[StageTimes]) -> list[StageTimes]:
        def measured(predicted: Mapping[int, float]) -> ByNumber:
            return {n: self.kernels_ms.get(n, ms) for n, ms in predicted.items()}

        return [replace(stage, kernels_ms=measured(stage.kernels_ms)) for stage in times]

    def with_transfers(self, times: Sequence[StageTimes]) -> list[StageTimes]:
        """Parts of transfers outside `SEEN` stay as predicted."""
        return [
            replace(
                stage,
                transfers_ms={
                    n: {**parts, **self.transfers_ms.get(n, {})}
                    for n, parts in stage.transfers_ms.items()
                },
            )
            for stage in times
        ]


def paced(times: Sequence[StageTimes], slowdown: Mapping[str, float]) -> list[StageTimes]:
    """Times on a machine whose processors compute nets and kernels slower by these factors."""
    cpu, gpu = (slowdown.get(side, 1.0) for side in PROCESSORS)
    return [
        replace(
            stage,
            nets_ms={n: cpu * ms for n, ms in stage.nets_ms.items()},
            kernels_ms={n: gpu * ms for n, ms in stage.kernels_ms.items()},
        )
        for stage in times
    ]


def spans_by_command(
    executable: Executable, spans: Iterable[TimeSpan]
) -> Iterator[list[tuple[Command, TimeSpan]]]:
    """For each stage, its profiled commands with their spans.

    Spans of one name are in the order of the commands. Raises `DeviceError` if a span is missing.
    """
    by_name: dict[SpanName, deque[TimeSpan]] = {}
    for span in sorted(spans, key=lambda span: span.start_ms):
        by_name.setdefault(SpanName(span.kind, span.label), deque()).append(span)
    for stage in executable.stages:
        named = [(command, span_of(executable, command)) for command in stage.commands]
        pairs = []
        for command, name in named:
            if name is None:
                continue
            if not by_name.get(name):
                raise DeviceError(
                    f"The profile of {executable.model!r} has no span for a command of the stage "
                    f"{stage.label!r}: {name.kind} {name.label!r}. The device's agent may be of "
                    "another version: `codl agent install` brings this one."
                )
            pairs.append((command, by_name[name].popleft()))
        yield pairs


#: The processor of each kind of computing span.
KINDS: Mapping[str, Processor] = {"net": "cpu", "kernel": "gpu"}
