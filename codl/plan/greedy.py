"""Finds dimension, ratio and chains: every op's best split, then the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from codl.ir import Dim, Layer, Network, Region
from codl.ir.plan import Plan, Sharing
from codl.lower.partition import Shard, cut
from codl.lower.program import Residency, Transfer, chain_outputs
from codl.plan.build_plan import Cut, make_plan
from codl.plan.cost_model import CostModel, moved, packed
from codl.plan.coverage import covered
from codl.plan.pipeline_model import START, after_stage, priced, works_of_loads

#: Ratios that a search tries; the ends are one processor alone.
RATIOS = tuple(i / 20 for i in range(21))


@dataclass(frozen=True)
class Candidate:
    """Layers as one chain, cut at a dimension and a ratio, and the predicted latency of that."""

    layers: tuple[Layer, ...]
    dim: Dim
    gpu_ratio: float
    shards: tuple[Shard, Shard]
    latency_ms: float


class ChainSearch:
    """Evaluates chains of one network, each as if everything before and after it lay on the CPU.

    That is how the paper counts: a chain pays for sharing its inputs and its outputs, whatever its
    neighbours do.
    """

    def __init__(
        self,
        network: Network,
        cost: CostModel,
        sharing: Sharing = "gather",
        dims: Sequence[Dim] = ("H", "OC", "N"),
    ) -> None:
        self.network = network
        self.cost = covered(cost, network)
        self.sharing: Sharing = sharing
        self.dims = dims
        self._best: dict[tuple[str, ...], Candidate] = {}
        self._prefetch()

    def best(self, layers: Sequence[Layer]) -> Candidate:
        """The fastest dimension and ratio of a chain, one processor alone included."""
        key = tuple(layer.name for layer in layers)
        if key not in self._best:
            candidates = self._evaluate(layers, self._cuts(layers))
            self._best[key] = min(candidates, key=lambda c: c.latency_ms)
        return self._best[key]

    def at(self, layers: Sequence[Layer], dim: Dim, gpu_ratio: float) -> Candidate:
        """A chain at a given dimension and ratio."""
        return self._evaluate(layers, [(dim, gpu_ratio)])[0]

    def _evaluate(
        self, layers: Sequence[Layer], cuts: Sequence[tuple[Dim, float]]
    ) -> list[Candidate]:
        outputs, cost = chain_outputs(self.network, layers), self.cost
        block = cost.soc.gpu.vector_width
        shards = [cut(layers, outputs, dim, ratio, block=block) for dim, ratio in cuts]
        cost.prefetch((part.op for own, _ in shards for part in own.parts), "cpu")
        cost.prefetch((part.op for _, own in shards for part in own.parts), "gpu")
        transfers = [self._transfers(layers, outputs, own) for own in shards]
        self._prefetch_sharing(outputs, shards, transfers)
        loads = [cost.loads(self.network, outputs, own) for own in shards]
        works = works_of_loads(cost, loads)
        found = []
        for (dim, ratio), own, (before, after), work in zip(
            cuts, shards, transfers, works, strict=True
        ):
            moves = priced(cost, moved(self.network, before))
            launches_ms = cost.launches_ms(cost.launches(own[1]) + len(moves))
            clocks = after_stage(START, moves, launches_ms, work.together)
            clocks = after_stage(clocks, priced(cost, moved(self.network, after)))
            found.append(Candidate(tuple(layers), dim, ratio, own, max(clocks)))
        return found

    def _prefetch_sharing(
        self,
        outputs: Sequence[str],
        shards: Sequence[tuple[Shard, Shard]],
        transfers: Sequence[tuple[list[Transfer], list[Transfer]]],
    ) -> None:
        network, cost = self.network, self.cost
        cost.prefetch_sharing(
            way
            for (cpu, _), (before, after) in zip(shards, transfers, strict=True)
            for way in (
                *moved(network, [*before, *after]),
                *packed(network.shapes, cpu.inputs, cpu.left(outputs)),
            )
        )

    def _transfers(
        self, layers: Sequence[Layer], outputs: Sequence[str], shards: tuple[Shard, Shard]
    ) -> tuple[list[Transfer], list[Transfer]]:
        """What moves before a chain and after it, between it and tensors whole on the CPU."""
        residency = self._residency_before(layers)
        before = residency.require("cpu", shards[0].inputs)
        before += residency.require("gpu", shards[1].inputs)
        residency.produce("cpu", shards[0], outputs)
        residency.produce("gpu", shards[1], outputs)
        shapes = self.network.shapes
        after = residency.require("cpu", {name: Region.whole(shapes[name]) for name in outputs})
        return before, after

    def computing_ms(self, candidate: Candidate) -> float:
        """A candidate's slower shard, data sharing left out."""
        cpu, gpu = candidate.shards
        return max(self.cost.shard_ms(cpu, "cpu"), self.cost.shard_ms(gpu, "gpu"))

    def plan(self, strategy: str, candidates: Sequence[Candidate]) -> Plan:
        """A plan of chosen chains, with the variants and the predicted latency of the whole."""
        cuts = [Cut(c.layers, c.dim, c.gpu_ratio) for c in candidates]
        return make_plan(self.network, self.cost, cuts, strategy=strategy, sharing=self.sharing)

    def _residency_before(self, layers: Sequence[Layer]) -> Residency:
        """Everything that the chain reads, whole on the CPU."""
        residency = Residency(self.network, self.sharing)
        shapes = self.network.shapes
        for layer in layers:
            for name in layer.inputs:
                residency.held["cpu"].setdefault(name, Region.whole(shapes[name]))
        for layer in layers:
            residency.held["cpu"].pop(layer.output, None)
        return residency

    def _cuts(self, layers: Sequence[Layer]) -> list[tuple[Dim, float]]:
        """Cuts to try: H where every op has rows to cut, OC where no later op mixes channels.

        Whole images where none mixes them.
        """
        first, *later = layers
        inner = RATIOS[1:-1]
        rows = all("H" in layer.op.dims and layer.op.output.h > 1 for layer in layers)
        alone = all(layer.op.acts_on_channels_alone for layer in later)
        ratios: Mapping[Dim, Sequence[float]] = {
            "H": inner if rows else (),
            "OC": inner if "OC" in first.op.dims and alone else (),
            "N": image_ratios(layers),
        }
        return [("H", 0.0), ("H", 1.0), *((dim, r) for dim in self.dims for r in ratios[dim])]

    def _prefetch(self) -> None:
        """Predict every part of every single op at once: most of what a search will ask."""
        block = self.cost.soc.gpu.vector_width
        parts: dict[str, list[Shard]] = {"cpu": [], "gpu": []}
        for layer in self.network.layers:
            for dim, ratio in self._cuts([layer]):
                cpu, gpu = cut([layer], [layer.output], dim, ratio, block=block)
                parts["cpu"].append(cpu)
                parts["gpu"].append(gpu)
        self.cost.prefetch((p.op for shard in parts["cpu"] for p in shard.parts), "cpu")
        self.cost.prefetch((p.op for shard in parts["gpu"] for p in shard.parts), "gpu")


def image_ratios(layers: Sequence[Layer]) -> list[float]:
    """The ratios at which a chain of these can be cut between images; none where it cannot."""
    images = {layer.op.output.n for layer in layers}
    if len(images) > 1 or not all("N" in layer.op.dims for layer in layers):
        return []
    (total,) = images
    return [count / total for count in range(1, total)]


def single_ops(search: ChainSearch) -> list[Candidate]:
    """Every op as a chain of its own, at its best dimension and ratio."""
    return [search.best([layer]) for layer in search.network.layers]


def greedy_chains(search: ChainSearch) -> list[Candidate]:
    """The paper's Algorithm 1: lengthen a chain as long as that is faster than to begin another.

    Layers are walked in topological order, so that every chain is a convex set of the graph.
    """
    chains: list[Candidate] = []
    current: list[Layer] = []
    for layer in search.network.layers:
        if current:
            apart = search.best(current).latency_ms + search.best([layer]).latency_ms
            if search.best([*current, layer]).latency_ms <= apart:
                current.append(layer)
                continue
            chains.append(search.best(current))
        current = [layer]
    return [*chains, search.best(current)]
