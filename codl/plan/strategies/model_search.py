"""Searches plans of several models, in this process or by workers.

A `ModelSearch` is one model with its strategy, and `search_models` returns a plan, a bound or an
error for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TypeAlias

from codl.errors import CodlError
from codl.frontend.models import BUILT_IN
from codl.ir import Network
from codl.ir.plan import Plan
from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits
from codl.measure.budget import Budget, Progress, no_progress
from codl.plan import op_placement
from codl.plan.op_placement import OpPlacement
from codl.plan.strategies import ideal
from codl.plan.strategies.base import STRATEGIES, Context, Strategy
from codl.plan.strategies.ideal import IdealLatency
from codl.predict import DEFAULT
from codl.predict.workers import Workers


@dataclass(frozen=True, kw_only=True)
class ModelSearch:
    """A model (its name or file) and its strategy; `ideal` computes only a bound.

    `on_device` is True where plans run on a device before one is taken. `network` is the model for
    a worker without the file, or the error of reading it.
    """

    model: str
    strategy: str
    batch: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    winograd: bool = True
    limits: GpuLimits = UNLIMITED
    on_device: bool = False
    network: Network | CodlError | None = field(default=None, repr=False)

    @property
    def planner(self) -> Strategy | None:
        """The strategy, None for `ideal`; raises `UnknownNameError` for an unknown one."""
        return None if self.strategy == ideal.NAME else STRATEGIES.find(self.strategy)

    def load(self) -> Network:
        """The network, with weights if plans run; raises `CodlError` where it cannot be read."""
        if isinstance(self.network, CodlError):
            raise self.network
        from codl.frontend.convert import load_network, load_structure

        load = load_network if self.on_device else load_structure
        return self.network or load(self.model, self.batch, self.shapes)

    def without_files(self) -> ModelSearch:
        """The search with its network, or with the error of reading it, for a worker elsewhere."""
        if self.model in BUILT_IN:
            return self
        try:
            return replace(self, network=self.load().structure)
        except CodlError as error:
            return replace(self, network=error)


@dataclass(frozen=True)
class FoundPlan:
    """A plan, the milliseconds to find it, and the placement of its ops."""

    plan: Plan
    search_ms: float
    placed: Sequence[OpPlacement]


@dataclass(frozen=True)
class FoundBound:
    """The paper's bound of a model."""

    model: str
    limit: IdealLatency


#: The result of a search; a `CodlError` says why a model has no plan.
SearchOutcome: TypeAlias = FoundPlan | FoundBound | CodlError


def search_models(
    searches: Sequence[ModelSearch],
    context: Context,
    workers: Workers = Workers(),
    *,
    budget: Budget | None = None,
    progress: Progress = no_progress,
) -> list[SearchOutcome]:
    """The outcomes of all searches, in their order; workers do not change them.

    One worker searches each model, and `progress` is called after each. Remote workers have no
    target to run plans on, and workers of a cluster have no dataset for bounds. A model that the
    budget or Ctrl-C left out has a `CodlError` as its outcome.
    """
    budget = budget or Budget()
    planners = [search.planner for search in searches]
    predictors = {DEFAULT, *(each.default_predictor for each in planners if each is not None)}
    context.preload(*predictors)
    ready = context if workers.are_here else context.portable(*predictors)
    done: dict[int, SearchOutcome] = {}
    # A generator: files are read while workers search earlier models.
    sent = (search if workers.have_files else search.without_files() for search in searches)
    with closing(workers.results(_outcome, ready, sent)) as results, budget.keeping(done):
        for at, outcome in budget.steps(results, progress, total=len(searches)):
            done[at] = outcome
    is_late = budget.ended == "budget"
    missing = CodlError("There was no time left for it." if is_late else "Ctrl-C came before it.")
    return [done.get(at, missing) for at in range(len(searches))]


def _outcome(context: Context, search: ModelSearch) -> SearchOutcome:
    context = replace(context, winograd=search.winograd, limits=search.limits)
    try:
        network, planner = search.load(), search.planner
        if planner is None:
            return FoundBound(network.name, ideal.bound(network, context.soc, context.dataset))
        start = perf_counter()
        plan = planner.plan(network, context)
        search_ms = 1e3 * (perf_counter() - start)
        cost = context.default_cost(network)
        return FoundPlan(plan, search_ms, op_placement.predicted(network, plan, context.soc, cost))
    except CodlError as error:
        return error
