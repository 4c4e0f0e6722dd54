"""From a plan to a program: what every processor computes and what moves, before any device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from codl.ir.network import Layer, Network
from codl.ir.plan import Chain, Plan, Sharing
from codl.ir.region import Region, Shape
from codl.ir.soc import Soc
from codl.ir.types import Direction, Processor
from codl.lower.partition import Shard, cut

#: The way to each processor.
WAYS: Mapping[Processor, Direction] = {"cpu": "to_cpu", "gpu": "to_gpu"}


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
    """A plan's segments, the last transfers, and what each processor ever holds of a tensor."""

    segments: tuple[Segment, ...]
    final: tuple[TensorMove, ...]
    held: Mapping[Processor, Mapping[str, Region]]

    @cached_property
    def moved(self) -> frozenset[str]:
        """The tensors that go from one processor to the other."""
        segments = (segment.transfers for segment in self.segments)
        return frozenset(t.tensor for moves in (*segments, self.final) for t in moves)

    @cached_property
    def is_read_at_the_end(self) -> bool:
        """Whether the CPU hands over a tensor, and never again waits for anything behind it.

        Only where the GPU then computes what nothing reads.
        """
        exchanges = [*(segment.transfers for segment in self.segments), self.final]
        last = {t.direction: stage for stage, own in enumerate(exchanges) for t in own}
        return last.get("to_gpu", -1) >= last.get("to_cpu", -1) and "to_gpu" in last


class Residency:
    """Which region of every tensor each processor has, and what must move for it to have another.

    The planner walks a network with one of these as the executor does, so that both count the same
    transfers.
    """

    def __init__(self, network: Network, sharing: Sharing) -> None:
        self._shapes = network.shapes
        self._sharing = sharing
        inputs = {name: Region.whole(shape) for name, shape in network.inputs.items()}
        fixed = {name: Region.whole(self._shapes[name]) for name in network.constants}
        self.held: dict[Processor, dict[str, Region]] = {"cpu": inputs | fixed, "gpu": dict(fixed)}

    def require(self, processor: Processor, needs: Mapping[str, Region]) -> list[TensorMove]:
        """Transfers after which `processor` has `needs`; where all is to be gathered, the whole."""
        mine, moved = self.held[processor], []
        for name, need in needs.items():
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


def build_program(network: Network, plan: Plan, soc: Soc) -> PartitionedPlan:
    """Lower a plan; raises `MismatchError` where it is for another model or SoC."""
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
    return PartitionedPlan(tuple(segments), tuple(final), residency.held)
