"""Partitions a plan: the part of each op on each processor, and the transfers between chains.

A chain shares no data inside. Each processor computes its share of the chain's outputs, and all
regions of earlier tensors that this share needs. So both processors compute the halo rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from codl.ir.network import Layer, Network
from codl.ir.ops.base import Activation, Dim, Op, split
from codl.ir.ops.eltwise import Eltwise
from codl.ir.plan import Chain, Plan, Sharing
from codl.ir.records.soc import Soc
from codl.ir.region import Region, Shape
from codl.ir.types import Direction, Processor
from codl.kernels.base import LIBRARIES

#: The direction of transfers to each processor.
WAYS: Mapping[Processor, Direction] = {"cpu": "to_cpu", "gpu": "to_gpu"}


@dataclass(frozen=True)
class Part:
    """A region of a layer's output as an ordinary op, with the input regions that it needs."""

    layer: Layer
    region: Region
    op: Op
    needs: tuple[Region, ...]

    @classmethod
    def of(cls, layer: Layer, region: Region) -> Part | None:
        """The part that computes a needed region of a layer; None for an empty region."""
        if region.is_empty:
            return None
        region = layer.op.around(region)
        needs = tuple(layer.op.needs(region, index) for index in range(len(layer.inputs)))
        return cls(layer, region, layer.op.restrict(region), needs)

    @property
    def moves_images(self) -> bool:
        """True where an output image depends on other images of an input than the one at its place.

        ncnn computes one image at a time; an input with a single image serves all of them.
        """
        shapes = zip(self.needs, self.layer.op.inputs, strict=True)
        return any(need.images != self.region.images and shape.n > 1 for need, shape in shapes)

    def add_needs(self, needed: dict[str, Region]) -> None:
        """Join the input regions of this part to the regions in `needed`."""
        for name, need in zip(self.layer.inputs, self.needs, strict=True):
            if not need.is_empty:
                needed[name] = need.join(needed[name]) if name in needed else need


@dataclass(frozen=True)
class Shard:
    """The parts of a chain that one processor computes, in order; there may be none."""

    parts: tuple[Part, ...]

    @cached_property
    def outputs(self) -> dict[str, Region]:
        return {part.layer.output: part.region for part in self.parts}

    def left(self, outputs: Collection[str]) -> dict[str, Region]:
        """The computed regions of the chain's `outputs`."""
        return {name: self.outputs[name] for name in outputs if name in self.outputs}

    @cached_property
    def inputs(self) -> dict[str, Region]:
        needed: dict[str, Region] = {}
        for part in self.parts:
            part.add_needs(needed)
        for name in self.outputs:
            needed.pop(name, None)
        return needed


def cut(
    layers: Sequence[Layer], outputs: Collection[str], dim: Dim, gpu_ratio: float, *, block: int
) -> tuple[Shard, Shard]:
    """Cut a chain into the CPU's and the GPU's shard.

    `layers` are in topological order, `outputs` are the tensors that other chains read, and `block`
    is the number of channels in a block of the GPU's layout.
    """
    wanted: tuple[dict[str, Region], dict[str, Region]] = ({}, {})
    for layer in layers:
        if layer.output in outputs:
            shares = split(layer.op, dim, gpu_ratio, align=block)
            for regions, share in zip(wanted, shares, strict=True):
                regions[layer.output] = share
    cpu, gpu = (_shard(layers, regions) for regions in wanted)
    return cpu, gpu


def _shard(layers: Sequence[Layer], wanted: dict[str, Region]) -> Shard:
    """The shard that computes the `wanted` regions: walks backwards from outputs to inputs."""
    parts: list[Part] = []
    for layer in reversed(layers):
        region = wanted.get(layer.output)
        part = None if region is None else Part.of(layer, region)
        if part is not None:
            part.add_needs(wanted)
            parts.append(part)
    return Shard(tuple(reversed(parts)))


@dataclass(frozen=True)
class TensorMove:
    """A transfer of a region of a tensor from one processor to the other."""

    tensor: str
    region: Region
    direction: Direction


@dataclass(frozen=True)
class Segment:
    """One chain: the transfers before it, and the shard of each processor."""

    chain: Chain
    outputs: tuple[str, ...]
    transfers: tuple[TensorMove, ...]
    cpu: Shard
    gpu: Shard


@dataclass(frozen=True)
class PartitionedPlan:
    """A plan's segments, the transfers after the last one, and the regions each processor holds."""

    network: Network
    segments: tuple[Segment, ...]
    final: tuple[TensorMove, ...]
    held: Mapping[Processor, Mapping[str, Region]]

    @property
    def exchanges(self) -> list[tuple[TensorMove, ...]]:
        return [*(segment.transfers for segment in self.segments), self.final]

    @cached_property
    def moved(self) -> frozenset[str]:
        """The tensors that move from one processor to the other."""
        return frozenset(move.tensor for moves in self.exchanges for move in moves)


class Residency:
    """The region of each tensor that each processor holds, and the transfers that a chain needs.

    The planner and the lowering both use it, so they count the same transfers. Each processor holds
    exactly the regions of private constants that it needs.
    """

    def __init__(self, network: Network, sharing: Sharing) -> None:
        self._shapes = network.shapes
        self._sharing, self._kept = sharing, network.private_constants
        inputs = {name: Region.whole(shape) for name, shape in network.inputs.items()}
        others = network.constants.keys() - network.private_constants
        fixed = {name: Region.whole(self._shapes[name]) for name in sorted(others)}
        self.held: dict[Processor, dict[str, Region]] = {"cpu": inputs | fixed, "gpu": dict(fixed)}

    def require(self, processor: Processor, needs: Mapping[str, Region]) -> list[TensorMove]:
        """The transfers after which `processor` holds `needs`, or the whole tensors if gathered."""
        mine, moved = self.held[processor], []
        for name, need in needs.items():
            if name in self._kept:
                mine[name] = need.join(mine.get(name, need))
                continue
            held, regions = missing_regions(self._shapes[name], mine.get(name), need, self._sharing)
            moved += [TensorMove(name, region, WAYS[processor]) for region in regions]
            mine[name] = held
        return moved

    def produce(self, processor: Processor, shard: Shard, outputs: Sequence[str]) -> None:
        """Add the outputs of a shard to the regions that `processor` holds."""
        self.held[processor] |= shard.left(outputs)


def missing_regions(
    shape: Shape, mine: Region | None, need: Region, sharing: Sharing
) -> tuple[Region, tuple[Region, ...]]:
    """The region that a processor holds afterwards, and the regions that must move to it.

    `mine` is the region that it holds before, and `need` the region that it needs.
    """
    wanted = Region.whole(shape) if sharing == "gather" else need
    if mine is None:
        return wanted, (wanted,)
    if mine.covers(need):
        return mine, ()
    # The held region stays one rectangle, so the corners of the joined region move too.
    joined = mine.join(wanted)
    return joined, joined.minus(mine)


def chain_outputs(network: Network, layers: Sequence[Layer]) -> list[str]:
    """The tensors that a chain makes and that are read outside it."""
    inside = {layer.name for layer in layers}
    results = {holder for holder, _ in network.outputs.values()}
    return [
        layer.output
        for layer in layers
        if layer.output in results
        or any(reader.name not in inside for reader in network.readers(layer.output))
    ]


def partition_plan(network: Network, plan: Plan, soc: Soc) -> PartitionedPlan:
    """Partition a plan; raises `MismatchError` where it is for another model or SoC."""
    plan.check(network, soc.name)
    residency = Residency(network, plan.sharing)
    segments = []
    for chain, layers in plan.layers(network):
        outputs = chain_outputs(network, layers)
        block = soc.gpu.vector_width
        cpu, gpu = cut(layers, outputs, chain.dim, chain.gpu_ratio, block=block)
        transfers = residency.require("cpu", cpu.inputs) + residency.require("gpu", gpu.inputs)
        segments.append(Segment(chain, tuple(outputs), tuple(transfers), cpu, gpu))
        residency.produce("cpu", cpu, outputs)
        residency.produce("gpu", gpu, outputs)
    results = {
        holder: Region.whole(network.shapes[holder]) for holder, _ in network.outputs.values()
    }
    final = residency.require("cpu", results)
    return PartitionedPlan(network, tuple(segments), tuple(final), residency.held)


# Rules shared by lowering and the planner: fused adds, nets of libraries, packed tensors.


def residual_adds(layers: Sequence[Layer], outputs: Collection[str]) -> dict[str, Layer]:
    """The residual add that the kernels of a convolution could compute as well, by its name.

    `outputs` are the tensors that other layers than these read.
    """
    places = {layer.output: place for place, layer in enumerate(layers)}
    reads = Counter(name for layer in layers for name in layer.inputs)
    adds = {}
    for add in layers:
        op = add.op
        if not (isinstance(op, Eltwise) and len(op.inputs) == 2 and set(op.inputs) == {op.output}):
            continue
        # The input that is computed later: by then the other input exists.
        later = max(add.inputs, key=lambda name: places.get(name, -1))
        if later in places and later not in outputs and reads[later] == 1:
            conv = layers[places[later]]
            # Kernels add before the activation.
            is_alone = conv.op.kind == "conv2d" and conv.op.activation == Activation()
            if is_alone and op.mode == "add":
                adds[conv.name] = add
    return adds


def fuses(convolution: Any, add: Any, soc: Soc) -> bool:
    """True where a SoC computes a convolution and an add in one kernel of these variants."""
    adds_on: frozenset[str] = convolution.adds_on
    return bool(convolution.storage == add.storage) and soc.gpu.type in adds_on


def net_level(least: Any, is_read: Any, *, is_model: bool, library: Any) -> Any:
    """The level of the net of a layer; nets run from the highest level to the lowest.

    Levels belong to the libraries in turn (level modulo the number of `LIBRARIES`). A layer gets
    the lowest level of its own `library` that is at least `least`, the highest level of its
    readers. An ONNX subgraph (`is_model`) has a net of its own, above the level of its readers if
    it `is_read`. So libraries change rarely, and the readers of a layer alone decide its net.
    Arguments are integers, or arrays with one element for each of several chains.
    """
    level = least + (is_read if is_model else 0)
    return level + (library - level) % len(LIBRARIES)


#: Kinds of op that every library computes in blocks of channels, and kinds that keep such blocks
#: if their inputs are images.
IN_BLOCKS = frozenset({"conv2d", "pooling"})
BLOCKS_KEPT = frozenset({"concat", "conv_transpose2d", "eltwise", "resize"})


def packs(op: Op, library: int) -> bool:
    """True where a library packs the inputs of an op, and unpacks its output.

    ncnn (library 0) packs all tensors; other libraries pack for convolutions and poolings.
    """
    is_image = op.kind in BLOCKS_KEPT and op.output.w > 1
    return library == 0 or op.kind in IN_BLOCKS or is_image


def loading(library: str) -> Direction:
    """The name of the data-sharing cost of packing a library's input."""
    return "load" if library == "ncnn" else f"load_{library}"  # type: ignore[return-value]


def storing(library: str) -> Direction:
    """The name of the data-sharing cost of unpacking a library's output."""
    return "store" if library == "ncnn" else f"store_{library}"  # type: ignore[return-value]
