"""Times of an executable's stages: predicted, measured, and added up to a latency.

`stage_times` predicts the commands of an executable in any kernel variants, for prices, timelines
and corrections: launches, transfers, copies between storages, calls of nets, tensors that nets pack
and unpack, and residual adds inside convolutions. `ProfiledTimes` has the same times from profiled
runs. The price of an executable is the end of its timeline. The search has the same order of events
(`codl.plan.beam_search.after_stage`), with times from its tables.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from codl.errors import DeviceError
from codl.ir import Op, Shape, parse
from codl.ir.executable import (
    Access,
    Command,
    Copy,
    Executable,
    GpuOp,
    Launch,
    Relayout,
    RunNet,
    Stage,
    Step,
    Transfer,
    Unmap,
    Wait,
)
from codl.ir.records.profile import SpanName, span_of, transform_label
from codl.ir.records.results import SpanKind, TimeSpan
from codl.ir.records.statistic import nearest
from codl.ir.types import PROCESSORS, Direction, Processor, Storage
from codl.lower.nets import library_of, packed

if TYPE_CHECKING:  # measured times need no predictions
    from codl.plan.cost_model import CostModel, Milliseconds, Pair


@dataclass(frozen=True)
class StageTimes:
    """Milliseconds of the commands of a stage, without any waiting.

    `nets_ms` is by net number, and `kernels_ms` by the number of a step that the GPU computes or
    copies; both include the slowdown by the other processor. `transfers_ms` has the parts of each
    transfer by its step number. `launches_ms` is the CPU's time to enqueue them.
    """

    label: str
    nets_ms: Mapping[int, float]
    kernels_ms: Mapping[int, float]
    transfers_ms: Mapping[int, Mapping[str, float]]
    launches_ms: float

    @property
    def works_ms(self) -> Pair:
        return sum(self.nets_ms.values()), sum(self.kernels_ms.values())


@dataclass(frozen=True)
class Price:
    """Milliseconds from the start of an inference to the end of each stage, by processor."""

    ends_ms: tuple[Pair, ...]

    @property
    def latency_ms(self) -> float:
        return max(self.ends_ms[-1]) if self.ends_ms else 0.0


def price(executable: Executable, cost: CostModel) -> Price:
    return walk(executable, stage_times(executable, cost))


def walk(executable: Executable, times: Sequence[StageTimes]) -> Price:
    """The end of each stage of an inference whose stages take these times."""
    timeline = _Timeline(executable)
    return Price(tuple(timeline.add(number, stage) for number, stage in enumerate(times)))


def stage_times(executable: Executable, cost: CostModel) -> tuple[StageTimes, ...]:
    """The predicted times of each stage; all ops are predicted in one batch."""
    steps = (step for step in executable.steps if isinstance(step, GpuOp))
    cost.prefetch([parse(layer.op) for net in executable.nets for layer in net.layers], "cpu")
    cost.prefetch([parse(text) for step in steps for text in step.ops], "gpu")
    return tuple(_times_of(executable, stage, cost) for stage in executable.stages)


def _times_of(executable: Executable, stage: Stage, cost: CostModel) -> StageTimes:
    """The predicted times of the commands of one stage."""
    tensors = executable.tensors

    def shape_of(access: Access) -> Shape:
        return access.region.shape(tensors[access.tensor].shape)

    steps = _steps_of(executable, stage)
    writes = (step.writes for step in steps.values() if isinstance(step, GpuOp))
    made = {tensors[access.tensor].name for access in writes}
    launches = 0
    transfers_ms: dict[int, Mapping[str, float]] = {}
    kernels_ms: dict[int, float] = {}
    loads = np.zeros((2, 2))  # bytes and milliseconds of each processor
    inner = []  # the steps that the other processor's work slows down
    for number, step in steps.items():
        if isinstance(step, Transfer):
            transfers_ms[number] = cost.transfer_parts(step.direction, shape_of(step.target))
            launches += 1
        elif isinstance(step, Relayout):
            source, target = (tensors[access.tensor] for access in (step.source, step.target))
            kernels_ms[number] = 0.0
            # Whether a part has to be copied is known only once the whole plan is lowered.
            if source.storage != target.storage:
                if {source.storage, target.storage} <= {*cost.storages}:
                    kernels_ms[number] = cost.sharing_ms("relayout", shape_of(step.target))
                launches += 1
                if source.name in made:
                    loads[1, 1] += kernels_ms[number]
                    inner.append(number)
        else:
            ops = [parse(text) for text in step.ops]
            launches += len(ops) * (ops[0].images if cost.soc.gpu.is_cpu else 1)
            storage = tensors[step.writes.tensor].storage
            kernels_ms[number] = _kernel_ms(ops, step.variant, storage, cost)
            loads[1] += [sum(op.bytes for op in ops), kernels_ms[number]]
            inner.append(number)
    nets_ms = _nets_ms(executable, stage, cost, loads[0])
    moved, alone = loads.T
    ends = cost.together_ms(moved[None], alone[None])[0]
    cpu, gpu = np.divide(ends, alone, out=np.ones(2), where=alone > 0).tolist()
    return StageTimes(
        label=stage.label,
        nets_ms={number: ms * cpu for number, ms in nets_ms.items()},
        kernels_ms=kernels_ms | {number: kernels_ms[number] * gpu for number in inner},
        transfers_ms=transfers_ms,
        launches_ms=cost.launches_ms(launches),
    )


def _steps_of(executable: Executable, stage: Stage) -> dict[int, Step]:
    """The GPU's steps whose times count in a stage, by number.

    A transfer to the CPU is enqueued a stage earlier, and counts where the CPU waits for it.
    """

    def is_to_cpu(number: int) -> bool:
        step = executable.steps[number]
        return isinstance(step, Transfer) and step.direction == "to_cpu"

    waits = (command.step for command in stage.commands if isinstance(command, Wait))
    arriving = (number for number in waits if number is not None and is_to_cpu(number))
    launched = (command.step for command in stage.commands if isinstance(command, Launch))
    numbers = [*arriving, *(number for number in launched if not is_to_cpu(number))]
    return {number: executable.steps[number] for number in numbers}


def _kernel_ms(ops: Sequence[Op], variant: str, storage: Storage, cost: CostModel) -> float:
    """Milliseconds of a kernel; a residual add inside it counts as a kernel of its own."""
    kernel_ms = cost.variant_ms(ops[0], "gpu", variant)
    for add in ops[1:]:
        by_storage = cost.fastest_by_storage(add, "gpu")
        # An op that runs in its planar fallback counts like its fastest variant.
        added = by_storage.get(storage) or next(iter(by_storage.values()))
        kernel_ms += added.latency_ms
    return kernel_ms


def _nets_ms(
    executable: Executable, stage: Stage, cost: CostModel, load: Milliseconds
) -> dict[int, float]:
    """Milliseconds of a stage's nets by number: their ops, less shared calls, and packing.

    `load` gets the bytes and milliseconds of the nets.
    """
    numbers = [command.net for command in stage.commands if isinstance(command, RunNet)]
    ops = [[parse(layer.op) for layer in executable.nets[number].layers] for number in numbers]
    every = [op for net_ops in ops for op in net_ops]
    turns = float(cost.turns(np.array(sum(op.images for op in every) / max(len(every), 1))))
    nets_ms: dict[int, float] = {}
    for number, net_ops in zip(numbers, ops, strict=True):
        net = executable.nets[number]
        named = zip(net_ops, net.layers, strict=True)
        ops_ms = sum(cost.variant_ms(op, "cpu", layer.variant) for op, layer in named)
        moves = packed(executable, net)
        packing_ms = sum(map(cost.packing_ms, moves))
        # The prediction of each op includes one call.
        call_ms = turns * cost.inside("cpu", library_of(net)).call_ms
        nets_ms[number] = ops_ms - (len(net_ops) - 1) * call_ms + packing_ms
        load += [sum(2 * shape.bytes for _, shape in moves), nets_ms[number]]
    load[0] += sum(op.bytes for op in every)
    return nets_ms


# Timeline.


#: The parts of a transfer that each processor does, in order.
OF_GPU: tuple[SpanKind, ...] = ("transform", "map")
OF_CPU: tuple[SpanKind, ...] = ("copy", "unmap")


@dataclass(frozen=True)
class PlacedSpan:
    """A time span with the number of its stage, and of its net or step in the executable.

    The span of a layer has the number of its net, and no step.
    """

    span: TimeSpan
    stage: int
    net: int | None = None
    step: int | None = None


def predicted_timeline(
    executable: Executable, times: Sequence[StageTimes]
) -> tuple[PlacedSpan, ...]:
    """The predicted spans of both processors, in milliseconds since the start of the inference."""
    timeline = _Timeline(executable)
    for number, stage in enumerate(times):
        timeline.add(number, stage)
    return tuple(placed for placed in timeline.spans if placed.span.end_ms > placed.span.start_ms)


class _Timeline:
    """The spans so far, and the clock of each processor; the order is that of the search."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self.spans: list[PlacedSpan] = []
        self._stage = 0
        self._clocks: dict[Processor, float] = {"cpu": 0.0, "gpu": 0.0}

    def add(self, number: int, stage: StageTimes) -> Pair:
        """Add the spans of the next stage; returns the clocks at its end."""
        self._stage, clocks = number, self._clocks
        arrivals = []
        for step, parts in self._transfers(stage, "to_cpu"):
            self._steps("gpu", OF_GPU[:1], step, parts)
            arrival = clocks["gpu"] + parts.get("sync", 0.0) + parts.get("map", 0.0)
            arrivals.append((step, parts, arrival))
        for step, parts in self._transfers(stage, "to_gpu"):
            self._steps("cpu", OF_CPU, step, parts)
            clocks["gpu"] = max(clocks.values())
            self._steps("gpu", OF_GPU, step, parts)
        if any(stage.kernels_ms.values()):
            clocks["gpu"] = max(clocks.values())
        for step, ms in stage.kernels_ms.items():
            self._steps("gpu", ("kernel",), step, {"kernel": ms})
        clocks["cpu"] += stage.launches_ms
        for step, parts, arrival in arrivals:
            self._steps("cpu", ("sync",), step, {"sync": arrival - clocks["cpu"]})
            self._steps("cpu", OF_CPU, step, parts)
        for net, ms in stage.nets_ms.items():
            span = self._span("cpu", "net", self._executable.nets[net].label, ms)
            self.spans.append(PlacedSpan(span, number, net=net))
        return clocks["cpu"], clocks["gpu"]

    def _transfers(
        self, stage: StageTimes, way: Direction
    ) -> list[tuple[int, Mapping[str, float]]]:
        steps = self._executable.steps
        return [each for each in stage.transfers_ms.items() if steps[each[0]].direction == way]  # type: ignore[union-attr]

    def _steps(
        self, side: Processor, kinds: Sequence[SpanKind], number: int, parts: Mapping[str, float]
    ) -> None:
        step = self._executable.steps[number]
        for kind in kinds:
            label = step.label
            if isinstance(step, Relayout) or (isinstance(step, Transfer) and kind == "transform"):
                label = transform_label(self._executable, step)
            span = self._span(side, kind, label, parts.get(kind, 0.0))
            self.spans.append(PlacedSpan(span, self._stage, step=number))

    def _span(self, side: Processor, kind: SpanKind, label: str, ms: float) -> TimeSpan:
        """A span from a processor's clock on; the clock moves to its end."""
        start = self._clocks[side]
        self._clocks[side] = start + max(ms, 0.0)
        return TimeSpan(side, kind, label, start, self._clocks[side])


# Measured times.


#: The parts of data sharing that a profile shows. It does not show the duration of a wait without
#: the time until the data was ready.
SEEN: tuple[SpanKind, ...] = ("transform", "copy", "unmap")
#: The fields of `StageTimes` that a profile replaces.
MEASURED = ("nets_ms", "kernels_ms", "transfers_ms")
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

    def put_in(self, times: Sequence[StageTimes], *names: str) -> list[StageTimes]:
        """Predicted times with measured ones in the fields of these names, by default in all.

        Unmeasured times stay as predicted, and so do parts of transfers outside `SEEN`.
        """
        return [
            replace(stage, **{name: self._measured(stage, name) for name in names or MEASURED})
            for stage in times
        ]

    def _measured(self, stage: StageTimes, name: str) -> Any:
        predicted, measured = getattr(stage, name), getattr(self, name)
        if name == "transfers_ms":
            return {n: {**parts, **measured.get(n, {})} for n, parts in predicted.items()}
        return {n: measured.get(n, ms) for n, ms in predicted.items()}


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
