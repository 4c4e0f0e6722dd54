"""`codl dataset` and `codl train`: from measurements to predictors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from codl import dataset as datasets
from codl import soc as socs
from codl.cli.output import JsonOption, OutputOption, SocOption, emit, note
from codl.dataset import Dataset
from codl.predict.names import FOLDER, NAMES

dataset_app = typer.Typer(help="Datasets of measured latencies.", no_args_is_help=True)
DatasetOption = Annotated[
    Path, typer.Option("--dataset", help="Where datasets lie, a folder for each SoC.")
]


@dataset_app.command("import")
def dataset_import(
    files: Annotated[
        list[Path], typer.Argument(help="The original CoDL's t_*.csv, or any CSV with --mapping.")
    ],
    soc: Annotated[str, typer.Option("--soc", help="What the SoC is to be called.")],
    mapping: Annotated[
        Path | None, typer.Option("--mapping", help="What the columns mean: a YAML file.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="The device's name in the table; the SoC's by default.")
    ] = None,
    write_soc: Annotated[
        bool, typer.Option("--write-soc", help="Write socs/NAME.yaml, from the mapping.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Add to a dataset that is there.")
    ] = False,
    root: Annotated[
        Path, typer.Option("-o", "--output", help="Where datasets lie, a folder for each SoC.")
    ] = datasets.FOLDER,
    json: JsonOption = False,
) -> None:
    """Make a dataset of somebody else's measurements of one SoC, marked `source: replayed`.

    Predictors can be trained on it, and plans made; nothing can run on such a SoC. The manifest
    keeps where the rows come from. Nothing is written unless every line could be read.

    [dim]Examples:[/dim]
    codl dataset import conv.csv --soc redmi --mapping docs/mappings/conv_cpu_gpu.yaml --write-soc
    codl dataset import trans.csv --soc redmi --mapping docs/mappings/data_trans.yaml --resume
    codl dataset import lat_datasets/sdm855/t_conv2d_op_*.csv --soc sdm855 --write-soc
    """
    from codl.collect.foreign.importer import import_tables

    done = import_tables(
        files,
        soc,
        mapping_file=mapping,
        device=device,
        root=root,
        write_soc=write_soc,
        resume=resume,
    )
    for reason, count in done.skipped.items():
        note(f"{count} lines left out: {reason}")

    def render() -> str:
        written = f"; wrote {done.soc_file}" if done.soc_file else ""
        return (
            f"{done.rows} rows of {done.soc} ({done.failed} failed), source: {done.source}, in "
            f"{', '.join(done.files)}{written}"
        )

    emit("dataset import", done.to_json(), render, as_json=json)


@dataset_app.command("info")
def dataset_info(
    soc: Annotated[str, typer.Option("--soc", help="The SoC whose dataset it is.")] = "host",
    dataset: DatasetOption = datasets.FOLDER,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Say what a dataset holds: rows and failures of every file, its SoC and its source."""
    found = Dataset.of(soc, dataset)
    manifest = found.manifest()
    files = {}
    for name, table in found.tables().items():
        rows = table.read()
        failed = sum(row.status == "failed" for row in rows)
        files[f"t_{name}.csv"] = {"rows": len(rows), "failed": failed}
    result: dict[str, Any] = {
        "rows": sum(f["rows"] for f in files.values()),
        "soc": soc,
        "source": manifest["source"],
        "files": files,
        "runs": manifest["runs"],
    }

    def render() -> Table:
        table = Table("file", "rows", "failed", title=f"Dataset of {soc}", title_justify="left")
        for name, counts in files.items():
            table.add_row(name, str(counts["rows"]), str(counts["failed"]))
        table.caption = f"source: {manifest['source']}, {len(manifest['runs'])} runs"
        return table

    emit("dataset info", result, render, as_json=json, output=output)


def train_predictors(
    soc: SocOption,
    predictor: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(NAMES)}; may be repeated."),
    ] = None,
    dataset: DatasetOption = datasets.FOLDER,
    like: Annotated[
        list[str] | None,
        typer.Option(
            help="Known SoCs, by name with commas between: where that makes it better, codl starts "
            "from what they take, so that 100 samples or fewer of a new SoC will do."
        ),
    ] = None,
    evaluate: Annotated[
        bool, typer.Option(help="Hold out rows and shapes, to say how accurate predictors are.")
    ] = True,
    seeds: Annotated[
        int, typer.Option(min=1, help="Deal shapes out to folds so often; medians are printed.")
    ] = 3,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes to train with; one a core by default.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where predictors lie, a folder for each SoC.")
    ] = FOLDER,
    json: JsonOption = False,
) -> None:
    """Train latency predictors on a SoC's dataset, and say how accurate they are.

    Accuracy is held out twice: by row, and by op shape, so that no ratio of one op stands on both
    sides. The second is the one that counts: five folds of shapes, medians over --seeds.

    [dim]Examples:[/dim]
    codl train --soc host
    codl train --soc host --predictor codl --no-evaluate
    codl train --soc redmi --like lenovo_k5,vivo_z3
    """
    from codl.predict.training import train

    described = socs.load(soc)
    known = [socs.load(name.strip()) for text in like or () for name in text.split(",")]
    report = train(
        described,
        Dataset.of(described.name, dataset),
        predictors=predictor or NAMES,
        folder=output,
        like=[(other, Dataset.of(other.name, dataset)) for other in known],
        evaluate=evaluate,
        seeds=seeds,
        jobs=jobs or len(os.sched_getaffinity(0)),
    )
    for text in report.notes:
        note(text)
    result = {"soc": described.name, **report.to_json()}

    def render() -> RenderableType:
        from codl.report.load import train_result
        from codl.report.tables import train_table

        return train_table(train_result(result))

    emit("train", result, render, as_json=json)
