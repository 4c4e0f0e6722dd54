"""`codl.search`: the plan of a model, or of several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from codl.api.job import Job, RunOptions, adapted, context_of, profiling
from codl.api.reporter import SILENT, Reporter
from codl.errors import CodlError
from codl.ir.plan import PlanOrigin
from codl.measure import dataset as datasets
from codl.measure.budget import Budget
from codl.plan.beam_search import Objective
from codl.predict import FOLDER
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


def search(
    model: str,
    *,
    soc: str | Path = "host",
    serial: str | None = None,
    precision: str | None = None,
    strategy: str | None = None,
    predictor: str | None = None,
    method: str = "dp",
    objective: str = "latency",
    memory_limit: int | None = None,
    plan_time_s: float | None = None,
    profile: Path | bool = True,
    batch: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    max_kernel_ms: float | None = None,
    gpu_duty: float | None = None,
    dataset: Path = datasets.FOLDER,
    predictors: Path = FOLDER,
    reporter: Reporter = SILENT,
) -> FoundPlan | FoundBound:
    """Search the plan of a model; the strategy `ideal` has only a bound.

    The words are those of `codl search`: `method` and `objective` are for the strategy `codl`, and
    `memory_limit` is in bytes of weights on both processors. On the device `serial` plans run
    before one is taken, for `plan_time_s` seconds or as long as they gain. Without a device and a
    plan time predictions decide. `profile` is a file of what ran before, or off. Raises
    `CodlError` where there is no plan.

    >>> found = codl.search("yolov2", soc="host")
    >>> found.plan.save("plan.json")
    """
    if serial is None and plan_time_s is not None:
        serial = "local"
    job = Job(
        model=model,
        soc=soc,
        serial=serial or "local",
        precision=precision,
        strategy=strategy,
        predictor=predictor,
        plan_time_s=plan_time_s,
        profile=profile_on(serial, profile),
        batch=batch,
        shapes=shapes or {},
        dataset=dataset,
        predictors=predictors,
        options=RunOptions(max_kernel_ms=max_kernel_ms, gpu_duty=gpu_duty),
        reporter=reporter,
    )
    [outcome] = search_all([job], method=method, objective=objective, memory_limit=memory_limit)
    if isinstance(outcome, CodlError):
        raise outcome
    return outcome


def profile_on(serial: str | None, profile: Path | bool) -> Path | bool:
    """The profile that plans on a device begin with; off where no device is named."""
    return profile if serial is not None or isinstance(profile, Path) else False


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
    jobs: Sequence[Job],
    *,
    method: str = "dp",
    objective: str = "latency",
    memory_limit: int | None = None,
    workers: Workers = Workers(),
    budget: Budget | None = None,
) -> list[SearchOutcome]:
    """What the searches of several jobs on one SoC come to, in their order.

    Each is a plan that says what it was made with, a bound, or the `CodlError` that says why there
    is neither. Raises `CodlError` for what the workers cannot do.
    """
    job, *_ = jobs
    searches = [
        ModelSearch(model=job.model, strategy=job.strategy_name, batch=job.batch, shapes=job.shapes)
        for job in jobs
    ]
    _check(searches, workers)
    on_device = _on_device(job, searches, workers)
    runs = any(on_device)
    described = (
        job.options.applied(load_local(job.soc, job.serial, job.precision), job.reporter)
        if runs
        else socs.load(job.soc, job.precision)
    )
    context = context_of(
        described,
        job.dataset,
        job.predictors,
        job.predictor,
        plan_time_s=job.plan_time_s,
        reporter=job.reporter,
        method=method,
        objective=Objective.of(objective, described, memory_limit),
    )
    searches = [
        replace(
            search,
            winograd=adapted(context, each.deployment).winograd,
            limits=each.wanted.limits(described),
            on_device=runs_here,
        )
        for search, each, runs_here in zip(searches, jobs, on_device, strict=True)
    ]
    with closing(connect(job.serial, described if runs else None)) as target:
        how = profiling(target, job.profile) if runs else None
        context = replace(context, target=target, profiling=how)
        outcomes = _outcomes(searches, context, workers, budget or Budget(), job.reporter)
        origin = context.origin(environment_of(target, {}) if runs else None)
    return [_made_with(outcome, origin) for outcome in outcomes]


def _check(searches: Sequence[ModelSearch], workers: Workers) -> None:
    if ideal.NAME in (search.strategy for search in searches) and not workers.have_files:
        raise CodlError(
            f"{ideal.NAME} is computed from the dataset's files, which a Dask cluster does not "
            "have: leave out --dask."
        )


def _on_device(job: Job, searches: Sequence[ModelSearch], workers: Workers) -> list[bool]:
    """Whether plans of each model run on the device."""
    planners = [search.planner for search in searches]
    asked = [
        bool(job.profile) and planner is not None and planner.runs_plans for planner in planners
    ]
    if any(asked) and not workers.are_here:
        job.reporter.note("Models that several processes plan do not run on the device.")
        return [False] * len(searches)
    return asked


def _outcomes(
    searches: Sequence[ModelSearch],
    context: Context,
    workers: Workers,
    budget: Budget,
    reporter: Reporter,
) -> list[SearchOutcome]:
    workers = workers.at_most(len(searches))
    if len(searches) == 1:
        [search] = searches
        reporter.stage(f"Searching {search.model} by {search.strategy} on {context.soc.name}")
        return search_models(searches, context, workers)
    with reporter.progress(f"Searching on {context.soc.name}") as update:
        return search_models(searches, context, workers, budget=budget, progress=update)


def _made_with(outcome: SearchOutcome, origin: PlanOrigin) -> SearchOutcome:
    if not isinstance(outcome, FoundPlan):
        return outcome
    return replace(outcome, plan=replace(outcome.plan, origin=origin))
