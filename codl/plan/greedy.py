"""Single ops at their best cuts, and the paper's Algorithm 1, which joins them to chains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from codl.ir import Dim, Layer, Network, Region
from codl.ir.plan import Chain, Plan, Sharing
from codl.plan import region_array as boxes
from codl.plan.build_plan import chain_of, make_plan
from codl.plan.chain_costs import CandidateChain, ChainCosts
from codl.plan.cost_model import CostModel, Pair
from codl.plan.coverage import covered
from codl.plan.price import START
from codl.plan.region_array import NONE
from codl.plan.sub_ops import Walk
from codl.plan.transitions import Transitions

#: The ratios to try; 0 and 1 are one processor.
RATIOS = tuple(i / 20 for i in range(21))
_NEVER: Pair = (inf, inf)


@dataclass(frozen=True)
class IsolatedChain:
    """A chain with the times of its shards' ops, and its latency including sharing at its ends."""

    chain: Chain
    alone_ms: Pair
    latency_ms: float


class ChainSearch:
    """Evaluates single chains of a network, with all tensors before and after on the CPU.

    So does the paper: a chain pays for sharing its inputs and outputs, whatever its neighbours are.
    """

    def __init__(
        self,
        network: Network,
        cost: CostModel,
        sharing: Sharing = "gather",
        dims: Sequence[Dim] = ("H", "OC", "N"),
    ) -> None:
        self.network, self.cost = network, covered(cost, network)
        self.sharing: Sharing = sharing
        self.dims = dims
        by_images = {ratio for layer in network.layers for ratio in image_ratios([layer])}
        self._ratios = sorted({*RATIOS, *by_images})
        self.costs = ChainCosts(network, self.cost, self._ratios)
        self._transitions = Transitions(self.costs, sharing)
        self._numbers = {layer.name: number for number, layer in enumerate(network.layers)}
        self._constants = frozenset(network.constants)
        self._best: dict[tuple[str, ...], IsolatedChain] = {}
        singles = [[layer] for layer in network.layers]
        chains = self._evaluate(
            [(layers, *cut) for layers in singles for cut in self._cuts(layers)]
        )
        for chain in chains:
            self._keep(chain)

    def best(self, layers: Sequence[Layer]) -> IsolatedChain:
        """The chain of some layers at its fastest dimension and ratio, or on one processor.

        The latency is infinite where no cut has variants for all parts.
        """
        key = tuple(layer.name for layer in layers)
        if key not in self._best:
            for chain in self._evaluate([(layers, *cut) for cut in self._cuts(layers)]):
                self._keep(chain)
        return self._best.get(key) or IsolatedChain(chain_of(layers, "H", 0.0), _NEVER, inf)

    def _keep(self, new: IsolatedChain) -> None:
        """Keep a chain if it is the fastest one of its layers."""
        fastest = self._best.get(new.chain.ops)
        if fastest is None or new.latency_ms < fastest.latency_ms:
            self._best[new.chain.ops] = new

    def at(self, layers: Sequence[Layer], dim: Dim, gpu_ratio: float) -> IsolatedChain:
        """A chain at one cut; its latency is infinite where a part has no variant."""
        never = IsolatedChain(chain_of(layers, dim, gpu_ratio), _NEVER, inf)
        return next(iter(self._evaluate([(layers, dim, gpu_ratio)])), never)

    def _evaluate(self, cuts: Sequence[tuple[Sequence[Layer], Dim, float]]) -> list[IsolatedChain]:
        """The chains at some cuts, without those that have a part without variants."""
        walks = []
        for layers, dim, ratio in cuts:
            start = self._numbers[layers[0].name]
            step = self._ratios.index(ratio)
            walks.append(Walk(start + len(layers), dim, step, frozenset([start])))
        candidates = self.costs.evaluate(walks)
        self._transitions.prefetch(candidates)
        return [self._isolated(candidate) for candidate in candidates]

    def _isolated(self, candidate: CandidateChain) -> IsolatedChain:
        """The latency of a chain whose inputs and outputs lie whole on the CPU."""
        transfer, name_of = self._transitions.region_transfer, self.costs.tensor
        layers = self.network.layers[candidate.start : candidate.stop]
        before = []
        for seen, side, need in candidate.reads:
            tensor = name_of(candidate.start, seen)
            is_held = side == 0 or tensor in self._constants
            before.append(transfer(side, self._whole(tensor) if is_held else NONE, need))
        clocks = self._transitions.stage_ms(START, before, candidate)
        left: dict[str, int] = {}
        for seen, side, number in candidate.leaves:
            tensor = name_of(candidate.start, seen)
            left.setdefault(tensor, NONE)
            if side == 0:
                left[tensor] = number
        after = [transfer(0, number, self._whole(tensor)) for tensor, number in left.items()]
        clocks = self._transitions.stage_ms(clocks, after)
        chain = chain_of(layers, candidate.dim, candidate.gpu_ratio)
        return IsolatedChain(chain, candidate.alone_ms, max(clocks))

    def _whole(self, tensor: str) -> int:
        shape = self.network.shapes[tensor]
        return self.costs.regions.one(shape, boxes.box(Region.whole(shape)))

    def plan(self, strategy: str, chains: Sequence[IsolatedChain]) -> Plan:
        """The plan of some chains, with variants and the predicted latency."""
        return make_plan(
            self.network,
            self.cost,
            [isolated.chain for isolated in chains],
            strategy=strategy,
            sharing=self.sharing,
            costs=self.costs,
        )

    def _cuts(self, layers: Sequence[Layer]) -> list[tuple[Dim, float]]:
        """The cuts to try: H if all ops have rows, OC if later ops keep channels apart, N if all
        ops keep images apart.
        """
        first, *later = layers
        inner = RATIOS[1:-1]
        rows = all("H" in layer.op.dims and layer.op.output.h > 1 for layer in layers)
        alone = all(layer.op.carries_channels for layer in later)
        ratios: Mapping[Dim, Sequence[float]] = {
            "H": inner if rows else (),
            "OC": inner if "OC" in first.op.dims and alone else (),
            "N": image_ratios(layers),
        }
        return [("H", 0.0), ("H", 1.0), *((dim, r) for dim in self.dims for r in ratios[dim])]


def image_ratios(layers: Sequence[Layer]) -> list[float]:
    """The ratios that cut a chain of these layers between images; empty where none does."""
    images = {layer.op.output.n for layer in layers}
    if len(images) > 1 or not all("N" in layer.op.dims for layer in layers):
        return []
    (total,) = images
    return [count / total for count in range(1, total)]


def single_ops(search: ChainSearch) -> list[IsolatedChain]:
    """Each op as a chain of its own, at its best cut."""
    return [search.best([layer]) for layer in search.network.layers]


def greedy_chains(search: ChainSearch) -> list[IsolatedChain]:
    """The paper's Algorithm 1: extend a chain while that is faster than a new chain.

    Layers come in topological order, so each chain is a convex set of the graph.
    """
    chains: list[IsolatedChain] = []
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
