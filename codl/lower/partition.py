"""Partitions a plan: the part of each op on each processor, and the transfers between chains.

A chain shares no data inside. Each processor computes its share of the chain's outputs, and all
regions of earlier tensors that this share needs. So both processors compute the halo rows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from codl.ir.network import Layer, Network
from codl.ir.ops.base import Dim, Op, split
from codl.ir.plan import Chain, Plan, Sharing
from codl.ir.region import Region, Shape
from codl.ir.types import Direction, Processor
from codl.records.soc import Soc

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
        """The computed region of each tensor."""
        return {part.layer.output: part.region for part in self.parts}

    def left(self, outputs: Collection[str]) -> dict[str, Region]:
        """The computed regions of the chain's `outputs`."""
        return {name: self.outputs[name] for name in outputs if name in self.outputs}

    @cached_property
    def inputs(self) -> dict[str, Region]:
        """The needed region of each tensor from outside the chain."""
        needed: dict[str, Region] = {}
        for part in self.parts:
            part.add_needs(needed)
        for name in self.outputs:
            needed.pop(name, None)
        return needed


def cut(
    layers: Sequence[Layer],
    outputs: Collection[str],
    dim: Dim,
    gpu_ratio: float,
    *,
    block: int,
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
        """The transfers before each segment, and after the last one."""
        return [*(segment.transfers for segment in self.segments), self.final]

    @cached_property
    def moved(self) -> frozenset[str]:
        """The tensors that move from one processor to the other."""
        return frozenset(move.tensor for moves in self.exchanges for move in moves)

    @cached_property
    def is_read_at_the_end(self) -> bool:
        """True where the CPU sends a tensor and never waits for the GPU afterwards.

        That happens only if nothing reads the GPU's last outputs.
        """
        last = {t.direction: stage for stage, moves in enumerate(self.exchanges) for t in moves}
        return last.get("to_gpu", -1) >= last.get("to_cpu", -1) and "to_gpu" in last


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
