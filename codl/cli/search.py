"""`codl search`: the plan of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Group, RenderableType

from codl.cli.output import JsonOption, PlacementOption, emit, note, warn
from codl.cli.plan_tables import op_placement_table, plan_table
from codl.errors import CodlError
from codl.files import check_folder, inside
from codl.jobs.options import option, result_file
from codl.jobs.search import SearchModels, SearchRun, plan_result
from codl.report.text_table import Table
from codl.strategies import ideal
from codl.strategies.model_search import FoundBound, FoundPlan, SearchOutcome

PlanFileOption = Annotated[
    Path | None,
    option(
        "-o",
        "--output",
        help="Write the plan to this file; the plans of several models to this folder.",
    ),
]


def search_plan(
    job: SearchModels,
    output: PlanFileOption = None,
    every: PlacementOption = False,
    json: JsonOption = False,
) -> None:
    """With --serial or --plan-time plans run on the device, each is improved by what it took, and
    the fastest is taken. That goes on for --plan-time, or as long as plans gain. The strategy
    `ideal` prints the paper's bound, computed from measured ops; it gives no plan.

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
    files = _files(job.models, output)
    run = job.run()
    for file, outcome in zip(files, run.outcomes.values(), strict=True):
        if file is not None and isinstance(outcome, FoundPlan):
            note(f"Wrote {outcome.plan.save(file)}")
    if len(run.outcomes) == 1:
        _show(*run.outcomes.values(), every=every, as_json=json)
    else:
        _show_all(run, as_json=json)


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
    if isinstance(outcome, CodlError):
        raise outcome

    def render() -> RenderableType:
        if isinstance(outcome, FoundBound):
            return _bound_table(outcome)
        where = op_placement_table(outcome.placed, "predicted", every=every)
        return Group(plan_table(outcome.plan, outcome.search_ms), where)

    emit("search", plan_result(outcome), render, as_json=as_json)


def _show_all(run: SearchRun, *, as_json: bool) -> None:
    """What the searches of several models found; raises `CodlError` where one found nothing."""
    table = _models_table(run.soc, run.outcomes)
    emit("search", run.to_json(), lambda: table, as_json=as_json)
    for model, reason in run.failed.items():
        warn(f"{model}: {reason}")
    run.budget.check("The plans before are kept.")
    if run.failed:
        names = ", ".join(run.failed)
        raise CodlError(f"{len(run.failed)} of {len(run.outcomes)} models have no plan: {names}.")


def _bound_table(found_bound: FoundBound) -> Table:
    limit = found_bound.limit
    table = Table("op", "dim", "GPU ratio", "ms", title=f"Ideal {found_bound.model}")
    for name, dim, ratio, ms in limit.layers:
        table.add_row(name, dim, f"{ratio:.1f}", f"{ms:.3g}")
    table.caption = f"{limit.latency_ms:.1f} ms, computed from measured ops, nothing shared"
    return table


def _models_table(soc: str, outcomes: Mapping[str, SearchOutcome]) -> Table:
    """A line for every model: its plan in short."""
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
