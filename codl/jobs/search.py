"""`codl.search`: the plan of a model, or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any

from codl.errors import CodlError
from codl.ir.plan import PlanOrigin
from codl.ir.records import soc as socs
from codl.jobs import options as opt
from codl.jobs.model import ModelJob, adapted, profiling
from codl.jobs.options import Reporter, function, option, soc_on
from codl.measure.budget import Budget
from codl.plan.strategies import Context, ideal
from codl.plan.strategies.model_search import (
    FoundBound,
    FoundPlan,
    ModelSearch,
    SearchOutcome,
    search_models,
)
from codl.predict.workers import Workers
from codl.targets.connect import connect


@dataclass(frozen=True, kw_only=True)
class _SearchOptions(ModelJob):
    soc: opt.PlannedSocOption = "host"
    serial: Annotated[
        str | None,
        option(
            "--serial",
            "--on",
            help=f"The device on which plans run: {opt.SERIALS}. By default predictions decide, "
            f"and with --plan-time it is {opt.HERE}.",
            read=opt.known_serial,
        ),
    ] = None  # type: ignore[assignment]

    @property
    def where(self) -> str | None:
        """The device on which plans run; None where predictions decide."""
        return self.serial or (None if self.plan_time_s is None else opt.HERE)

    @property
    def runs_plans(self) -> bool:
        """Whether plans run, where the strategy runs any."""
        return self.profile and self.where is not None


@dataclass(frozen=True, kw_only=True)
class Search(_SearchOptions):
    """Search the plan of a model; the strategy `ideal` has only a bound.

    Plans run on the device `serial` while they gain, or for `plan_time_s` seconds; without both
    predictions decide. Raises `CodlError` without a plan.

    >>> found = codl.search("yolov2", soc="host")
    >>> found.plan.save("plan.json")
    """

    def run(self) -> FoundPlan | FoundBound:
        [outcome] = search_all([self])
        if isinstance(outcome, CodlError):
            raise outcome
        return outcome


@dataclass(frozen=True)
class SearchRun:
    """The outcome of every search by model, and what ended them."""

    soc: str
    outcomes: Mapping[str, SearchOutcome]
    budget: Budget

    @property
    def failed(self) -> dict[str, str]:
        every = self.outcomes.items()
        return {model: str(found) for model, found in every if isinstance(found, CodlError)}

    def to_json(self) -> dict[str, Any]:
        found = (each for each in self.outcomes.values() if not isinstance(each, CodlError))
        return {
            "soc": self.soc,
            "plans": [plan_result(each) for each in found],
            "failed": [{"model": model, "reason": text} for model, text in self.failed.items()],
            "stopped": self.budget.ended,
        }


@dataclass(frozen=True, kw_only=True)
class SearchModels(_SearchOptions):
    """Search the plans of several models on one SoC, `jobs` at a time or by Dask's workers."""

    model: str = field(default="", init=False)
    models: Annotated[
        Sequence[str],
        opt.argument(
            f"{opt.MODELS}; several by spaces or commas.",
            read=opt.read_models,
            many=True,
            metavar="MODEL",
        ),
    ] = field(kw_only=False)
    budget_s: opt.BudgetOption = None
    jobs: opt.JobsOption = None
    dask: opt.DaskOption = None

    def run(self) -> SearchRun:
        """Raises `CodlError` for what the workers cannot do."""
        budget, workers = Budget(self.budget_s), opt.workers_of(self.jobs, self.dask)
        names = [each.name for each in fields(_SearchOptions) if each.name != "model"]
        common = {name: getattr(self, name) for name in names}
        searches = [Search(model=name, **common) for name in self.models]
        outcomes = search_all(searches, workers, budget)
        return SearchRun(
            socs.load(self.soc).name, dict(zip(self.models, outcomes, strict=True)), budget
        )


search = function(Search)


def plan_result(outcome: FoundPlan | FoundBound) -> dict[str, Any]:
    """A plan or a bound as `codl search --json` has it."""
    if isinstance(outcome, FoundBound):
        keys = ("op", "dim", "gpu_ratio", "latency_ms")
        layers = [dict(zip(keys, layer, strict=True)) for layer in outcome.limit.layers]
        result = {"model": outcome.model, "latency_ms": outcome.limit.latency_ms, "layers": layers}
        return {**result, "strategy": ideal.NAME, "source": "computed"}
    result = {**outcome.plan.to_json(), "search_ms": outcome.search_ms}
    result["placement"] = [asdict(op) for op in outcome.placed]
    result.pop("version")
    return result


def search_all(
    jobs: Sequence[Search], workers: Workers = Workers(), budget: Budget | None = None
) -> list[SearchOutcome]:
    """Outcomes of the searches of several models on one SoC, in their order.

    An outcome is a plan with its origin, a bound, or a `CodlError`. Raises `CodlError` for searches
    that the workers cannot do.
    """
    job, *_ = jobs
    serial = job.where or opt.HERE
    searches = [
        ModelSearch(
            model=str(each.model), strategy=each.strategy_name, batch=each.batch, shapes=each.shapes
        )
        for each in jobs
    ]
    if ideal.NAME in (search.strategy for search in searches) and not workers.have_files:
        raise CodlError(
            f"{ideal.NAME} is computed from the dataset's files, which a Dask cluster does not "
            "have: leave out --dask."
        )
    on_device = _on_device(job, searches, workers)
    described = (
        job.placed(soc_on(job, serial), job.deployment)
        if any(on_device)
        else socs.load(job.soc, job.precision)
    )
    context = job.context_of(described)
    searches = [
        replace(
            search,
            winograd=adapted(context, each.deployment).winograd,
            limits=each.limits(described, each.deployment),
            on_device=runs_here,
        )
        for search, each, runs_here in zip(searches, jobs, on_device, strict=True)
    ]
    if not any(on_device):
        outcomes = _outcomes(searches, context, workers, budget, job.reporter)
        return [_made_with(outcome, context.origin(None)) for outcome in outcomes]
    with closing(connect(serial, described)) as target:
        how = profiling(target, job.profile)
        context = replace(context, target=target, profiling=how)
        outcomes = _outcomes(searches, context, workers, budget, job.reporter)
        from codl.targets.base import environment_of

        origin = context.origin(environment_of(target, {}))
    return [_made_with(outcome, origin) for outcome in outcomes]


def _on_device(job: Search, searches: Sequence[ModelSearch], workers: Workers) -> list[bool]:
    planners = [search.planner for search in searches]
    asked = [job.runs_plans and planner is not None and planner.runs_plans for planner in planners]
    if any(asked) and not workers.are_here:
        job.reporter.note("Models that several processes plan do not run on the device.")
        return [False] * len(searches)
    return asked


def _outcomes(
    searches: Sequence[ModelSearch],
    context: Context,
    workers: Workers,
    budget: Budget | None,
    reporter: Reporter,
) -> list[SearchOutcome]:
    workers = workers.at_most(len(searches))
    if len(searches) == 1:
        [search] = searches
        reporter.stage(f"Searching {search.model} by {search.strategy} on {context.soc.name}")
        return search_models(searches, context, workers)
    with reporter.progress(f"Searching on {context.soc.name}") as update:
        return search_models(searches, context, workers, budget=budget or Budget(), progress=update)


def _made_with(outcome: SearchOutcome, origin: PlanOrigin) -> SearchOutcome:
    if not isinstance(outcome, FoundPlan):
        return outcome
    return replace(outcome, plan=replace(outcome.plan, origin=origin))
