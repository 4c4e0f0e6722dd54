"""Predicted latency of an executable: its price, stage by stage, and its timeline.

All commands of the executable count: launches, transfers, copies between storages, calls of nets,
tensors that nets pack and unpack, and residual adds inside convolutions. `after_stage` is the one
rule for the order of events; the search uses it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir import Shape, parse
from codl.ir.executable import (
    Access,
    Executable,
    GpuOp,
    Launch,
    Relayout,
    RunNet,
    Stage,
    Transfer,
    Wait,
)
from codl.ir.types import Direction, Processor
from codl.lower.nets import library_of, packed
from codl.plan.cost_model import FUSED_ADD_FRACTION, CostModel, Pair
from codl.records.results import SpanKind, TimeSpan
from codl.records.span_names import transform_label

START: Pair = (0.0, 0.0)


class TransferCost(NamedTuple):
    """Milliseconds of a transfer: the GPU's work, the delay until the CPU's work, that work."""

    way: Direction
    gpu_ms: float
    wait_ms: float
    cpu_ms: float

    @classmethod
    def of(cls, way: Direction, parts: Mapping[str, float]) -> TransferCost:
        """From the parts of data sharing by name; the GPU maps the memory that it reads."""
        kernel, mapped = parts.get("transform", 0.0), parts.get("map", 0.0)
        copied = parts.get("copy", 0.0) + parts.get("unmap", 0.0)
        if way == "to_cpu":
            return cls(way, kernel, parts.get("sync", 0.0) + mapped, copied)
        return cls(way, kernel + mapped, 0.0, copied)


def after_stage(
    clocks: Pair,
    transfers: Sequence[TransferCost],
    launches_ms: float = 0.0,
    works: Pair = START,
    copies_ms: float = 0.0,
) -> Pair:
    """The clocks of both processors after a stage: an exchange and the shards of a chain.

    The order of events is that of `codl.lower.lowering`. The GPU's transfers to the CPU run right
    after its previous shard. The CPU sends its transfers to the GPU, enqueues the GPU's kernels,
    waits for the GPU's transfers, and computes. A chain waits only for the data that it needs.

    `clocks` are milliseconds since the start of the inference. Enqueueing takes the CPU
    `launches_ms`; the shards take `works`, and copies between storages take the GPU `copies_ms`.
    """
    cpu, gpu = clocks
    arrivals = []
    for way, gpu_ms, wait_ms, cpu_ms in transfers:
        if way == "to_cpu":
            gpu += gpu_ms
            arrivals.append((gpu + wait_ms, cpu_ms))
    for way, gpu_ms, _, cpu_ms in transfers:
        if way == "to_gpu":
            cpu += cpu_ms
            gpu = max(gpu, cpu) + gpu_ms
    if works[1] or copies_ms:
        gpu = max(gpu, cpu) + copies_ms + works[1]
    cpu += launches_ms
    for arrival, cpu_ms in arrivals:
        cpu = max(cpu, arrival) + cpu_ms
    return cpu + works[0], gpu


@dataclass(frozen=True)
class StageTimes:
    """Milliseconds of the commands of a stage, without any waiting.

    `nets_ms` is by net number, and `kernels_ms` by the number of a step that the GPU computes or
    copies; both include the slowdown by the other processor. `transfers_ms` has the parts of each
    transfer by its step number. `launches_ms` is that of `after_stage`.
    """

    label: str
    nets_ms: Mapping[int, float]
    kernels_ms: Mapping[int, float]
    transfers_ms: Mapping[int, Mapping[str, float]]
    launches_ms: float

    @property
    def works_ms(self) -> Pair:
        """The sum over nets, and the sum over kernels."""
        return sum(self.nets_ms.values()), sum(self.kernels_ms.values())


@dataclass(frozen=True)
class Price:
    """Milliseconds from the start of an inference to the end of each stage, by processor."""

    ends_ms: tuple[Pair, ...]

    @property
    def latency_ms(self) -> float:
        return max(self.ends_ms[-1]) if self.ends_ms else 0.0


def price(executable: Executable, cost: CostModel) -> Price:
    """The predicted end of each stage of an inference."""
    return walk(executable, stage_times(executable, cost))


def walk(executable: Executable, times: Sequence[StageTimes]) -> Price:
    """The end of each stage of an inference whose stages take these times."""
    clocks, ends = START, []
    for stage in times:
        transfers = []
        for number, parts in stage.transfers_ms.items():
            step = executable.steps[number]
            assert isinstance(step, Transfer)
            transfers.append(TransferCost.of(step.direction, parts))
        clocks = after_stage(clocks, transfers, stage.launches_ms, stage.works_ms)
        ends.append(clocks)
    return Price(tuple(ends))


def stage_times(executable: Executable, cost: CostModel) -> tuple[StageTimes, ...]:
    """The predicted times of each stage; all ops are predicted in one batch."""
    steps = (step for step in executable.steps if isinstance(step, GpuOp))
    cost.prefetch([parse(layer.op) for net in executable.nets for layer in net.layers], "cpu")
    cost.prefetch([parse(text) for step in steps for text in step.ops], "gpu")
    return tuple(_StageWork(executable, stage, cost).times() for stage in executable.stages)


class _StageWork:
    """Collects the predicted times of the commands of one stage."""

    def __init__(self, executable: Executable, stage: Stage, cost: CostModel) -> None:
        self._executable, self._stage, self._cost = executable, stage, cost
        #: The number of enqueued kernels, or small groups of kernels, by step.
        self._launches: dict[int, int] = {}
        self._kernels_ms: dict[int, float] = {}
        self._transfers_ms: dict[int, Mapping[str, float]] = {}
        self._nets_ms: dict[int, float] = {}
        # A transfer to the CPU is enqueued a stage earlier, and counts where the CPU waits for it.
        arriving = [
            command.step
            for command in stage.commands
            if isinstance(command, Wait) and self._is_to_cpu(command.step)
        ]
        launched = (command.step for command in stage.commands if isinstance(command, Launch))
        sent = (step for step in launched if not self._is_to_cpu(step))
        numbers = tuple(dict.fromkeys([*arriving, *sent]))
        self._raised = (cost.signals.launches - 1) * len(arriving)
        self._made = {
            executable.tensors[step.writes.tensor].name
            for step in (executable.steps[number] for number in numbers)
            if isinstance(step, GpuOp)
        }
        loads = np.zeros((2, 2))  # bytes and milliseconds of each processor
        inner = [number for number in numbers if self._step(number, loads[1])]
        nets = [command.net for command in stage.commands if isinstance(command, RunNet)]
        self._nets(nets, loads[0])
        moved, alone = loads.T
        ends = cost.together_ms(moved[None], alone[None])[0]
        stretch = np.divide(ends, alone, out=np.ones(2), where=alone > 0)
        for number in inner:
            self._kernels_ms[number] *= float(stretch[1])
        for number in nets:
            self._nets_ms[number] *= float(stretch[0])

    def times(self) -> StageTimes:
        # Raised flags are launches too; their time on the GPU is part of the wait.
        launches = self._raised + sum(self._launches.values())
        return StageTimes(
            label=self._stage.label,
            nets_ms=self._nets_ms,
            kernels_ms=self._kernels_ms,
            transfers_ms=self._transfers_ms,
            launches_ms=self._cost.launches_ms(launches),
        )

    def _is_to_cpu(self, number: int | None) -> bool:
        step = None if number is None else self._executable.steps[number]
        return isinstance(step, Transfer) and step.direction == "to_cpu"

    def _step(self, number: int, load: NDArray[np.float64]) -> bool:
        """Note the times of a step; True where the other processor's work slows it down."""
        step, cost = self._executable.steps[number], self._cost
        self._launches[number] = 1
        if isinstance(step, Transfer):
            shape = self._shape(step.target)
            self._transfers_ms[number] = cost.transfer_parts(step.direction, shape)
            return False
        if isinstance(step, Relayout):
            source, target = (
                self._executable.tensors[x.tensor] for x in (step.source, step.target)
            )
            if source.storage == target.storage:
                # Whether a part has to be copied is known only once the whole plan is lowered.
                self._launches[number], self._kernels_ms[number] = 0, 0.0
                return False
            shape = self._shape(step.target)
            own_ms = cost.relayout_ms(source.storage, target.storage, shape)
            self._kernels_ms[number] = own_ms
            is_inner = source.name in self._made
            load[1] += own_ms if is_inner else 0.0
            return is_inner
        ops = [parse(text) for text in step.ops]
        if cost.soc.gpu.is_cpu:
            self._launches[number] = ops[0].images
        own_ms = cost.variant_ms(ops[0], "gpu", step.variant)
        for add in ops[1:]:
            by_storage = cost.fastest_by_storage(add, "gpu")
            storage = self._executable.tensors[step.writes.tensor].storage
            # An op that runs in its planar fallback counts like its fastest variant.
            added = by_storage.get(storage) or next(iter(by_storage.values()))
            own_ms += FUSED_ADD_FRACTION * added.latency_ms
        self._kernels_ms[number] = own_ms
        load += [sum(op.bytes for op in ops), own_ms]
        return True

    def _nets(self, numbers: Sequence[int], load: NDArray[np.float64]) -> None:
        """Note the nets' times: their ops, less the calls that ops of a net share, and packing."""
        cost = self._cost
        nets = [self._executable.nets[number] for number in numbers]
        ops = [[parse(layer.op) for layer in net.layers] for net in nets]
        every = [op for net_ops in ops for op in net_ops]
        images = np.array(sum(op.images for op in every) / max(len(every), 1))
        turns = float(cost.turns(images))
        for number, net, net_ops in zip(numbers, nets, ops, strict=True):
            named = zip(net_ops, net.layers, strict=True)
            ops_ms = sum(cost.variant_ms(op, "cpu", layer.variant) for op, layer in named)
            moves = packed(self._executable, net)
            packing_ms = sum(map(cost.packing_ms, moves))
            # The prediction of each op includes one call.
            call_ms = turns * cost.inside("cpu", library_of(net)).call_ms
            self._nets_ms[number] = ops_ms - (len(net_ops) - 1) * call_ms + packing_ms
            load += [sum(2 * shape.bytes for _, shape in moves), self._nets_ms[number]]
        load[0] += sum(op.bytes for op in every)

    def _shape(self, access: Access) -> Shape:
        return access.region.shape(self._executable.tensors[access.tensor].shape)


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


def predicted_spans(executable: Executable, times: Sequence[StageTimes]) -> tuple[TimeSpan, ...]:
    """The predicted spans of both processors, in milliseconds since the start of the inference.

    The order of events is that of `after_stage`; each stage ends where `walk` ends it.
    """
    return tuple(placed.span for placed in predicted_timeline(executable, times))


def predicted_timeline(
    executable: Executable, times: Sequence[StageTimes]
) -> tuple[PlacedSpan, ...]:
    """The predicted spans with the numbers of their stages, nets and steps."""
    timeline = _Timeline(executable)
    for number, stage in enumerate(times):
        timeline.add(number, stage)
    return tuple(placed for placed in timeline.spans if placed.span.end_ms > placed.span.start_ms)


class _Timeline:
    """The spans so far, and the clock of each processor."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self.spans: list[PlacedSpan] = []
        self._stage = 0
        self._clocks: dict[Processor, float] = {"cpu": 0.0, "gpu": 0.0}

    def add(self, number: int, stage: StageTimes) -> None:
        self._stage = number
        transfers = stage.transfers_ms.items()
        arrivals = [self._sent(*each) for each in transfers if self._way(each[0]) == "to_cpu"]
        for step, parts in transfers:
            if self._way(step) == "to_gpu":
                self._share("cpu", step, parts, OF_CPU)
                self._enqueue()
                self._share("gpu", step, parts, OF_GPU)
        if any(stage.kernels_ms.values()):
            self._enqueue()
        for step, ms in stage.kernels_ms.items():
            self._step("gpu", "kernel", step, ms)
        self._clocks["cpu"] += stage.launches_ms
        for step, parts, arrival in arrivals:
            self._step("cpu", "sync", step, arrival - self._clocks["cpu"])
            self._share("cpu", step, parts, OF_CPU)
        for net, ms in stage.nets_ms.items():
            span = self._work("cpu", "net", self._executable.nets[net].label, ms)
            self.spans.append(PlacedSpan(span, self._stage, net=net))

    def _way(self, step: int) -> Direction:
        transfer = self._executable.steps[step]
        assert isinstance(transfer, Transfer)
        return transfer.direction

    def _sent(
        self, step: int, parts: Mapping[str, float]
    ) -> tuple[int, Mapping[str, float], float]:
        """Add the GPU's part of a transfer to the CPU; also returns when the CPU can read it."""
        self._share("gpu", step, parts, OF_GPU[:1])
        return step, parts, self._clocks["gpu"] + parts.get("sync", 0.0) + parts.get("map", 0.0)

    def _enqueue(self) -> None:
        """Move the GPU's clock to the CPU's, which has just enqueued commands."""
        self._clocks["gpu"] = max(self._clocks.values())

    def _share(
        self, side: Processor, step: int, parts: Mapping[str, float], kinds: Sequence[SpanKind]
    ) -> None:
        for kind in kinds:
            self._step(side, kind, step, parts.get(kind, 0.0))

    def _step(self, side: Processor, kind: SpanKind, number: int, ms: float) -> None:
        step = self._executable.steps[number]
        label = step.label
        if isinstance(step, Relayout) or (isinstance(step, Transfer) and kind == "transform"):
            label = transform_label(self._executable, step)
        span = self._work(side, kind, label, ms)
        self.spans.append(PlacedSpan(span, self._stage, step=number))

    def _work(self, side: Processor, kind: SpanKind, label: str, ms: float) -> TimeSpan:
        start = self._clocks[side]
        self._clocks[side] = start + max(ms, 0.0)
        return TimeSpan(side, kind, label, start, self._clocks[side])
