"""Commands of files: `codl models`, `compare`, `report`, `dataset info` and `cache`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from codl.cli.output import Output, fail, note, stage
from codl.ir.records import soc as socs
from codl.jobs import options as opt
from codl.jobs.options import argument, option
from codl.machine import cache
from codl.machine.cache import Usage
from codl.measure import FOLDER as DATASETS
from codl.report.text_table import TextTable, Value

if TYPE_CHECKING:
    from codl.jobs.models import ModelFacts


def list_models(
    out: Output,
    names: Annotated[
        Sequence[str],
        argument(
            "Built-in models and files; by default all built-in ones, in short.",
            read=opt.read_models,
            many=True,
            metavar="MODEL",
        ),
    ] = (),
    soc: opt.PlannedSocOption = "",
) -> None:
    """For named models and .onnx files it also lists their ops, and which kinds only ONNX Runtime
    runs (`onnx`). For models that `codl eval` measured there, it has what to use.

    [dim]Examples:[/dim]
    codl models
    codl models retinaface posenet --soc epyc2
    codl models model.onnx --json
    """
    from codl.jobs.models import builtin_facts, model_facts

    name, facts = socs.load(soc).name if soc else "", []
    for model in names:
        stage(f"Reading {model}")
        facts.append(model_facts(model, name))
    facts = facts or [*builtin_facts(name)]
    result: dict[str, Any] = {"soc": soc, "models": [asdict(model) for model in facts]}
    out.emit("models", result, lambda: _models_table(facts, str(soc)))


def _models_table(facts: Sequence[ModelFacts], soc: str) -> TextTable:
    has_ops = facts[0].ops is not None
    rows: list[tuple[Value, ...]] = []
    for model in facts:
        verdict = model.verdict.verdict if model.verdict else None
        kinds = model.kinds if model.kinds is not None else model.nodes
        inputs = ", ".join("x".join(map(str, shape)) for shape in model.inputs.values())
        cells = (model.name, inputs, model.parameters / 1e6, model.gflops, model.ops)
        use, ms = (verdict.use, verdict.latency_ms) if verdict else (None, None)
        rows.append((*cells, use, ms, ", ".join(f"{n} {kind}" for kind, n in kinds.items())))
    last = "kinds of ops" if has_ops else "nodes"
    heads = ("model", "inputs", "million weights", "GFLOPs", "ops", "use", "ms", last)
    caption = ["ops: distinct ones."] if has_ops else []
    if any(model.verdict for model in facts):
        caption.append(f"use: what was fastest on {soc} when `codl eval` ran last.")
    return TextTable.plain("Models", heads, rows, caption, spare=(last, "inputs"), filled=True)


def compare_files(
    out: Output,
    first: Annotated[
        Path, argument("A result file, written with -o or by --json.", metavar="FIRST")
    ],
    second: Annotated[Path, argument("A later one of the same command.", metavar="SECOND")],
    fail_above: Annotated[
        float | None,
        option(
            "--fail-above",
            metavar="TIMES",
            least=0,
            help="Exit with code 1 if a figure is worse by more than this factor, such as 1.05, "
            "and noise, or missing.",
        ),
    ] = None,
    speedups: Annotated[
        bool,
        option(
            "--speedups",
            help="Compare speedups over the better processor of each run, instead of latencies.",
        ),
    ] = False,
    every: Annotated[
        bool, option("--every", help="Show all figures, also those within noise.")
    ] = False,
) -> None:
    """Latencies differ if the distance exceeds both spreads and 3 %, accuracies beyond twice their
    standard error; figures of compilers and checks have no noise. Other commits, SoCs, datasets,
    drivers, clocks and protocols are listed; a changed model is not compared.

    [dim]Examples:[/dim]
    codl compare before.json now.json
    codl compare before.json now.json --every --json
    codl compare before.json now.json --fail-above 1.05 --speedups
    """
    from codl.report.compare import compare_results, comparison_table
    from codl.report.results import load_result

    compared = compare_results(load_result(first), load_result(second), speedups=speedups)

    table = comparison_table(compared, every=every)
    out.emit("compare", compared.to_json(), lambda: table)
    if fail_above is None:
        return
    if beyond := compared.beyond(fail_above):
        names = ", ".join(f"{pair.name} of {pair.group}" for pair in beyond)
        fail(f"{len(beyond)} figures are lost, or worse than {fail_above:g} times: {names}.")
        raise typer.Exit(1)


def write_report(
    results: Annotated[
        list[Path], typer.Argument(help="Result files, written with -o or by --json.")
    ],
    output: Annotated[Path, option("-o", "--output", help="The page.", read=opt.writable)] = Path(
        "report.html"
    ),
    apart: Annotated[
        bool, option("--apart", help="Allow evaluations that were measured differently.")
    ] = False,
) -> None:
    """Evaluations of one SoC that differ in driver, device, clocks, cores, libraries or protocol
    are rejected, unless --apart allows them.

    [dim]Examples:[/dim]
    codl report eval.json train.json -o report.html
    codl search yolov2,vgg16 --soc host --json > plans.json && codl report plans.json
    """
    from codl.report.html import write_report as write

    note(f"Wrote {write(results, output, apart=apart)}")


def dataset_info(
    out: Output, soc: opt.PlannedSocOption = "", dataset: opt.DatasetsOption = DATASETS
) -> None:
    """[dim]Example:[/dim] codl dataset info --soc epyc2"""
    from codl.jobs import frames
    from codl.measure.dataset import Dataset

    data = Dataset.found(str(soc), dataset)
    manifest, frame = data.manifest(), frames.dataset(str(soc), dataset)
    by_table = frame["status"].eq("failed").groupby(frame["table"], observed=False)
    files = {
        f"t_{name}.csv": {"rows": int(rows), "failed": int(failed)}
        for name, rows, failed in by_table.agg(["size", "sum"]).itertuples()
    }
    result: dict[str, Any] = {
        "rows": len(frame),
        "soc": soc,
        "source": manifest["source"],
        "files": files,
        "runs": manifest["runs"],
    }

    rows = [(name, counts["rows"], counts["failed"]) for name, counts in files.items()]
    caption = f"source: {manifest['source']}, runs: {len(manifest['runs'])}"
    table = TextTable.plain(f"Dataset of {soc}", ("file", "rows", "failed"), rows, [caption])
    out.emit("dataset info", result, lambda: table)


def _emit_usage(out: Output, command: str, usage: Usage) -> None:
    text = f"{usage.folder}: {usage.files} files, {usage.bytes / 1e6:.1f} MB"
    if usage.pruned_files:
        text += f"; {usage.pruned_files} files, {usage.pruned_bytes / 1e6:.1f} MB, were removed"
    out.emit(command, asdict(usage), lambda: text)


def show_cache(out: Output) -> None:
    """CODL_CACHE names another folder.

    [dim]Example:[/dim] codl cache show
    """
    _emit_usage(out, "cache show", cache.usage())


def prune_cache(out: Output) -> None:
    """[dim]Example:[/dim] codl cache prune"""
    _emit_usage(out, "cache prune", cache.prune())


def clear_cache(out: Output) -> None:
    """[dim]Example:[/dim] codl cache clear"""
    _emit_usage(out, "cache clear", cache.clear())
