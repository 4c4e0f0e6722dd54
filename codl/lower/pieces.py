"""Small executables for measuring and testing: the kernels of one op, one net, or one transfer.

The code that lowers plans lowers them too. Their stages have the names below, so that one stage can
be repeated by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codl.ir.executable import Executable, Port, Relayout, RunNet, Stage, Tensor
from codl.ir.network import Layer
from codl.ir.op_text import to_text
from codl.ir.ops.base import Op, Weights
from codl.ir.records.soc import Soc
from codl.ir.region import Region, Shape
from codl.ir.types import PLANAR, Direction, Storage
from codl.kernels.base import Choice, KernelPlan, TensorArg
from codl.kernels.registry import storages
from codl.lower.assembly import Arena, Assembly
from codl.lower.gpu import KernelLowering
from codl.lower.lowering import TransferLowering, lower_net
from codl.lower.nets import CpuLayer, Group
from codl.lower.partition import Part, TensorMove

#: Stages: inputs to the GPU, the measured work, and outputs to the CPU.
FEED, WORK, FETCH = "feed", "work", "fetch"
#: The name of the output; inputs are `x0`, `x1`, ...
OUTPUT = "y"


class Piece:
    """Builds a small executable, with tensors by name on both processors."""

    def __init__(self, name: str, soc: Soc) -> None:
        self._name, self._soc = name, soc
        self.assembly = Assembly()
        self._arena = Arena(self.assembly, soc)
        self.kernels = KernelLowering(self.assembly, self._arena, soc)
        self.host: dict[str, Tensor] = {}
        self.device: dict[str, Tensor] = {}
        self.transfers = TransferLowering(self.assembly, self.kernels, self.host, self.device, soc)
        self._stages: list[Stage] = []

    def on_host(self, name: str, shape: Shape, *, is_shared: bool) -> Tensor:
        """Add a whole tensor in host memory; with `is_shared`, kernels access it in place."""
        whole = Region.whole(shape)
        self.host[name] = self._arena.host(name, shape, whole, is_shared=is_shared)
        return self.host[name]

    def on_device(
        self, name: str, shape: Shape, storage: Storage, held: Region | None = None
    ) -> Tensor:
        """Add a tensor in GPU memory, whole or the region `held`."""
        held = held or Region.whole(shape)
        self.device[name] = self._arena.device(name, shape, held, storage)
        return self.device[name]

    def move(self, name: str, direction: Direction) -> None:
        move = TensorMove(name, self.device[name].held, direction)
        if direction == "to_gpu":
            self.transfers.to_gpu(move)
        else:
            self.assembly.emit(*self.transfers.begin_to_cpu(move))

    def copy(self, source: str, target: str, region: Region) -> None:
        sides = self.device[source], self.device[target]
        accesses = (self.assembly.access(tensor, region) for tensor in sides)
        step = self.assembly.step(Relayout(f"transform {source}", *accesses))
        self.kernels.copy(*sides, region, step=step)

    def end_stage(self, label: str) -> None:
        self._stages.append(Stage(label, self.assembly.take_commands()))

    def executable(self, inputs: Sequence[str], outputs: Sequence[str]) -> Executable:
        return self.assembly.executable(
            model=self._name,
            network="",
            soc=self._soc.name,
            setup=tuple(self.transfers.mapped),
            stages=tuple(self._stages),
            inputs={name: self._port(name) for name in inputs},
            outputs={name: self._port(name) for name in outputs},
        )

    def _port(self, name: str) -> Port:
        tensor = self.host[name]
        return Port(self.assembly.tensors.number(tensor), tuple(tensor.shape))


def input_names(count: int) -> list[str]:
    return [f"x{index}" for index in range(count)]


def kernels_alone(
    op: Op,
    plan: KernelPlan,
    weights: Weights,
    soc: Soc,
    *,
    part: Region | None = None,
    variant: str = "",
    choice: Choice | None = None,
    add: Op | None = None,
) -> Executable:
    """The kernels of a plan over tensors of their own; they compute the region `part` of an op.

    `plan` and `weights` are of the op restricted to the part. A plan that is `adding` also computes
    the residual `add`, whose other input comes last. The old content of the output is an input too.
    """
    part = part or Region.whole(op.output)
    shapes = [*op.inputs, *([op.output] if add else [])]
    needs = [op.needs(part, index) for index in range(len(op.inputs))]
    regions = [*needs, *([part] if add else [])]
    names, piece = input_names(len(shapes)), Piece(to_text(op), soc)
    stored = [plan.storage(TensorArg("input", index)) for index in range(len(shapes))]
    stored.append(plan.storage(TensorArg("output")))
    ends = zip((*names, OUTPUT), (*shapes, op.output), stored, (*regions, part), strict=True)
    for name, shape, storage, region in ends:
        piece.on_host(name, shape, is_shared=soc.gpu.sees_host_memory)
        is_planar = storage.layout == "planar"
        begins_inside = region.channels.start % soc.gpu.vector_width > 0
        piece.on_device(name, shape, storage, region if is_planar or begins_inside else None)
        piece.move(name, "to_gpu")
    piece.end_stage(FEED)
    arguments = {
        TensorArg("input", index): (piece.device[name], region)
        for index, (name, region) in enumerate(zip(names, regions, strict=True))
    }
    arguments[TensorArg("output")] = (piece.device[OUTPUT], part)
    piece.kernels.compute(
        plan,
        arguments,
        weights,
        choice,
        label=op.kind,
        layers=tuple(each.kind for each in (op, add) if each),
        ops=tuple(to_text(each.restrict(part)) for each in (op, add) if each),
        variant=variant,
    )
    piece.end_stage(WORK)
    piece.move(OUTPUT, "to_cpu")
    piece.end_stage(FETCH)
    return piece.executable([*names, OUTPUT], [OUTPUT])


def net_alone(
    ops: Sequence[Op],
    variant: Any,
    weights: Sequence[Weights],
    soc: Soc,
    *,
    part: Region | None = None,
    is_shared: bool = False,
) -> Executable:
    """A net of successive ops on the CPU; each op after the first has one input.

    A single op may compute only the region `part`. `weights` belong to the whole ops. With
    `is_shared`, the input lies in memory that the GPU has written in place.
    """
    first, last = ops[0], ops[-1]
    names, piece = input_names(len(first.inputs)), Piece(to_text(first), soc)
    layers, reads = [], tuple(names)
    for index, (op, op_weights) in enumerate(zip(ops, weights, strict=True)):
        output = OUTPUT if index == len(ops) - 1 else f"op{index}"
        layer = Layer(f"op{index}", op, reads, output, op_weights)
        computed = Part.of(layer, part or Region.whole(op.output))
        assert computed is not None
        layers.append(CpuLayer.of(computed, variant, soc))
        reads = (output,)
    for name, shape in zip((*names, OUTPUT), (*first.inputs, last.output), strict=True):
        piece.on_host(name, shape, is_shared=is_shared and name != OUTPUT)
    access = piece.assembly.access
    group = Group(
        tuple(layers),
        {name: access(piece.host[name], region) for name, region in layers[0].inputs},
        {OUTPUT: access(piece.host[OUTPUT], layers[-1].region)},
    )
    net = lower_net(group, piece.assembly)
    if is_shared:
        piece.on_device(names[0], first.inputs[0], storages(soc)[0])
        piece.move(names[0], "to_cpu")
        piece.end_stage(FEED)
    piece.assembly.emit(RunNet(piece.assembly.net(net)))
    piece.end_stage(WORK)
    return piece.executable(names, [OUTPUT])


def relayout(shape: Shape, source: Storage, target: Storage, soc: Soc) -> Executable:
    """A copy of a tensor on the GPU from one storage to another."""
    piece = Piece(f"relayout {shape}", soc)
    piece.on_device("source", shape, source)
    piece.on_device("target", shape, target)
    piece.copy("source", "target", Region.whole(shape))
    piece.end_stage(WORK)
    return piece.executable([], [])


def exchange(direction: Direction, shape: Shape, storage: Storage, soc: Soc) -> Executable:
    """A transfer of a whole tensor; a kernel writes the tensor before a transfer to the CPU."""
    piece = Piece(f"{direction} {shape}", soc)
    piece.on_host(OUTPUT, shape, is_shared=soc.gpu.sees_host_memory)
    piece.on_device(OUTPUT, shape, storage)
    if direction == "to_cpu":
        piece.on_device("fresh", shape, PLANAR)
        piece.copy("fresh", OUTPUT, Region.whole(shape))
        piece.end_stage(FEED)
    piece.move(OUTPUT, direction)
    piece.end_stage(WORK)
    return piece.executable([OUTPUT], [OUTPUT])
