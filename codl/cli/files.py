"""Commands of files: `codl models`, `compare`, `report`, `dataset info` and `cache`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from codl.cli.output import JsonOption, OutputOption, emit, fail, note, stage
from codl.jobs import options as opt
from codl.jobs.options import argument, option
from codl.measure import FOLDER as DATASETS
from codl.report.text_table import Table
from codl.runtime import cache
from codl.runtime.cache import Usage

if TYPE_CHECKING:
    from codl.jobs.models import ModelFacts

NamesArgument = Annotated[
    Sequence[str],
    argument(
        "Built-in models and files; by default all built-in ones, in short.",
        read=opt.read_models,
        many=True,
        metavar="MODEL",
    ),
]
FirstArgument = Annotated[
    Path, argument("A result file, written with -o or by --json.", metavar="FIRST")
]
SecondArgument = Annotated[Path, argument("A later one of the same command.", metavar="SECOND")]
LimitOption = Annotated[
    float | None,
    option(
        "--fail-above",
        metavar="TIMES",
        above=0,
        help="End with exit code 1 where a figure is worse by more than this, as 1.05, and by more "
        "than noise, or is lost.",
    ),
]
SpeedupsOption = Annotated[
    bool,
    option(
        "--speedups",
        help="Of evaluations: compare speedups over the better processor alone in the same run, "
        "which a machine that is slower as a whole does not change.",
    ),
]
EveryOption = Annotated[bool, option("--every", help="Show all figures, also those within noise.")]
ResultsArgument = Annotated[
    list[Path], typer.Argument(help="Result files, written with -o or by --json.")
]
PageOption = Annotated[
    Path,
    option("-o", "--output", help="The page.", read=lambda text: opt.writable(Path(text))),
]
ApartOption = Annotated[
    bool,
    option("--apart", help="Put evaluations on one page that were not measured alike, too."),
]


def list_models(
    names: NamesArgument = (),
    soc: opt.PlannedSocOption = "",
    dataset: opt.DatasetsOption = DATASETS,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Of models that are named, .onnx files too, it also says what ops they come to, how many of
    those were measured and tuned on the SoC, and which kinds only ONNX Runtime runs (`onnx`).

    [dim]Examples:[/dim]
    codl models
    codl models retinaface posenet --soc epyc2
    codl models model.onnx --json
    """
    from codl.jobs.models import builtin_facts, model_facts
    from codl.records import soc as socs

    facts = []
    for model in names:
        stage(f"Reading {model}")
        facts.append(model_facts(model, socs.load(soc), dataset))
    facts = facts or [*builtin_facts()]
    result: dict[str, Any] = {"soc": soc, "models": [asdict(model) for model in facts]}
    emit("models", result, lambda: _models_table(facts, str(soc)), as_json=json, output=output)


def _models_table(facts: Sequence[ModelFacts], soc: str) -> Table:
    looked = facts[0].ops is not None
    of_ops = ("ops", "measured", "tuned") if looked else ()
    last = "kinds of ops" if looked else "nodes"
    columns = ("model", "inputs", "million weights", "GFLOPs", *of_ops, last)
    spare = ("nodes", "kinds of ops", "inputs")
    table = Table(*columns, spare=spare, title="Models", title_justify="left")
    for model in facts:
        numbers = [f"{model.parameters / 1e6:.2f}", f"{model.gflops:.2f}"]
        if looked:
            numbers += [_told(model.ops), _told(model.measured), _told(model.tuned)]
        kinds = model.kinds if model.kinds is not None else model.nodes
        table.add_row(model.name, _shapes(model.inputs.values()), *numbers, _counts(kinds))
    table.caption = (
        f"ops: distinct ones; measured and tuned: those of them on {soc}"
        if looked
        else "`codl models NAME` says which ops were measured and tuned"
    )
    return table


def _told(value: int | None) -> str:
    return "-" if value is None else str(value)


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())


def _shapes(shapes: Iterable[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)


def compare_files(
    first: FirstArgument,
    second: SecondArgument,
    fail_above: LimitOption = None,
    speedups: SpeedupsOption = False,
    every: EveryOption = False,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Latencies of one file took turns, those of two files did not. They are told apart where they
    differ by more than both spreads make up, and by 3 % at least. Accuracies are told apart beyond
    twice their standard error; figures of compilers and checks have no noise. Another commit, SoC,
    dataset, driver, clock or protocol is told; a model that has changed is not compared.

    [dim]Examples:[/dim]
    codl compare before.json now.json
    codl compare before.json now.json --every --json
    codl compare before.json now.json --fail-above 1.05 --speedups
    """
    from codl.report.compare import compare_results, comparison_table
    from codl.report.load import load_result

    compared = compare_results(load_result(first), load_result(second), speedups=speedups)

    def render() -> RenderableType:
        return comparison_table(compared, every=every).to_rich()

    emit("compare", compared.to_json(), render, as_json=json, output=output)
    if fail_above is None:
        return
    if beyond := compared.beyond(fail_above):
        names = ", ".join(f"{pair.name} of {pair.group}" for pair in beyond)
        fail(f"{len(beyond)} figures are lost, or worse than {fail_above:g} times: {names}.")
        raise typer.Exit(1)


def write_report(
    results: ResultsArgument,
    output: PageOption = Path("report.html"),
    apart: ApartOption = False,
) -> None:
    """Evaluations of a SoC that differ in driver, device, clocks, cores, libraries or protocol are
    not to be compared, and are refused unless --apart says so.

    [dim]Examples:[/dim]
    codl report eval.json train.json -o report.html
    codl search yolov2,vgg16 --soc host --json > plans.json && codl report plans.json
    """
    from codl.report.html import write_report as write

    note(f"Wrote {write(results, output, apart=apart)}")


def dataset_info(
    soc: opt.PlannedSocOption = "",
    dataset: opt.DatasetsOption = DATASETS,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """[dim]Example:[/dim] codl dataset info --soc epyc2"""
    from codl.frames import dataset_frame
    from codl.measure.dataset import Dataset

    data = Dataset.found(str(soc), dataset)
    manifest, frame = data.manifest(), dataset_frame(data)
    data.anchors().read()  # raises for rows that are none
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

    def render() -> Table:
        table = Table("file", "rows", "failed", title=f"Dataset of {soc}", title_justify="left")
        for name, counts in files.items():
            table.add_row(name, str(counts["rows"]), str(counts["failed"]))
        table.caption = f"source: {manifest['source']}, runs: {len(manifest['runs'])}"
        return table

    emit("dataset info", result, render, as_json=json, output=output)


def _emit_usage(command: str, usage: Usage, *, as_json: bool, output: Path | None) -> None:
    text = f"{usage.folder}: {usage.files} files, {usage.bytes / 1e6:.1f} MB"
    if usage.pruned_files:
        text += f"; {usage.pruned_files} files, {usage.pruned_bytes / 1e6:.1f} MB, were removed"
    emit(command, asdict(usage), lambda: text, as_json=as_json, output=output)


def show_cache(json: JsonOption = False, output: OutputOption = None) -> None:
    """CODL_CACHE names another folder.

    [dim]Example:[/dim] codl cache show
    """
    _emit_usage("cache show", cache.usage(), as_json=json, output=output)


def prune_cache(json: JsonOption = False, output: OutputOption = None) -> None:
    """[dim]Example:[/dim] codl cache prune"""
    _emit_usage("cache prune", cache.prune(), as_json=json, output=output)


def clear_cache(json: JsonOption = False, output: OutputOption = None) -> None:
    """[dim]Example:[/dim] codl cache clear"""
    _emit_usage("cache clear", cache.clear(), as_json=json, output=output)
