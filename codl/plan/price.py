"""The price of an executable: a walk over its commands with two clocks.

The CPU's thread goes from command to command: it enqueues, copies, waits, and runs nets. The GPU
has one queue, and begins with what is enqueued when it is done with what was before. So whatever an
executable does is counted because it is there: launches, transfers, copies between storages, what
ncnn's nets pack and unpack, calls of nets, residual adds that run in a convolution's kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codl.ir import Shape, parse
from codl.ir.executable import (
    Access,
    Executable,
    Flush,
    GpuOp,
    Launch,
    NcnnNet,
    Net,
    Raise,
    Relayout,
    RunNet,
    Stage,
    Transfer,
    Wait,
)
from codl.plan.cost_model import ADDED_INSIDE, CostModel, Move, Pair


@dataclass(frozen=True)
class StageTimes:
    """Milliseconds of what a stage does, as if nobody waited for anybody.

    `nets_ms` are by a net's number, `kernels_ms` by the number of a step that the GPU computes or
    copies, both with what the processors slow each other down; `transfers_ms` by a transfer's
    number its parts. `flushes_ms` is what enqueueing has taken the CPU by each flush of the queue,
    and `first_launch_ms` how long a launch is on its way to a GPU that has nothing else to do.
    `alone_ms` is what each processor computes, were it alone.
    """

    label: str
    nets_ms: Mapping[int, float]
    kernels_ms: Mapping[int, float]
    transfers_ms: Mapping[int, Mapping[str, float]]
    flushes_ms: tuple[float, ...]
    first_launch_ms: float
    alone_ms: Pair

    @property
    def works_ms(self) -> Pair:
        """What nets take the CPU in all, and kernels the GPU."""
        return sum(self.nets_ms.values()), sum(self.kernels_ms.values())


@dataclass(frozen=True)
class StagePrice:
    """One stage: what it takes, and when each processor is done with it, in milliseconds.

    `ends_ms` are since the start of the inference.
    """

    times: StageTimes
    ends_ms: Pair


@dataclass(frozen=True)
class Price:
    """Milliseconds of one inference, end to end and by stage."""

    stages: tuple[StagePrice, ...]

    @property
    def latency_ms(self) -> float:
        return max(self.stages[-1].ends_ms) if self.stages else 0.0


def price(executable: Executable, cost: CostModel) -> Price:
    """What an inference is predicted to take."""
    return walk(executable, stage_times(executable, cost))


def stage_times(executable: Executable, cost: CostModel) -> tuple[StageTimes, ...]:
    """What every stage is predicted to do."""
    _prefetch(executable, cost)
    return tuple(_Works(executable, stage, cost).times() for stage in executable.stages)


def _prefetch(executable: Executable, cost: CostModel) -> None:
    """Predict all ops in one batch for each kernel variant."""
    steps = (step for step in executable.steps if isinstance(step, GpuOp))
    cost.prefetch([parse(layer.op) for net in executable.nets for layer in net.layers], "cpu")
    cost.prefetch([parse(text) for step in steps for text in step.ops], "gpu")


def walk(executable: Executable, times: Sequence[StageTimes]) -> Price:
    """Walk over the commands of one inference, whose stages take such times."""
    clocks = _TwoClocks(executable)
    stages = zip(executable.stages, times, strict=True)
    return Price(tuple(StagePrice(own, clocks.after(stage, own)) for stage, own in stages))


class _TwoClocks:
    """The two clocks, and when what the CPU waits for is there."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._cpu, self._gpu = 0.0, 0.0
        #: By the number of a transfer to the CPU, when its region is there.
        self._arrivals: dict[int, float] = {}
        #: The steps of this stage whose work is enqueued, or handed over by the CPU.
        self._enqueued: set[int] = set()
        self._handed: set[int] = set()

    def after(self, stage: Stage, times: StageTimes) -> Pair:
        """Walk over one stage; when each processor is done with it."""
        self._enqueued, self._handed = set(), set()
        flushes, launches_ms = iter(times.flushes_ms), 0.0
        for command in stage.commands:
            if isinstance(command, Flush):
                self._cpu -= launches_ms
                launches_ms = next(flushes)
                self._cpu += launches_ms
            elif isinstance(command, RunNet):
                self._cpu += times.nets_ms[command.net]
            elif isinstance(command, Wait):
                self._wait(command.step, times)
            elif isinstance(command, Launch) and command.step not in self._enqueued:
                self._enqueued.add(command.step)
                self._launch(command.step, times)
        return self._cpu, self._gpu

    def _launch(self, number: int, times: StageTimes) -> None:
        """The GPU works on a step; what is to arrive at the CPU, or come from it, with it."""
        step = self._executable.steps[number]
        if not isinstance(step, Transfer):
            self._gpu = self._begin(times) + times.kernels_ms[number]
            return
        parts = times.transfers_ms[number]
        kernel_ms, mapped_ms = parts.get("transform", 0.0), parts.get("map", 0.0)
        if step.direction == "to_cpu":
            self._gpu = self._begin(times) + kernel_ms
            self._arrivals[number] = self._gpu + parts.get("sync", 0.0) + mapped_ms
            return
        self._hand_over(number, parts)
        # The staging memory is mapped again behind the kernel that reads it.
        self._gpu = self._begin(times) + kernel_ms + mapped_ms

    def _begin(self, times: StageTimes) -> float:
        """When the GPU begins with what the CPU enqueues now: once both have got there.

        A launch takes its time to the GPU, which shows where that has nothing else to do.
        """
        return max(self._gpu, self._cpu + times.first_launch_ms)

    def _wait(self, number: int, times: StageTimes) -> None:
        """The CPU waits for a region and takes it; what it is to write is mapped long since."""
        if not isinstance(self._executable.steps[number], Transfer):
            self._cpu = max(self._cpu, self._gpu)  # nothing arrives: a kernel is only to be over
            return
        self._cpu = max(self._cpu, self._arrivals.pop(number, 0.0))
        self._hand_over(number, times.transfers_ms.get(number, {}))

    def _hand_over(self, number: int, parts: Mapping[str, float]) -> None:
        """The CPU copies a region, in either direction, and unmaps the memory between."""
        if number not in self._handed:
            self._handed.add(number)
            self._cpu += parts.get("copy", 0.0) + parts.get("unmap", 0.0)


class _Works:
    """What both processors do in a stage, in the making."""

    def __init__(self, executable: Executable, stage: Stage, cost: CostModel) -> None:
        self._executable, self._stage, self._cost = executable, stage, cost
        #: By step how many kernels, or small groups of them, are enqueued for it.
        self._launches: dict[int, int] = {}
        self._kernels_ms: dict[int, float] = {}
        self._transfers_ms: dict[int, Mapping[str, float]] = {}
        self._nets_ms: dict[int, float] = {}
        launched = (command.step for command in stage.commands if isinstance(command, Launch))
        numbers = tuple(dict.fromkeys(launched))
        self._made = {
            executable.tensors[step.writes.tensor].name
            for step in (executable.steps[number] for number in numbers)
            if isinstance(step, GpuOp)
        }
        loads = np.zeros((2, 2))  # bytes and milliseconds of each side
        inner = [number for number in numbers if self._step(number, loads[1])]
        nets = [command.net for command in stage.commands if isinstance(command, RunNet)]
        self._nets(nets, loads[0])
        moved, alone = loads.T
        ends = cost.together_ms(moved[None], alone[None])[0]
        self._alone_ms: Pair = (float(alone[0]), float(alone[1]))
        stretch = np.divide(ends, alone, out=np.ones(2), where=alone > 0)
        for number in inner:
            self._kernels_ms[number] *= float(stretch[1])
        for number in nets:
            self._nets_ms[number] *= float(stretch[0])

    def times(self) -> StageTimes:
        return StageTimes(
            label=self._stage.label,
            nets_ms=self._nets_ms,
            kernels_ms=self._kernels_ms,
            transfers_ms=self._transfers_ms,
            flushes_ms=tuple(self._flushes_ms()),
            first_launch_ms=self._cost.signals.first_launch_ms,
            alone_ms=self._alone_ms,
        )

    def _flushes_ms(self) -> Iterator[float]:
        """What enqueueing takes the CPU up to each flush."""
        enqueued: set[int] = set()
        raised = 0  # what that takes the GPU is of the wait
        for command in self._stage.commands:
            if isinstance(command, Launch):
                enqueued.add(command.step)
            elif isinstance(command, Raise):
                raised += 1
            elif isinstance(command, Flush):
                launches = raised + sum(self._launches[step] for step in enqueued)
                yield self._cost.launches_ms(launches)

    def _step(self, number: int, load: NDArray[np.float64]) -> bool:
        """A step's milliseconds, and whether the other processor's work slows it down."""
        step, cost = self._executable.steps[number], self._cost
        self._launches[number] = 1
        if isinstance(step, Transfer):
            shape = _shape(self._executable, step.target)
            self._transfers_ms[number] = cost.transfer_parts(step.direction, shape)
            return False
        if isinstance(step, Relayout):
            source, target = (
                self._executable.tensors[x.tensor] for x in (step.source, step.target)
            )
            if source.storage == target.storage:
                # A part copied to one piece: what else is held is not known before all is planned.
                self._launches[number], self._kernels_ms[number] = 0, 0.0
                return False
            shape = _shape(self._executable, step.target)
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
            storage = self._executable.tensors[step.writes.tensor].storage
            added_ms = cost.fastest_by_storage(add, "gpu")[storage].latency_ms
            own_ms += ADDED_INSIDE * added_ms
        self._kernels_ms[number] = own_ms
        load += [sum(op.bytes for op in ops), own_ms]
        return True

    def _nets(self, numbers: Sequence[int], load: NDArray[np.float64]) -> None:
        """The nets' milliseconds: their ops, less the calls of nets that are saved, and packing."""
        cost = self._cost
        nets = [self._executable.nets[number] for number in numbers]
        ops = [[parse(layer.op) for layer in net.layers] for net in nets]
        ops_ms = [
            sum(
                cost.variant_ms(op, "cpu", x.variant) for op, x in zip(own, net.layers, strict=True)
            )
            for own, net in zip(ops, nets, strict=True)
        ]
        every = [op for own in ops for op in own]
        images = np.array(sum(op.images for op in every) / max(len(every), 1))
        call_ms = float(cost.turns(images)) * cost.inside("cpu").call_ms
        for number, net, own, own_ms in zip(numbers, nets, ops, ops_ms, strict=True):
            moves = self._packed(net)
            packing_ms = sum(map(cost.packing_ms, moves))
            # Every op counts with a call of its own.
            self._nets_ms[number] = own_ms - (len(own) - 1) * call_ms + packing_ms
            load += [sum(2 * shape.bytes for _, shape in moves), self._nets_ms[number]]
        load[0] += sum(op.bytes for op in every)

    def _packed(self, net: Net) -> list[Move]:
        """What ncnn packs of what enters a net, and unpacks of what leaves it."""
        if not isinstance(net, NcnnNet):
            return []
        moves: list[Move] = [("load", _shape(self._executable, access)) for _, access in net.inputs]
        return [*moves, *(("store", _shape(self._executable, access)) for _, access in net.outputs)]


def _shape(executable: Executable, access: Access) -> Shape:
    return access.region.shape(executable.tensors[access.tensor].shape)
