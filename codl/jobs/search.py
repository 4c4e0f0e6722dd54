"""`codl.search`: the plan of a model, or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from codl.errors import CodlError
from codl.ir.plan import PlanOrigin
from codl.jobs import options as opt
from codl.jobs.job import Reporter, function
from codl.jobs.model import ModelJob, adapted, context_of, profiling
from codl.jobs.options import option
from codl.measure.budget import Budget
from codl.plan.beam_search import Objective
from codl.records import soc as socs
from codl.strategies import Context, ideal
from codl.strategies.model_search import (
    FoundBound,
    FoundPlan,
    ModelSearch,
    SearchOutcome,
    search_models,
)
from codl.targets.connect import connect
from codl.targets.detect import load_local
from codl.targets.environment import environment_of
from codl.workers import Workers


def _mebibytes(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"must be a whole number of MiB, at least 1, got {text!r}")
    return int(text) << 20


SerialOption = Annotated[
    str | None,
    option(
        "--serial",
        "--on",
        help=f"The device on which plans run: {opt.SERIALS}. Without it predictions decide; with "
        f"--plan-time it is {opt.HERE}.",
        read=opt.known_serial,
    ),
]
MethodOption = Annotated[
    str, option("--method", help="How `codl` searches: {codl.plan.search:METHODS}.")
]
ObjectiveOption = Annotated[
    str, option("--objective", help="What `codl` searches for: {codl.plan.beam_search:GOALS}.")
]
MemoryOption = Annotated[
    int | None,
    option(
        "--memory-limit",
        read=_mebibytes,
        help="MiB of weights that both processors may hold together.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class _SearchOptions(ModelJob):
    soc: opt.PlannedSocOption = "host"
    serial: SerialOption = None  # type: ignore[assignment]
    method: MethodOption = "dp"
    objective: ObjectiveOption = "latency"
    memory_limit: MemoryOption = None

    @property
    def where(self) -> str | None:
        """The device on which plans run; None where predictions decide."""
        return self.serial or (None if self.plan_time_s is None else opt.HERE)

    @property
    def runs_plans(self) -> bool:
        """Whether plans run, where the strategy runs any."""
        profile = not self.no_profile and self.profile
        return isinstance(profile, Path) or bool(profile and self.where is not None)


@dataclass(frozen=True, kw_only=True)
class Search(_SearchOptions):
    """Search the plan of a model; the strategy `ideal` has only a bound.

    `method` and `objective` are for the strategy `codl`, and `memory_limit` is in bytes of weights
    on both processors. On the device `serial` plans run before one is taken, for `plan_time_s`
    seconds or as long as they gain. Without a device and a plan time predictions decide. `profile`
    is a file of what ran before, or off. Raises `CodlError` where there is no plan.

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
        """Why a model has no plan, by model."""
        return {
            model: str(outcome)
            for model, outcome in self.outcomes.items()
            if isinstance(outcome, CodlError)
        }

    def to_json(self) -> dict[str, Any]:
        """What `codl search --json` holds of several models."""
        return {
            "soc": self.soc,
            "plans": [
                plan_result(outcome)
                for outcome in self.outcomes.values()
                if not isinstance(outcome, CodlError)
            ],
            "failed": [{"model": model, "reason": text} for model, text in self.failed.items()],
            "stopped": self.budget.ended,
        }


@dataclass(frozen=True, kw_only=True)
class SearchModels(_SearchOptions):
    """Search the plans of several models on one SoC, `jobs` at a time or by Dask's workers."""

    model: str = field(default="", init=False)
    models: opt.ModelsArgument = field(kw_only=False)
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
    """What --json holds of one model."""
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
    """What the searches of several models on one SoC come to, in their order.

    Each is a plan that says what it was made with, a bound, or the `CodlError` that says why there
    is neither. Raises `CodlError` for what the workers cannot do.
    """
    job, *_ = jobs
    serial = job.where or opt.HERE
    searches = [
        ModelSearch(
            model=str(each.model),
            strategy=each.strategy_name,
            batch=each.batch,
            shapes=each.shapes,
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
        job.options.applied(load_local(job.soc, serial, job.precision), job.reporter)
        if any(on_device)
        else socs.load(job.soc, job.precision)
    )
    context = context_of(
        described,
        job.dataset,
        job.predictors,
        job.predictor,
        plan_time_s=job.plan_time_s,
        reporter=job.reporter,
        method=job.method,
        objective=Objective.of(job.objective, described, job.memory_limit),
    )
    searches = [
        replace(
            search,
            winograd=adapted(context, each.deployment).winograd,
            limits=each.options.limits(described),
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
        origin = context.origin(environment_of(target, {}))
    return [_made_with(outcome, origin) for outcome in outcomes]


def _on_device(job: Search, searches: Sequence[ModelSearch], workers: Workers) -> list[bool]:
    """Whether plans of each model run on the device."""
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
