"""Searches the plan of a network over all sequences of candidate chains.

`Candidates` predicts single ops near the ratio that balances both processors. Their latencies
decide which longer chains are evaluated, at which dimensions and ratios. `Recuts` has the chains of
a given plan at finer ratios, and `recut` searches the ratios of that plan again.

`ChainSearch` finds the best cut of some layers as one chain, whose inputs and outputs lie whole on
the CPU. `single_ops` cuts each op by itself, and `greedy_chains` joins ops to chains as the paper's
Algorithm 1 does. The strategies `codl-paper` and `mulayer` plan by them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from codl.ir import Dim, Layer, Network, Region
from codl.ir.ops.base import AXES
from codl.ir.plan import Chain, Plan, Sharing
from codl.plan.beam_search import START, Transitions, fastest
from codl.plan.build_plan import chain_of
from codl.plan.chain_costs import CandidateChain, ChainCosts
from codl.plan.cost_model import CostModel, Milliseconds, Pair
from codl.plan.coverage import covered
from codl.plan.parts import NONE, Numbers, Walk, box
from codl.plan.predicted_plan import make_plan, one_processor, unless_alone

#: The labels that are extended at a point in a search over the ratios of a plan's chains.
RECUT_LABELS = 32
#: The splits of a whole batch that are planned in full, the fastest ones.
IMAGE_SPLITS = 3
#: Ratios are tried in steps of 1/20, or of one image in larger batches; 0 and 1 are one processor.
STEPS = 20
#: `Recuts` tries ratios in steps of 1/160, up to 12 steps on either side.
FINE_STEPS, REACH = 160, 12
#: Steps on either side of the balanced ratio that are tried for a chain.
NEAR = 1
#: Steps at which single ops are predicted, from the ratio that balances linear latencies.
AROUND = (-6, -3, -1, 0, 1, 3, 6)
#: The most layers of a chain on both processors.
LONGEST = 24
#: Lengths of chains on one processor that do not end with the network.
LENGTHS = (1, 4)
#: Chains that take more than this many times the sum of their ops' best latencies are left out.
MOST_LOSS = 1.3
#: The ratios to try; 0 and 1 are one processor.
RATIOS = tuple(i / 20 for i in range(21))
_NEVER: Pair = (inf, inf)


class Candidates:
    """The candidate chains of one network; `starting` lists them by their first layer.

    Ratios are near the balanced one, and chains lose little compared with single ops. A chain is a
    run of layers in topological order, which is always a convex set of the graph.
    """

    def __init__(self, network: Network, cost: CostModel, *, steps: int = STEPS) -> None:
        self._layers = network.layers
        self._last = max(steps, *(layer.op.images for layer in network.layers))
        ratios = [step / self._last for step in range(self._last + 1)]
        self.costs = ChainCosts(network, cost, ratios)
        self._table = self.costs.table
        self.starting: list[list[CandidateChain]] = [[] for _ in self._layers]
        for candidate in self.costs.evaluate([*self._walks()], limited=True):
            self.starting[candidate.start].append(candidate)

    def _walks(self) -> Iterator[Walk]:
        yield from self._single()
        yield from self._split()

    # Cuts of single ops, which bound what chains can gain.

    @cached_property
    def _steps(self) -> list[dict[Dim, tuple[int, ...]]]:
        """By layer and dimension, the inner steps at which it may be cut; of images, few steps."""
        of_op: list[dict[Dim, tuple[int, ...]]] = []
        last, every = self._last, tuple(range(1, self._last))
        for op in self._table.ops:
            images = op.output.n
            between = sorted({round(last * k / images) for k in range(1, images)} - {0, last})
            dims = [dim for dim in op.dims if dim != "H" or op.output.h > 1]
            of_op.append({dim: tuple(between) if dim == "N" else every for dim in dims})
        return [of_op[op] for op in self._table.op_of]

    @cached_property
    def _whole_ms(self) -> Milliseconds:
        """Milliseconds of whole layers by processor, (2, layers); infinite without a variant."""
        table = self._table
        whole = self._cut_parts({(op, "H"): [0] for op in range(len(table.ops))})[:, 0]
        latencies = np.array([table.fastest_ms(whole, side) for side in (0, 1)])
        return latencies[:, table.op_of]

    def _cut_parts(self, cuts: Mapping[tuple[int, Dim], Sequence[int]]) -> Numbers:
        table, counts = self._table, [len(steps) for steps in cuts.values()]
        shares = [table.shares(op)[table.cut(dim, np.array(steps, np.int64))]
                  for (op, dim), steps in cuts.items()]  # fmt: skip
        ops = np.array([op for op, _ in cuts], np.int64)
        wanted = np.concatenate([np.empty((0, 2, 6), np.int64), *shares])
        return table.of(np.repeat(ops, counts), wanted)

    @cached_property
    def _alone(self) -> Mapping[Dim, Milliseconds]:
        """By dimension, milliseconds of both shards of each layer; (2, layers, steps + 1).

        Latencies are predicted near the balanced step and interpolated between; they only decide
        which chains become candidates. Steps without a value are infinite, except the two ends.
        """
        table, last = self._table, self._last
        cuts: dict[tuple[int, Dim], list[int]] = {}
        for k, op in enumerate(table.op_of):
            for dim, steps in self._steps[k].items():
                if (op, dim) not in cuts:
                    cuts[op, dim] = self._predicted_steps(k, dim, steps)
        asked = self._cut_parts(cuts)
        latencies = np.array([table.fastest_ms(asked[:, side], side) for side in (0, 1)])
        by_dim = {dim: np.full((2, len(table.ops), last + 1), np.inf) for dim in AXES}
        first = 0
        for (op, dim), cut in cuts.items():
            cut_ms = latencies[:, first : first + len(cut)]
            first += len(cut)
            if cut:
                inner = np.arange(cut[0], cut[-1] + 1)
                for side in (0, 1):
                    by_dim[dim][side, op, inner] = np.interp(inner, cut, cut_ms[side])
        for dim, by_op in by_dim.items():
            by_dim[dim] = alone = by_op[:, table.op_of]
            alone[0, :, 0], alone[1, :, 0] = self._whole_ms[0], 0.0
            alone[0, :, last], alone[1, :, last] = 0.0, self._whole_ms[1]
        return by_dim

    def _predicted_steps(self, k: int, dim: Dim, steps: tuple[int, ...]) -> list[int]:
        """The steps at which a layer is predicted: near balance, or all where that is unknown."""
        cpu_ms, gpu_ms = self._whole_ms[:, k]
        if dim == "N" or not 0 < cpu_ms + gpu_ms < np.inf:
            return list(steps)  # unmeasured ops of a replayed SoC take 0 on both processors
        middle = round(self._last * cpu_ms / (cpu_ms + gpu_ms))
        return sorted({middle + d for d in AROUND}.intersection(steps))

    @cached_property
    def _best_ms(self) -> Milliseconds:
        slower = [np.max(alone, axis=0).min(axis=1) for alone in self._alone.values()]
        return np.asarray(np.min(slower, axis=0))

    # Walks of chains on one processor, and on both.

    def _single(self) -> Iterator[Walk]:
        able = np.isfinite(self._whole_ms)
        for stop in range(1, len(self._layers) + 1):
            for side, step in ((0, 0), (1, self._last)):
                starts: set[int] = set()
                for start in reversed(range(stop)):
                    if not able[side, start]:
                        break
                    if stop == len(self._layers) or stop - start in LENGTHS:
                        starts.add(start)
                    elif stop - start > LENGTHS[-1]:
                        break
                if starts:
                    yield Walk(stop, "H", step, frozenset(starts))

    def _split(self) -> Iterator[Walk]:
        for stop in range(1, len(self._layers) + 1):
            yield from self._different(
                Walk(stop, dim, step, frozenset(starts))
                for dim in AXES
                for step, starts in self._starts_by_step(stop, dim).items()
            )

    def _different(self, walks: Iterator[Walk]) -> Iterator[Walk]:
        seen: set[tuple[Dim, tuple[int, ...]]] = set()
        for walk in walks:
            ops = self._table.op_of[min(walk.starts) : walk.stop]
            places = tuple(self._table.cuts(op, walk.dim)[walk.step] for op in ops)
            if (walk.dim, places) not in seen:
                seen.add((walk.dim, places))
                yield walk

    def _starts_by_step(self, stop: int, dim: Dim) -> dict[int, set[int]]:
        """By step, the first layers of promising chains that end at `stop`."""
        inner = self._steps[stop - 1].get(dim, ())
        starts = self._starts(stop, dim, inner)
        if not inner or not starts:
            return {}
        sums = np.cumsum(self._alone[dim][:, starts], axis=1)
        slower = sums.max(axis=0)[:, inner]
        least, best = slower.argmin(axis=1), np.cumsum(self._best_ms[starts])
        worth = slower.min(axis=1) <= MOST_LOSS * best
        by_step: dict[int, set[int]] = {}
        for at, start in enumerate(starts):
            near = int(least[at])
            for step in inner[max(0, near - NEAR) : near + NEAR + 1] if worth[at] else ():
                by_step.setdefault(step, set()).add(start)
        return by_step

    def _starts(self, stop: int, dim: Dim, inner: tuple[int, ...]) -> list[int]:
        """The first layers of chains that end at `stop` and can be cut at the steps `inner`."""
        starts: list[int] = []
        for start in range(stop - 1, max(-1, stop - 1 - LONGEST), -1):
            if self._steps[start].get(dim) != inner:
                break
            starts.append(start)
            if dim == "OC" and not self._layers[start].op.carries_channels:
                break
        return starts


class Recuts(Candidates):
    """The chains of a plan at ratios around their own, in steps of 1 / `FINE_STEPS`.

    Chains keep their layers and dimension; chains on one processor stay there.
    """

    def __init__(self, network: Network, cost: CostModel, chains: Sequence[Chain]) -> None:
        self._chains = chains
        super().__init__(network, cost, steps=FINE_STEPS)

    def _walks(self) -> Iterator[Walk]:
        last, stop = self._last, 0
        for chain in self._chains:
            start, stop = stop, stop + len(chain.ops)
            step, steps = round(last * chain.gpu_ratio), [round(last * chain.gpu_ratio)]
            if 0 < chain.gpu_ratio < 1:
                steps = [*range(max(1, step - REACH), min(last - 1, step + REACH) + 1)]
            starts = frozenset([start])
            yield from self._different(Walk(stop, chain.dim, near, starts) for near in steps)


def search(network: Network, cost: CostModel, strategy: str, *, may_be_alone: bool = False) -> Plan:
    """The plan that is predicted fastest; only missing regions are transferred.

    With `may_be_alone`, the plan uses one processor where two are predicted to gain little. Raises
    `UnsupportedError` for an op without a kernel variant.
    """
    with no_collection():
        cost = covered(cost, network)
        candidates = Candidates(network, cost)
        best = fastest(candidates.costs, candidates.starting)
        if not best.chains:
            # An op has no variant on either processor: this raises an error that names the op.
            one_processor(network, cost, "cpu", strategy="")
        plan = make_plan(
            network,
            cost,
            _chains(network, best.chains),
            strategy=strategy,
            sharing="missing",
            method=f"dp, {'exact' if best.exact else 'widest labels only'}",
            costs=candidates.costs,
        )
        # The first one of plans that differ by rounding only.
        plans = [(plan, candidates.costs), *_whole_images(network, cost, strategy)]
        plan, costs = min(plans, key=lambda pair: float(f"{pair[0].predicted_ms:.6g}"))
        plan = recut(plan, network, cost)
        return unless_alone(plan, network, cost, costs) if may_be_alone else plan


def recut(plan: Plan, network: Network, cost: CostModel) -> Plan:
    """The plan with the ratios of its chains searched again in finer steps.

    Chains and dimensions stay. Returns the plan itself where that gains nothing.
    """
    if all(chain.gpu_ratio in (0, 1) for chain in plan.chains):
        return plan
    with no_collection():
        cost = covered(cost, network)
        candidates = Recuts(network, cost, plan.chains)
        best = fastest(candidates.costs, candidates.starting, plan.sharing, widest=RECUT_LABELS)
        if not best.chains:
            return plan
        moved = make_plan(
            network,
            cost,
            _chains(network, best.chains),
            strategy=plan.strategy,
            sharing=plan.sharing,
            method=plan.method,
            costs=candidates.costs,
        )
    return min(plan, moved, key=lambda each: each.predicted_ms or inf)


@contextmanager
def no_collection() -> Iterator[None]:
    """Context manager that pauses Python's garbage collector during searches.

    A search makes a hundred thousand objects without cycles, and collections took up to half of its
    time. Of several searches in threads, the first one restores the collector.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _chains(network: Network, candidates: Iterable[CandidateChain]) -> list[Chain]:
    return [chain_of(network.layers[x.start : x.stop], x.dim, x.gpu_ratio) for x in candidates]


def _whole_images(
    network: Network, cost: CostModel, strategy: str
) -> Iterator[tuple[Plan, ChainCosts]]:
    """Plans of the whole network as one chain, with some images of the batch on each processor.

    No data is shared between images. The beam search need not find such plans, because it extends
    chain by chain: without them MobileNetV2 with four images takes 1.16 times as long (predicted,
    docs/decisions.md).
    """
    ratios = image_ratios(network.layers)
    if not ratios:
        return
    search = ChainSearch(network, cost, "missing")
    chains = [search.at(network.layers, "N", ratio) for ratio in ratios]
    for chain in sorted(chains, key=lambda chain: chain.latency_ms)[:IMAGE_SPLITS]:
        if chain.latency_ms < inf:
            yield search.plan(strategy, [chain], method="whole images"), search.costs


# Chains one by one.


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
        self.costs = ChainCosts(network, self.cost, sorted({*RATIOS, *by_images}))
        self._transitions = Transitions(self.costs, sharing)
        self._numbers = {layer.name: number for number, layer in enumerate(network.layers)}
        self._constants = frozenset(network.constants)
        self._best: dict[tuple[str, ...], IsolatedChain] = {}
        singles = [[layer] for layer in network.layers]
        self._add([(layers, *cut) for layers in singles for cut in self._cuts(layers)])

    def best(self, layers: Sequence[Layer]) -> IsolatedChain:
        """The chain of some layers at its fastest dimension and ratio, or on one processor.

        The latency is infinite where no cut has variants for all parts.
        """
        key = tuple(layer.name for layer in layers)
        if key not in self._best:
            self._add([(layers, *cut) for cut in self._cuts(layers)])
        return self._best.get(key) or IsolatedChain(chain_of(layers, "H", 0.0), _NEVER, inf)

    def _add(self, cuts: Sequence[tuple[Sequence[Layer], Dim, float]]) -> None:
        """Evaluate chains, and keep the fastest one of each run of layers."""
        for new in self._evaluate(cuts):
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
            walks.append(self.costs.walk(start, start + len(layers), dim, ratio))
        candidates = self.costs.evaluate(walks)
        self._transitions.prefetch(candidates)
        return [self._isolated(candidate) for candidate in candidates]

    def _isolated(self, candidate: CandidateChain) -> IsolatedChain:
        transfer, named = self._transitions.region_transfer, self.costs.named
        layers = self.network.layers[candidate.start : candidate.stop]
        before = []
        for tensor, side, need in named(candidate.start, candidate.reads):
            is_held = side == 0 or tensor in self._constants
            before.append(transfer(side, self._whole(tensor) if is_held else NONE, need))
        clocks = self._transitions.stage_ms(START, before, candidate)
        writes = named(candidate.start, candidate.writes)
        held = {tensor: NONE for tensor, _, _ in writes}
        held |= {tensor: number for tensor, side, number in writes if side == 0}
        after = [transfer(0, number, self._whole(tensor)) for tensor, number in held.items()]
        clocks = self._transitions.stage_ms(clocks, after)
        chain = chain_of(layers, candidate.dim, candidate.gpu_ratio)
        return IsolatedChain(chain, candidate.alone_ms, max(clocks))

    def _whole(self, tensor: str) -> int:
        shape = self.network.shapes[tensor]
        return self.costs.regions.one(shape, box(Region.whole(shape)))

    def plan(self, strategy: str, chains: Sequence[IsolatedChain], method: str = "") -> Plan:
        """The plan of some chains, with variants and the predicted latency."""
        return make_plan(
            self.network,
            self.cost,
            [isolated.chain for isolated in chains],
            strategy=strategy,
            sharing=self.sharing,
            method=method,
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
        channels = "OC" in first.op.dims and alone
        ratios: Mapping[Dim, Sequence[float]] = {
            "H": inner if rows else (),
            "OC": inner if channels else (),
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
