"""Searches the plan of a network by one of several methods."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf, prod
from threading import Lock
from typing import Literal, NamedTuple, TypeAlias, get_args

from codl.errors import CodlError, UnknownNameError
from codl.ir import Network
from codl.ir.plan import Chain, Plan, Sharing
from codl.plan.beam_search import LATENCY, Objective, every_plan, fastest
from codl.plan.build_plan import chain_of, make_plan, unless_alone
from codl.plan.candidates import Candidates, Recuts
from codl.plan.chain_costs import CandidateChain, ChainCosts
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.greedy import ChainSearch, greedy_chains, image_ratios, single_ops

#: `serial`: each op is a chain. `greedy`: the paper's Algorithm 1. `dp`: beam search. `exhaustive`:
#: all chains at all ratios, for a few ops.
Method: TypeAlias = Literal["serial", "greedy", "dp", "exhaustive"]
#: The most layers for the exhaustive search.
FEW = 5
#: The labels that are extended at a point in a search over the ratios of a plan's chains.
RECUT_LABELS = 32
#: The splits of a whole batch that are planned in full, the fastest ones.
IMAGE_SPLITS = 3


def search(
    network: Network,
    cost: CostModel,
    strategy: str,
    *,
    method: str = "dp",
    objective: Objective = LATENCY,
    may_be_alone: bool = False,
) -> Plan:
    """The plan that a method predicts to be best; only missing regions are transferred.

    `method` is one of `METHODS`. With `may_be_alone`, the plan uses one processor where two are
    predicted to gain little. Raises `UnknownNameError` for another method, and `CodlError` where
    the network has too many layers for `exhaustive`, where the method supports only latency, or
    where no plan keeps the memory limit.
    """
    if method not in METHODS:
        raise UnknownNameError("search method", method, METHODS)
    if not objective.is_latency and method != "dp":
        raise CodlError(
            f"The method {method!r} minimises latency only; energy and memory limits need `dp`."
        )
    with NO_COLLECTION:
        cost = covered(cost, network)
        if not objective.is_latency:
            return _for_objective(network, cost, strategy, objective)
        plan, costs = _fastest_option(network, cost, strategy, method)
        if method == "dp" and not cost.places.once:
            plan = recut(plan, network, cost)
        # With weights once, a plan of one processor would constrain the plans of other steps.
        may_be_alone = may_be_alone and not cost.places.once
        return unless_alone(plan, network, cost, costs) if may_be_alone else plan


def recut(plan: Plan, network: Network, cost: CostModel) -> Plan:
    """The plan with the ratios of its chains searched again in finer steps.

    Chains and dimensions stay. Returns the plan itself where that gains nothing.
    """
    if all(chain.gpu_ratio in (0, 1) for chain in plan.chains):
        return plan
    with NO_COLLECTION:
        cost = covered(cost, network)
        candidates = Recuts(network, cost, plan.chains)
        best = fastest(candidates, plan.sharing, widest=RECUT_LABELS)
        if not best.chains:
            return plan
        option = _Option.of(network, best.chains, plan.method, candidates.costs)
        moved = option.plan(network, cost, plan.strategy, plan.sharing)
    return min(plan, moved, key=lambda each: each.predicted_ms or inf)


class _NoCollection:
    """Context manager that pauses Python's garbage collector during searches.

    A search makes a hundred thousand objects without cycles, and collections took up to half of its
    time. With searches in several threads, the last one to end restores the collector.
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


class _Option(NamedTuple):
    """The chains of a plan, the method that found them, and the costs of such chains."""

    chains: list[Chain]
    method: str
    costs: ChainCosts

    @classmethod
    def of(
        cls,
        network: Network,
        candidates: Iterable[CandidateChain],
        method: str,
        costs: ChainCosts,
    ) -> _Option:
        chains = [
            chain_of(network.layers[each.start : each.stop], each.dim, each.gpu_ratio)
            for each in candidates
        ]
        return cls(chains, method, costs)

    def plan(
        self, network: Network, cost: CostModel, strategy: str, sharing: Sharing = "missing"
    ) -> Plan:
        return make_plan(
            network,
            cost,
            self.chains,
            strategy=strategy,
            sharing=sharing,
            method=self.method,
            costs=self.costs,
        )


def _fastest_option(
    network: Network, cost: CostModel, strategy: str, method: str
) -> tuple[Plan, ChainCosts]:
    """The fastest plan that a method proposes, and the costs of its chains."""
    plans = [
        (option.plan(network, cost, strategy), option.costs)
        for option in METHODS[method](network, cost)
    ]
    # The first one of plans that differ by rounding only.
    return min(plans, key=lambda pair: float(f"{pair[0].predicted_ms:.6g}"))


def _serial(network: Network, cost: CostModel) -> Iterable[_Option]:
    search = ChainSearch(network, cost, "missing")
    yield _Option([single.chain for single in single_ops(search)], "serial", search.costs)


def _greedy(network: Network, cost: CostModel) -> Iterable[_Option]:
    search = ChainSearch(network, cost, "missing")
    yield _Option([isolated.chain for isolated in greedy_chains(search)], "greedy", search.costs)
    yield from _whole_images(network, cost)


def _dp(network: Network, cost: CostModel) -> Iterable[_Option]:
    candidates = Candidates(network, cost)
    best = fastest(candidates)
    if not best.chains:
        raise CodlError(
            f"No plan of {network.name!r} can hold each weight once, on the processor that the "
            "other step's plan gives it to. Plan without weights once."
        )
    yield _Option.of(network, best.chains, f"dp, {best.how}", candidates.costs)
    yield from _whole_images(network, cost)


def _whole_images(network: Network, cost: CostModel) -> Iterable[_Option]:
    """The whole network as one chain, with some images of the batch on each processor.

    No data is shared between images. The beam search need not find such plans, because it extends
    chain by chain: without them MobileNetV2 with four images takes 1.16 times as long (predicted,
    docs/decisions.md).
    """
    ratios = image_ratios(network.layers)
    if not ratios or "image-splits" in cost.off:
        return
    search = ChainSearch(network, cost, "missing")
    chains = [search.at(network.layers, "N", ratio) for ratio in ratios]
    for chain in sorted(chains, key=lambda chain: chain.latency_ms)[:IMAGE_SPLITS]:
        if chain.latency_ms < inf:
            yield _Option([chain.chain], "whole images", search.costs)


def _exhaustive(network: Network, cost: CostModel) -> Iterable[_Option]:
    if len(network.layers) > FEW:
        raise CodlError(
            f"The exhaustive search takes networks of at most {FEW} ops; {network.name!r} has "
            f"{len(network.layers)}. `--method dp` finds the same plan where it reports `exact`."
        )
    candidates = Candidates(network, cost, complete=True)
    chains = every_plan(candidates).chains
    yield _Option.of(network, chains, "exhaustive", candidates.costs)


METHODS: Mapping[str, Callable[[Network, CostModel], Iterable[_Option]]] = dict(
    zip(get_args(Method), (_serial, _greedy, _dp, _exhaustive), strict=True)
)


def _for_objective(network: Network, cost: CostModel, strategy: str, objective: Objective) -> Plan:
    candidates = Candidates(network, cost)
    best = fastest(candidates, objective=objective)
    if not best.chains:
        shapes = [shape for layer in network.layers for shape in layer.op.weight_shapes.values()]
        raise CodlError(
            f"No plan of {network.name!r} keeps its weights within {objective.memory_limit} bytes "
            f"(the model's own are {sum(4 * prod(shape) for shape in shapes)})."
        )
    method = f"dp for {objective.goal}, {best.how}"
    option = _Option.of(network, best.chains, method, candidates.costs)
    return replace(option.plan(network, cost, strategy), predicted_mj=best.energy_mj)
