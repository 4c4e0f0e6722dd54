"""`codl search`: the plan of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Group, RenderableType

from codl.cli.output import JsonOutput, PlacementOption, note, tell, warn
from codl.errors import CodlError
from codl.files import check_folder, inside
from codl.jobs.options import option, result_file
from codl.jobs.search import SearchModels, SearchRun, plan_result
from codl.plan.strategies import ideal
from codl.plan.strategies.model_search import FoundBound, FoundPlan, SearchOutcome
from codl.report.results import SearchesResult, SearchResult, parse_as
from codl.report.tables import placement_content, plan_content, plans_content
from codl.report.text_table import TextTable


def search_plan(
    job: SearchModels,
    out: JsonOutput,
    output: Annotated[
        Path | None,
        option(
            "-o",
            "--output",
            help="Write the plan to this file; the plans of several models to this folder.",
        ),
    ] = None,
    every: PlacementOption = False,
) -> None:
    """With --serial or --plan-time plans run on the device, measurements improve them, and the
    fastest plan is chosen. The strategy `ideal` prints the paper's bound, computed from measured
    ops; it gives no plan.

    Several models are searched one by one, --jobs at a time, or by the workers of a Dask cluster
    (the extra `dask`). --json then has `plans` and `failed`, and -o is a folder of MODEL.json
    files. A model without a plan stops no other; the exit code is then 1.

    [dim]Examples:[/dim]
    codl search yolov2 --soc host -o plan.json
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
        [outcome] = run.outcomes.values()
        _show(outcome, out, every=every)
    else:
        _show_all(run, out)


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


def _show(outcome: SearchOutcome, out: JsonOutput, *, every: bool) -> None:
    """What the search of one model found; raises the `CodlError` that it ended with."""
    if isinstance(outcome, CodlError):
        raise outcome
    result = plan_result(outcome)

    def render() -> RenderableType:
        if isinstance(outcome, FoundBound):
            limit = outcome.limit
            caption = f"{limit.latency_ms:.1f} ms, computed from measured ops, nothing shared."
            heads = ("op", "dimension", "GPU ratio", "latency (ms)")
            return TextTable.plain(f"Ideal {outcome.model}", heads, limit.layers, [caption])
        plan = plan_content(parse_as(SearchResult, result))
        return Group(plan, placement_content(outcome.placed, "predicted", every=every))

    out.emit("search", result, render)


def _show_all(run: SearchRun, out: JsonOutput) -> None:
    """What the searches of several models found; raises `CodlError` where one found nothing."""
    result = run.to_json()
    plans = [plan for plan in result["plans"] if plan["strategy"] != ideal.NAME]
    table = plans_content(parse_as(SearchesResult, {**result, "plans": plans}))
    out.emit("search", result, lambda: table)
    for plan in result["plans"]:
        if plan["strategy"] == ideal.NAME:
            tell(f"{plan['model']}: the ideal is {plan['latency_ms']:.1f} ms.")
    for model, reason in run.failed.items():
        warn(f"{model}: {reason}")
    run.budget.check("The plans before are kept.")
    if run.failed:
        names = ", ".join(run.failed)
        raise CodlError(f"{len(run.failed)} of {len(run.outcomes)} models have no plan: {names}.")
