"""`codl search`: the plan of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType

from codl.cli import options as opt
from codl.cli.job_options import PlannedOptions, with_options
from codl.cli.options import HERE, SERIALS, known_serial, result_file
from codl.cli.output import emit, note, warn
from codl.errors import CodlError
from codl.files import check_folder, inside
from codl.measure.budget import Budget
from codl.report.text_table import Table

if TYPE_CHECKING:
    from codl.api.job import Job
    from codl.strategies.model_search import FoundBound, SearchOutcome

MethodOption = Annotated[
    str, typer.Option("--method", help="How `codl` searches: {codl.plan.search:METHODS}.")
]
ObjectiveOption = Annotated[
    str,
    typer.Option("--objective", help="What `codl` searches for: {codl.plan.beam_search:GOALS}."),
]
MemoryOption = Annotated[
    int | None,
    typer.Option(
        "--memory-limit", min=1, help="MiB of weights that both processors may hold together."
    ),
]
PlanFileOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="Write the plan to this file; the plans of several models to this folder.",
    ),
]


def _known(serial: str | None) -> str | None:
    return serial if serial is None else known_serial(serial)


DeviceOption = Annotated[
    str | None,
    typer.Option(
        "--serial",
        "--on",
        help=f"The device on which plans run: {SERIALS}. Without it predictions decide; with "
        f"--plan-time it is {HERE}.",
        show_default=False,
        callback=_known,
    ),
]


@dataclass(frozen=True, kw_only=True)
class SearchOptions(PlannedOptions):
    """Of models, for a SoC that need not be at hand, whose GPU may be limited."""

    models: opt.ModelsArgument
    soc: opt.PlannedSocOption = ""
    serial: DeviceOption = None  # type: ignore[assignment]
    max_kernel_ms: opt.LongestOption = None
    gpu_duty: opt.DutyOption = None

    def jobs(self, names: Sequence[str]) -> list[Job]:
        """A job for each model."""
        from codl.api.job import RunOptions
        from codl.api.search import profile_on

        limits = RunOptions(max_kernel_ms=self.max_kernel_ms, gpu_duty=self.gpu_duty)
        job = replace(self, serial=self.serial or HERE).job(model=names[0], options=limits)
        serial = self.serial or (HERE if self.plan_time else None)
        job = replace(job, profile=profile_on(serial, job.profile))
        return [replace(job, model=name) for name in names]


@with_options
def search_plan(
    asked: SearchOptions,
    method: MethodOption = "dp",
    objective: ObjectiveOption = "latency",
    memory_limit: MemoryOption = None,
    budget: opt.BudgetOption = None,
    jobs: opt.JobsOption = None,
    dask: opt.DaskOption = None,
    output: PlanFileOption = None,
    every: opt.PlacementOption = False,
    json: opt.JsonOption = False,
) -> None:
    """Find a plan of a model: its chains, their dimensions and ratios. Or of each of several.

    With --serial or --plan-time plans run on the device, each is improved by what it took, and the
    fastest is taken. That goes on for --plan-time, or as long as plans gain. The strategy `ideal`
    prints the paper's bound, computed from measured ops; it gives no plan.

    Several models are searched one by one, --jobs at a time, or by the workers of a Dask cluster
    (the extra `dask`); plans are the same. Then --json holds `plans`, with what one model's holds
    for each, and `failed`, and -o is a folder with a file MODEL.json for each. Where a model has no
    plan, the others are searched all the same, and the exit code is 1; so it is where --budget or
    Ctrl-C leave models without one.

    With --max-kernel-ms and --gpu-duty plans are for a GPU that is limited so, as by `codl run`.

    [dim]Examples:[/dim]
    codl search yolov2 --soc host -o plan.json
    codl search model.onnx --soc host --serial local -o plan.json
    codl search yolov2 --soc host --serial local --plan-time 2m
    codl search yolov2,vgg16,bert --soc host --jobs 3 --budget 2m -o plans
    codl search zoo/*.onnx --soc host --dask tcp://10.0.0.7:8786 -o plans
    """
    from codl.api.search import search_all
    from codl.strategies.model_search import FoundPlan

    names, limit = opt.read_models(*asked.models), opt.budget_of(budget)
    files = _files(names, output)
    outcomes = search_all(
        asked.jobs(names),
        method=method,
        objective=objective,
        memory_limit=None if memory_limit is None else memory_limit << 20,
        workers=opt.read_workers(jobs, dask),
        budget=limit,
    )
    for file, outcome in zip(files, outcomes, strict=True):
        if file is not None and isinstance(outcome, FoundPlan):
            note(f"Wrote {outcome.plan.save(file)}")
    if len(names) == 1:
        _show(outcomes[0], every=every, as_json=json)
    else:
        _show_all(asked.soc, dict(zip(names, outcomes, strict=True)), limit, as_json=json)


def _files(names: Sequence[str], output: Path | None) -> list[Path | None]:
    """Where the plan of each model is written, if it is.

    Raises `CodlError` where several would have to be in one file.
    """
    if output is None:
        return [None for _ in names]
    if len(names) == 1 and not output.is_dir():
        return [result_file(output)]
    if output.exists() and not output.is_dir():
        raise CodlError(f"-o must be a folder for the plans of several models, got {output}.")
    check_folder(output)
    stems = [Path(name.partition("#")[2] or name).stem for name in names]
    for stem, plans in Counter(stems).items():
        if plans > 1:
            same = ", ".join(
                name for name, other in zip(names, stems, strict=True) if other == stem
            )
            raise CodlError(f"The plans of {same} would all be {stem}.json: search them apart.")
    return [result_file(inside(output, f"{stem}.json")) for stem in stems]


def _show(outcome: SearchOutcome, *, every: bool, as_json: bool) -> None:
    """What the search of one model found; raises the `CodlError` that it ended with."""
    from codl.api.search import plan_result
    from codl.cli.plan_tables import op_placement_table, plan_table
    from codl.strategies.model_search import FoundBound

    if isinstance(outcome, CodlError):
        raise outcome

    def render() -> RenderableType:
        if isinstance(outcome, FoundBound):
            return _bound_table(outcome)
        where = op_placement_table(outcome.placed, "predicted", every=every)
        return Group(plan_table(outcome.plan, outcome.search_ms), where)

    emit("search", plan_result(outcome), render, as_json=as_json)


def _show_all(
    name: str, outcomes: Mapping[str, SearchOutcome], limit: Budget, *, as_json: bool
) -> None:
    """What the searches of several models found; raises `CodlError` where one found nothing."""
    from codl.api.search import plan_result
    from codl.records import soc as socs

    soc = socs.load(name).name
    failed = {
        model: str(outcome) for model, outcome in outcomes.items() if isinstance(outcome, CodlError)
    }
    result = {
        "soc": soc,
        "plans": [
            plan_result(outcome)
            for outcome in outcomes.values()
            if not isinstance(outcome, CodlError)
        ],
        "failed": [{"model": model, "reason": reason} for model, reason in failed.items()],
        "stopped": limit.ended,
    }
    emit("search", result, lambda: _models_table(soc, outcomes), as_json=as_json)
    for model, reason in failed.items():
        warn(f"{model}: {reason}")
    limit.check("The plans before are kept.")
    if failed:
        raise CodlError(
            f"{len(failed)} of {len(outcomes)} models have no plan: {', '.join(failed)}."
        )


def _bound_table(found_bound: FoundBound) -> Table:
    limit = found_bound.limit
    table = Table("op", "dim", "GPU ratio", "ms", title=f"Ideal {found_bound.model}")
    for name, dim, ratio, ms in limit.layers:
        table.add_row(name, dim, f"{ratio:.1f}", f"{ms:.3g}")
    table.caption = f"{limit.latency_ms:.1f} ms, computed from measured ops, nothing shared"
    return table


def _models_table(soc: str, outcomes: Mapping[str, SearchOutcome]) -> Table:
    """A line for every model: its plan in short."""
    from codl.strategies import ideal
    from codl.strategies.model_search import FoundBound, FoundPlan

    columns = ("model", "strategy", "chains", "on both", "predicted ms", "search ms")
    table = Table(*columns, title=f"Plans on {soc}", title_justify="left")
    for name, outcome in outcomes.items():
        if isinstance(outcome, FoundBound):
            table.add_row(name, ideal.NAME, "-", "-", f"{outcome.limit.latency_ms:.1f}", "-")
        elif isinstance(outcome, FoundPlan):
            plan = outcome.plan
            both = sum(0 < chain.gpu_ratio < 1 for chain in plan.chains)
            predicted = "-" if plan.predicted_ms is None else f"{plan.predicted_ms:.1f}"
            counts = (str(len(plan.chains)), str(both))
            table.add_row(name, plan.strategy, *counts, predicted, f"{outcome.search_ms:.0f}")
        else:
            table.add_row(name, "no plan", *(["-"] * 4))
    return table
