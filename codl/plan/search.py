"""Search methods by name, and the plan that each finds."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, lcm, prod
from threading import Lock
from typing import Literal, NamedTuple, TypeAlias, get_args

from codl.errors import CodlError, UnknownNameError
from codl.ir import Layer, Network, Region
from codl.ir.network import terms_at, terms_of, views_of, with_sums
from codl.ir.ops.matmul_terms import TERMS, Terms
from codl.ir.ops.norm import Norm
from codl.ir.plan import Chain, Plan
from codl.ir.region import Span
from codl.ir.types import PROCESSORS
from codl.lower.partition import partition_plan
from codl.plan.beam_search import LATENCY, Objective, every_plan, fastest
from codl.plan.build_plan import chain_of, make_plan, unless_alone
from codl.plan.candidates import STEPS, Candidates
from codl.plan.chain_costs import CandidateChain, ChainCosts
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered, uncovered
from codl.plan.greedy import ChainSearch, greedy_chains, image_ratios, single_ops

#: `serial`: every op a chain of its own. `greedy`: the paper's Algorithm 1. `dp`: a beam search,
#: exact where a network has few chains. `exhaustive`: every chain at every ratio; for a few ops.
Method: TypeAlias = Literal["serial", "greedy", "dp", "exhaustive"]
#: More layers than this have too many plans to look at each.
FEW = 5
#: Latencies that differ by less than this part are equal, but for rounding.
CLOSE = 1e-5


def search(
    network: Network,
    cost: CostModel,
    strategy: str,
    *,
    method: str = "dp",
    objective: Objective = LATENCY,
    may_be_alone: bool = False,
) -> Plan:
    """The plan that a method finds best, predicted; transfers are of what is missing only.

    `method` is one of `METHODS`. Of plans of least latency it is one processor's, if it
    `may_be_alone`, where two are predicted to gain next to nothing. Raises `UnknownNameError` for
    another method, and `CodlError` where the network has too many layers for `exhaustive`, where a
    method knows no objective but latency, or where no plan keeps within the memory limit.
    """
    if method not in METHODS:
        raise UnknownNameError("search method", method, METHODS)
    with NO_COLLECTION:
        cost = covered(cost, network)
        if not objective.is_latency:
            return _for_objective(network, cost, strategy, method, objective)
        best, costs = _fastest_option(network, cost, strategy, method)
        if cost.places.cuts:  # those of another plan, and its partial sums, are followed
            return best
        if method == "dp" and cost.rules.adds_terms:
            best = _with_partial_sums(best, network, cost)
        # What one processor gains in one step, it may lose in those that have weights with it.
        may_be_alone = may_be_alone and not cost.places.once
        return unless_alone(best, network, cost, costs) if may_be_alone else best


def _with_partial_sums(plan: Plan, network: Network, cost: CostModel) -> Plan:
    """The plan, or one with some of its products as partial sums where that is faster."""
    sums = sums_of(network, plan, cost)
    written = with_sums(network, sums)
    cost = covered(uncovered(cost), written) if sums else cost
    if not sums or not _does_sums(written, cost):
        return plan
    found, _ = _fastest_option(written, cost, plan.strategy, "dp")
    if (found.predicted_ms or 0.0) >= (plan.predicted_ms or 0.0):
        return plan
    method = f"{found.method}, partial sums"
    return replace(found.restored(network, sums), method=method)


def _fastest_option(
    network: Network, cost: CostModel, strategy: str, method: str
) -> tuple[Plan, ChainCosts]:
    """The fastest plan of a method's options, and the costs of its chains."""
    best, best_ms, costs = None, inf, None
    for option in METHODS[method](network, cost):
        if best is not None and best_ms <= option.least_ms * (1 + CLOSE):
            continue
        plan = option.plan(network, cost, strategy)
        if best is None or (plan.predicted_ms or 0.0) < best_ms:
            best, best_ms, costs = plan, plan.predicted_ms or 0.0, option.costs
    assert best is not None
    assert costs is not None
    return best, costs


def _does_sums(network: Network, cost: CostModel) -> bool:
    """Whether some processor is known to add the terms of a network's partial sums."""
    terms = {layer.output for layer in network.layers if layer.op.sets_cut}
    adds = {layer.op for layer in network.layers if not terms.isdisjoint(layer.inputs)}
    return all(min(cost.fastest_ms([op], side)[0] for side in PROCESSORS) < inf for op in adds)


class _NoCollection:
    """A search makes a hundred thousand small objects and no cycles of them.

    Python would look for such again and again, each time through all objects of the libraries too:
    that took up to half of a search. Searches of several threads end it together: the last one has
    the collector as the first one found it.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._was_enabled = Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._was_enabled:
                gc.enable()


NO_COLLECTION = _NoCollection()


def _for_objective(
    network: Network, cost: CostModel, strategy: str, method: str, objective: Objective
) -> Plan:
    if method != "dp":
        raise CodlError(
            f"The search {method!r} looks at latency alone; energy and memory limits want `dp`."
        )
    candidates = Candidates(network, cost)
    best = fastest(candidates, objective=objective)
    if not best.chains:
        raise CodlError(
            f"No plan of {network.name!r} keeps its weights within {objective.memory_limit} bytes "
            f"(the model's own are {_weights(network)})."
        )
    how = f"dp for {objective.goal}, {'exact' if best.exact else 'widest labels only'}"
    option = _Option(_joined(network, _merged(network, best.chains)), how, candidates.costs)
    return replace(option.plan(network, cost, strategy), predicted_mj=best.energy_mj)


def _weights(network: Network) -> int:
    """Bytes of all weights, which need not be there."""
    shapes = [shape for layer in network.layers for shape in layer.op.weight_shapes.values()]
    return sum(4 * prod(shape) for shape in shapes)


class _Option(NamedTuple):
    """Chains to make a plan of, how they were found, and what such chains cost.

    `least_ms` is what the plan takes at least, as far as that is known before it is made.
    """

    chains: list[Chain]
    method: str
    costs: ChainCosts
    least_ms: float = 0.0

    def plan(self, network: Network, cost: CostModel, strategy: str) -> Plan:
        return make_plan(
            network,
            cost,
            self.chains,
            strategy=strategy,
            sharing="missing",
            method=self.method,
            costs=self.costs,
        )


def _serial(network: Network, cost: CostModel) -> Iterable[_Option]:
    search = ChainSearch(network, cost, "missing")
    yield _Option([one.chain for one in single_ops(search)], "serial", search.costs)


def _greedy(network: Network, cost: CostModel) -> Iterable[_Option]:
    search = ChainSearch(network, cost, "missing")
    yield _Option([one.chain for one in greedy_chains(search)], "greedy", search.costs)
    yield from _whole_images(network, cost)


def _dp(network: Network, cost: CostModel) -> Iterable[_Option]:
    candidates = Candidates(network, cost)
    best = fastest(candidates)
    if not best.chains:
        raise CodlError(
            f"No plan of {network.name!r} has its weights on one processor each, where another "
            "plan has them: let it have them anywhere."
        )
    how = "dp, exact" if best.exact else "dp, widest labels only"
    if cost.rules.merges:
        yield _Option(_joined(network, _merged(network, best.chains)), how, candidates.costs)
    apart = _joined(network, [[chain] for chain in best.chains])
    yield _Option(apart, how, candidates.costs, best.latency_ms)
    yield from _whole_images(network, cost)


def _whole_images(network: Network, cost: CostModel) -> Iterable[_Option]:
    """The whole network as one chain, with some images on either processor, in the best ways.

    Whole images share nothing on their way through a network, which no search that looks at one
    chain after another, or at the best cuts of single ops, need find.
    """
    ratios = image_ratios(network.layers)
    if not ratios:
        return
    search = ChainSearch(network, cost, "missing")
    chains = [search.at(network.layers, "N", ratio) for ratio in ratios]
    for chain in sorted(chains, key=lambda chain: chain.latency_ms)[: cost.rules.image_splits]:
        if chain.latency_ms < inf:
            yield _Option([chain.chain], "whole images", search.costs)


def _exhaustive(network: Network, cost: CostModel) -> Iterable[_Option]:
    if len(network.layers) > FEW:
        raise CodlError(
            f"An exhaustive search is for networks of at most {FEW} ops; {network.name!r} has "
            f"{len(network.layers)}. `--search dp` finds the same where it says `exact`."
        )
    candidates = Candidates(network, cost, complete=True)
    best = every_plan(candidates)
    chains = _joined(network, [[chain] for chain in best.chains])
    yield _Option(chains, "exhaustive", candidates.costs)


METHODS: Mapping[str, Callable[[Network, CostModel], Iterable[_Option]]] = dict(
    zip(get_args(Method), (_serial, _greedy, _dp, _exhaustive), strict=True)
)


def _joined(network: Network, groups: Sequence[Sequence[CandidateChain]]) -> list[Chain]:
    return [
        chain_of(network.layers[own[0].start : own[-1].stop], own[0].dim, own[0].gpu_ratio)
        for own in groups
    ]


def _merged(network: Network, chains: Sequence[CandidateChain]) -> list[list[CandidateChain]]:
    """Neighbours that may as well be one chain: on the same processor, or of the same images.

    Partial sums end a chain: behind them the terms are shared.
    """
    groups: list[list[CandidateChain]] = []
    for chain in chains:
        alike = chain.gpu_ratio in (0.0, 1.0) or chain.dim == "N"
        last = groups[-1][-1] if groups else None
        ends = last is not None and network.layers[last.stop - 1].op.sets_cut
        if last and alike and not ends and _cut(last) == _cut(chain):
            groups[-1].append(chain)
        else:
            groups.append([chain])
    return groups


def _cut(chain: CandidateChain) -> tuple[str, float]:
    """Where a chain is cut; on one processor its dimension means nothing."""
    both = 0 < chain.gpu_ratio < 1
    return (chain.dim if both else "", chain.gpu_ratio)


def sums_of(network: Network, plan: Plan, cost: CostModel) -> dict[str, int]:
    """The products whose features a plan has by columns on both, and how many are the GPU's.

    That is as the plan has it, to a step of a search, where both terms take the same time. There
    are none of products that one processor does faster alone, and of those that make such features.
    """
    shares = _shares(network, plan, cost)
    makers = {layer.output: layer for layer in network.layers}
    cuts: dict[Terms, int | None] = {}
    found: dict[str, int] = {}
    by_columns: set[str] = set()
    for layer in reversed(network.layers):
        if layer.name in by_columns:
            continue
        terms = next(_terms_cut(layer, makers, shares), None)
        if terms is not None:
            if terms not in cuts:
                cuts[terms] = _balanced(terms, cost)
            cut = cuts[terms]
            if cut is not None and terms_of(layer, makers, cut) is not None:
                found[layer.name] = cut
                by_columns.update(_makers_of(layer, makers))
    return found


def _makers_of(layer: Layer, makers: Mapping[str, Layer]) -> set[str]:
    """The products that make the features of one, with nothing between that mixes them."""
    found, left, seen = set(), [*layer.inputs], set(layer.inputs)
    while left:
        maker = makers.get(left.pop())
        if maker is not None and maker.op.kind in TERMS:
            found.add(maker.name)
        elif maker is not None and maker.op.kind != Norm.kind:
            left += [name for name in maker.inputs if name not in seen]
            seen.update(maker.inputs)
    return found


def _shares(network: Network, plan: Plan, cost: CostModel) -> Mapping[str, tuple[Region, Region]]:
    """What the CPU and the GPU compute of every tensor that both compute a part of."""
    return {
        name: (segment.cpu.outputs[name], region)
        for segment in partition_plan(network, plan, cost.soc).segments
        for name, region in segment.gpu.outputs.items()
        if name in segment.cpu.outputs
    }


def _terms_cut(
    layer: Layer, makers: Mapping[str, Layer], shares: Mapping[str, tuple[Region, Region]]
) -> Iterator[Terms]:
    """The terms of a product whose features are cut as both processors have them."""
    for name, shape in views_of(layer, makers):
        axis = terms_at(layer, shape, 0).depth_axis
        if name in shares and axis is not None:
            cpu, gpu = (region[axis] for region in shares[name])
            if gpu == Span(0, cpu.start) and cpu.stop == shape[axis]:
                step = terms_at(layer, shape, 0).k // shape[axis]
                yield terms_at(layer, shape, cpu.start * step)


def _balanced(terms: Terms, cost: CostModel) -> int | None:
    """Where to cut, near where terms are cut, so that the slower one takes least.

    None where one processor alone takes less.
    """
    step = lcm(terms.cut_step, cost.soc.gpu.vector_width)
    reach = terms.k // (2 * STEPS)
    places = {round(terms.cut / step) * step}
    places.update(range(-(-(terms.cut - reach) // step) * step, terms.cut + reach + 1, step))
    inner = sorted(place for place in places if 0 < place < terms.k)
    ops = [terms.term_of(place) for place in inner], [terms.term_of(terms.k - p) for p in inner]
    taken = zip(cost.fastest_ms(ops[1], "cpu"), cost.fastest_ms(ops[0], "gpu"), strict=True)
    slower = zip((max(pair) for pair in taken), inner, strict=True)
    least_ms, place = min(slower, default=(inf, 0))
    alone_ms = min(cost.fastest_ms([terms.whole], side)[0] for side in PROCESSORS)
    return place if least_ms < alone_ms else None
