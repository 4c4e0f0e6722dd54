"""The partitioning of a plan: the part of every op on each processor, and the transfers between.

Inside a chain nothing is shared. So a side computes its share of the chain's outputs, and of every
tensor before them whatever that share needs: the halo rows are computed twice.
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

#: The way to each processor.
WAYS: Mapping[Processor, Direction] = {"cpu": "to_cpu", "gpu": "to_gpu"}


@dataclass(frozen=True)
class Part:
    """A region of a layer's output, as an ordinary op, and the input regions that it needs."""

    layer: Layer
    region: Region
    op: Op
    needs: tuple[Region, ...]

    @classmethod
    def of(cls, layer: Layer, region: Region) -> Part | None:
        """What is computed where others need a region of a layer; None of nothing."""
        if region.is_empty:
            return None
        region = layer.op.around(region)
        needs = tuple(layer.op.needs(region, index) for index in range(len(layer.inputs)))
        return cls(layer, region, layer.op.restrict(region), needs)

    def add_needs(self, needed: dict[str, Region]) -> None:
        """Join what this part reads to what others need of the same tensors."""
        for name, need in zip(self.layer.inputs, self.needs, strict=True):
            if not need.is_empty:
                needed[name] = need.join(needed[name]) if name in needed else need


@dataclass(frozen=True)
class Shard:
    """What one processor computes of a chain, in order; without parts it has nothing to do."""

    parts: tuple[Part, ...]

    @cached_property
    def outputs(self) -> dict[str, Region]:
        """The region of every tensor that this side computes."""
        return {part.layer.output: part.region for part in self.parts}

    def left(self, outputs: Collection[str]) -> dict[str, Region]:
        """Those of `outputs` that this side computes."""
        return {name: self.outputs[name] for name in outputs if name in self.outputs}

    @cached_property
    def inputs(self) -> dict[str, Region]:
        """The region of every tensor from outside that this side needs."""
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
    """The CPU's and the GPU's shard of a chain.

    `layers` in topological order; `outputs` names the tensors that are read outside the chain;
    `block` is the number of channels that the GPU's layout keeps together.
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
    """Walk backwards: what is wanted of a tensor decides what is needed of those before it."""
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
    """A region of a tensor that one processor has and the other needs."""

    tensor: str
    region: Region
    direction: Direction


@dataclass(frozen=True)
class Segment:
    """One chain: what is shared before it, and what each processor then computes on its own."""

    chain: Chain
    outputs: tuple[str, ...]
    transfers: tuple[TensorMove, ...]
    cpu: Shard
    gpu: Shard


@dataclass(frozen=True)
class PartitionedPlan:
    """A plan's segments, the last transfers, and what each processor ever holds of a tensor.

    `network` is the one that runs, with all partial sums written out.
    """

    network: Network
    segments: tuple[Segment, ...]
    final: tuple[TensorMove, ...]
    held: Mapping[Processor, Mapping[str, Region]]

    @property
    def exchanges(self) -> list[tuple[TensorMove, ...]]:
        """What moves before each segment, and after the last."""
        return [*(segment.transfers for segment in self.segments), self.final]

    @cached_property
    def moved(self) -> frozenset[str]:
        """The tensors that go from one processor to the other."""
        return frozenset(move.tensor for moves in self.exchanges for move in moves)

    @cached_property
    def is_read_at_the_end(self) -> bool:
        """Whether the CPU hands over a tensor, and never again waits for anything behind it.

        Only where the GPU then computes what nothing reads.
        """
        last = {t.direction: stage for stage, moves in enumerate(self.exchanges) for t in moves}
        return last.get("to_gpu", -1) >= last.get("to_cpu", -1) and "to_gpu" in last


class Residency:
    """Which region of every tensor each processor has, and what must move for it to have another.

    The planner walks a network with one of these as the executor does, so that both count the same
    transfers. Of constants of one layer a processor has what it needs and no more.
    """

    def __init__(self, network: Network, sharing: Sharing) -> None:
        self._shapes = network.shapes
        self._sharing, self._kept = sharing, network.lone
        inputs = {name: Region.whole(shape) for name, shape in network.inputs.items()}
        others = network.constants.keys() - network.lone
        fixed = {name: Region.whole(self._shapes[name]) for name in sorted(others)}
        self.held: dict[Processor, dict[str, Region]] = {"cpu": inputs | fixed, "gpu": dict(fixed)}

    def require(self, processor: Processor, needs: Mapping[str, Region]) -> list[TensorMove]:
        """Transfers after which `processor` has `needs`; where all is to be gathered, the whole."""
        mine, moved = self.held[processor], []
        for name, need in needs.items():
            if name in self._kept:
                mine[name] = need.join(mine.get(name, need))
                continue
            held, regions = lacking(self._shapes[name], mine.get(name), need, self._sharing)
            moved += [TensorMove(name, region, WAYS[processor]) for region in regions]
            mine[name] = held
        return moved

    def produce(self, processor: Processor, shard: Shard, outputs: Sequence[str]) -> None:
        """Note that `processor` has computed its shard of a chain with these outputs."""
        self.held[processor] |= shard.left(outputs)


def lacking(
    shape: Shape, mine: Region | None, need: Region, sharing: Sharing
) -> tuple[Region, tuple[Region, ...]]:
    """What a processor that holds `mine` of a tensor holds when it has `need`, and what moves."""
    wanted = Region.whole(shape) if sharing == "gather" else need
    if mine is None:
        return wanted, (wanted,)
    if mine.covers(need):
        return mine, ()
    # What is held stays one rectangle: the corners of the joined one move too.
    joined = mine.join(wanted)
    return joined, joined.minus(mine)


def chain_outputs(network: Network, layers: Sequence[Layer]) -> list[str]:
    """The tensors of a chain that are read outside it."""
    inside = {layer.name for layer in layers}
    results = {holder for holder, _ in network.outputs.values()}
    return [
        layer.output
        for layer in layers
        if layer.output in results
        or any(reader.name not in inside for reader in network.readers(layer.output))
    ]


def partition_plan(network: Network, plan: Plan, soc: Soc) -> PartitionedPlan:
    """Cut all chains of a plan; raises `MismatchError` where it is for another model or SoC."""
    plan.check(network, soc.name)
    network, plan = plan.applied(network)
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
