"""Plans of several models, one for each; a model is what workers share out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from time import perf_counter
from typing import TypeAlias

from codl.errors import CodlError
from codl.frontend.models import BUILT_IN
from codl.ir import Network
from codl.ir.plan import Plan
from codl.measure.budget import Budget, Progress, no_progress
from codl.plan import op_placement
from codl.plan.op_placement import OpPlacement
from codl.predict import DEFAULT
from codl.records.gpu_limits import UNLIMITED, GpuLimits
from codl.strategies import ideal
from codl.strategies.base import STRATEGIES, Context, Strategy
from codl.strategies.ideal import IdealLatency
from codl.workers import Workers


@dataclass(frozen=True, kw_only=True)
class ModelSearch:
    """A model (its name or file) and how it is planned; by `ideal` only its bound is computed.

    `on_device` where plans run on a device before one is taken. `network` is what was read of a
    model's file for a worker that does not have the file, or the error of reading it.
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
        """The strategy, None for the bound; raises `UnknownNameError` for another name."""
        return None if self.strategy == ideal.NAME else STRATEGIES.find(self.strategy)

    def load(self) -> Network:
        """The model, with weights if it is run; raises `CodlError` where it cannot be read."""
        if isinstance(self.network, CodlError):
            raise self.network
        from codl.frontend.convert import load_network, load_structure

        load = load_network if self.on_device else load_structure
        return self.network or load(self.model, self.batch, self.shapes)

    def without_files(self) -> ModelSearch:
        """The same for where the model's file is not: built-in models are described anywhere."""
        return self if self.model in BUILT_IN else self.read()

    def read(self) -> ModelSearch:
        """The same with its network, or why there is none."""
        try:
            return replace(self, network=self.load().structure)
        except CodlError as error:
            return replace(self, network=error)


@dataclass(frozen=True)
class FoundPlan:
    """A plan, the milliseconds that it took to find, and where every op of it runs."""

    plan: Plan
    search_ms: float
    placed: Sequence[OpPlacement]


@dataclass(frozen=True)
class FoundBound:
    """The paper's bound of a model."""

    model: str
    limit: IdealLatency


#: What a search comes to: a `CodlError` says why a model has no plan.
SearchOutcome: TypeAlias = FoundPlan | FoundBound | CodlError


def search_models(
    searches: Sequence[ModelSearch],
    context: Context,
    workers: Workers = Workers(),
    *,
    budget: Budget | None = None,
    progress: Progress = no_progress,
) -> list[SearchOutcome]:
    """What each search comes to, in their order: the same whoever the workers are.

    Each model is searched by one worker; `progress` hears of each. Workers elsewhere have no target
    to run plans on, and those of a cluster no dataset to compute a bound from. For a model that
    there was no time left for, or that Ctrl-C came before, it is a `CodlError` that says so.
    """
    budget = budget or Budget()
    planners = [search.planner for search in searches]
    predictors = {
        DEFAULT,
        *(planner.default_predictor for planner in planners if planner is not None),
    }
    context.preload(*predictors)
    ready = context if workers.are_here else context.portable(*predictors)
    done: dict[int, SearchOutcome] = {}
    # Files are read while others are at work.
    sent = (
        search if workers.have_files else search.without_files() for search in _read_once(searches)
    )
    with (
        closing(workers.results(_outcome, ready, sent)) as results,
        budget.keeping(done),
    ):
        for at, outcome in budget.steps(results, progress, total=len(searches)):
            done[at] = outcome
    is_late = budget.ended == "budget"
    missing = CodlError("There was no time left for it." if is_late else "Ctrl-C came before it.")
    return [done.get(at, missing) for at in range(len(searches))]


def _read_once(searches: Sequence[ModelSearch]) -> Iterator[ModelSearch]:
    """The same, where a model that strategies in a row are to plan is read once."""
    for _, group in groupby(
        searches, key=lambda search: (search.model, search.batch, search.shapes)
    ):
        same = [*group]
        if len(same) > 1 and not any(search.on_device for search in same):
            network = same[0].read().network
            same = [replace(search, network=network) for search in same]
        yield from same


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
