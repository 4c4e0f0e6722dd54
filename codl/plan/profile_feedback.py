"""Profiled times of a plan: milliseconds of nets, steps and stages of an executable that ran."""

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

#: The parts of data sharing that a profile tells. What a wait would have taken if the data had been
#: there, it does not.
SEEN: tuple[SpanKind, ...] = ("transform", "copy", "unmap")
#: Milliseconds by a number.
ByNumber: TypeAlias = dict[int, float]
#: Milliseconds in a profile by kind and label: of a net, or of all kernels of an op.
Totals: TypeAlias = Mapping[tuple[str, str], float]


@dataclass(frozen=True)
class ProfiledTimes:
    """Milliseconds of nets and kernels as `StageTimes` has them, and of stages, one after another.

    A transfer has all parts of `SEEN`; those without a command took no time.
    """

    nets_ms: ByNumber = field(default_factory=dict)
    kernels_ms: ByNumber = field(default_factory=dict)
    transfers_ms: dict[int, dict[str, float]] = field(default_factory=dict)
    stages_ms: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, executable: Executable, spans: Iterable[TimeSpan]) -> ProfiledTimes:
        """Each command with its span: those of one name come in the order of the commands.

        Raises `DeviceError` where a command has none.
        """
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
        """Of totals by kind and label, without stages; commands of one name share alike.

        What the totals do not have is left out.
        """
        names = [span_of(executable, command) for command in executable.commands]
        times, counts = cls(), Counter(names)
        for command, name in zip(executable.commands, names, strict=True):
            if name is not None and name in totals:
                times._add(executable, command, name.kind, totals[name] / counts[name])
        return times

    @classmethod
    def typical(cls, profiles: Sequence[ProfiledTimes]) -> ProfiledTimes:
        """The mean of some runs of one executable: those nearest in length to the statistic's.

        Parts of the same runs add up to what these took; percentiles of parts would not, where
        other programs disturb each run in another part.
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

    # Predicted times with some of these instead; what was not measured stays as predicted.

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
        """What a profile does not tell of transfers stays as predicted."""
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
    """Times on a machine whose processors are slower at nets and kernels by these factors."""
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
    """Of each stage the commands that a profile shows, with their spans.

    Those of one name come in the order of the commands. Raises `DeviceError` where one has none.
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


#: What computes on either processor, as profiles call it.
KINDS: Mapping[str, Processor] = {"net": "cpu", "kernel": "gpu"}
