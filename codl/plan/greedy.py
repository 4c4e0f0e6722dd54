"""Single ops at their best splits, and the paper's Algorithm 1, which makes chains of them."""

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

#: Ratios that a search tries; the ends are one processor alone.
RATIOS = tuple(i / 20 for i in range(21))
_NEVER: Pair = (inf, inf)


@dataclass(frozen=True)
class IsolatedChain:
    """A chain, what its shards' ops take alone, and its latency with the sharing at its ends."""

    chain: Chain
    alone_ms: Pair
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
        """The fastest dimension and ratio of a chain, one processor alone included.

        On the CPU, and never done, where no processor has variants for all of it.
        """
        key = tuple(layer.name for layer in layers)
        if key not in self._best:
            for chain in self._evaluate([(layers, *cut) for cut in self._cuts(layers)]):
                self._keep(chain)
        return self._best.get(key) or IsolatedChain(chain_of(layers, "H", 0.0), _NEVER, inf)

    def _keep(self, new: IsolatedChain) -> None:
        """Note a chain where it is the fastest of its layers."""
        fastest = self._best.get(new.chain.ops)
        if fastest is None or new.latency_ms < fastest.latency_ms:
            self._best[new.chain.ops] = new

    def at(self, layers: Sequence[Layer], dim: Dim, gpu_ratio: float) -> IsolatedChain:
        """A chain at one of the ratios; never done where a processor has no variant for it."""
        never = IsolatedChain(chain_of(layers, dim, gpu_ratio), _NEVER, inf)
        return next(iter(self._evaluate([(layers, dim, gpu_ratio)])), never)

    def _evaluate(self, cuts: Sequence[tuple[Sequence[Layer], Dim, float]]) -> list[IsolatedChain]:
        """Those that both processors have variants for, in order."""
        walks = []
        for layers, dim, ratio in cuts:
            start = self._numbers[layers[0].name]
            step = self._ratios.index(ratio)
            walks.append(Walk(start + len(layers), dim, step, frozenset([start])))
        candidates = self.costs.evaluate(walks)
        self._transitions.prefetch(candidates)
        return [self._isolated(candidate) for candidate in candidates]

    def _isolated(self, candidate: CandidateChain) -> IsolatedChain:
        """A chain between tensors that are whole on the CPU."""
        supply, name_of = self._transitions.supply, self.costs.tensor
        layers = self.network.layers[candidate.start : candidate.stop]
        before = []
        for seen, side, need in candidate.reads:
            tensor = name_of(candidate.start, seen)
            is_held = side == 0 or tensor in self._constants
            before.append(supply(side, self._whole(tensor) if is_held else NONE, need))
        clocks = self._transitions.stage_ms(START, before, candidate)
        left: dict[str, int] = {}
        for seen, side, number in candidate.leaves:
            tensor = name_of(candidate.start, seen)
            left.setdefault(tensor, NONE)
            if side == 0:
                left[tensor] = number
        after = [supply(0, number, self._whole(tensor)) for tensor, number in left.items()]
        clocks = self._transitions.stage_ms(clocks, after)
        chain = chain_of(layers, candidate.dim, candidate.gpu_ratio)
        return IsolatedChain(chain, candidate.alone_ms, max(clocks))

    def _whole(self, tensor: str) -> int:
        shape = self.network.shapes[tensor]
        return self.costs.regions.one(shape, boxes.box(Region.whole(shape)))

    def plan(self, strategy: str, chains: Sequence[IsolatedChain]) -> Plan:
        """A plan of chosen chains, with the variants and the predicted latency of the whole."""
        return make_plan(
            self.network,
            self.cost,
            [isolated.chain for isolated in chains],
            strategy=strategy,
            sharing=self.sharing,
            costs=self.costs,
        )

    def _cuts(self, layers: Sequence[Layer]) -> list[tuple[Dim, float]]:
        """Cuts to try: H where every op has rows to cut, OC where no later op mixes channels.

        Whole images where none mixes them.
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
    """The ratios at which a chain of these can be cut between images; none where it cannot."""
    images = {layer.op.output.n for layer in layers}
    if len(images) > 1 or not all("N" in layer.op.dims for layer in layers):
        return []
    (total,) = images
    return [count / total for count in range(1, total)]


def single_ops(search: ChainSearch) -> list[IsolatedChain]:
    """Every op as a chain of its own, at its best dimension and ratio."""
    return [search.best([layer]) for layer in search.network.layers]


def greedy_chains(search: ChainSearch) -> list[IsolatedChain]:
    """The paper's Algorithm 1: lengthen a chain as long as that is faster than to begin another.

    Layers are walked in topological order, so that every chain is a convex set of the graph.
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
