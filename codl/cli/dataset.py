"""`codl dataset`: other people's measurements, and what a dataset holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from codl.cli.options import DatasetsOption, JsonOption, OutputOption, ToDatasetsOption
from codl.cli.output import emit, note
from codl.measure import dataset as datasets
from codl.measure.dataset import Dataset
from codl.report.terminal import Table

dataset_app = typer.Typer(
    help="""Datasets of measured latencies.

[dim]Examples:[/dim]
codl dataset info --soc host
codl dataset import t_*.csv --soc redmi""",
    no_args_is_help=True,
)
FilesArgument = Annotated[
    list[Path], typer.Argument(help="The original CoDL's t_*.csv, or any CSV with --mapping.")
]
NewSocOption = Annotated[str, typer.Option("--soc", help="What the SoC is to be called.")]
MappingOption = Annotated[
    Path | None, typer.Option("--mapping", help="What the columns mean: a YAML file.")
]
DeviceNameOption = Annotated[
    str | None,
    typer.Option("--device", help="The device's name in the table; the SoC's by default."),
]
WriteSocOption = Annotated[
    bool, typer.Option("--write-soc", help="Write socs/NAME.yaml, from the mapping.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Add to the dataset that is there.")]
OwnerOption = Annotated[str, typer.Option("--soc", help="The SoC whose dataset it is.")]


@dataset_app.command("import")
def dataset_import(
    files: FilesArgument,
    soc: NewSocOption,
    mapping: MappingOption = None,
    device: DeviceNameOption = None,
    write_soc: WriteSocOption = False,
    resume: ResumeOption = False,
    root: ToDatasetsOption = datasets.FOLDER,
    json: JsonOption = False,
) -> None:
    """Import other people's measurements of one SoC as a dataset, marked `source: replayed`.

    Predictors can be trained on it and plans made; nothing can run on such a SoC. The manifest
    records where the rows come from. Nothing is written unless every line can be read.

    [dim]Examples:[/dim]
    codl dataset import conv.csv --soc redmi --mapping docs/mappings/conv_cpu_gpu.yaml --write-soc
    codl dataset import trans.csv --soc redmi --mapping docs/mappings/data_trans.yaml --resume
    codl dataset import lat_datasets/sdm855/t_conv2d_op_*.csv --soc sdm855 --write-soc
    """
    from codl.measure.importers.importer import import_tables

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
    soc: OwnerOption = "host",
    dataset: DatasetsOption = datasets.FOLDER,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """Say what a dataset holds: rows and failures of every file, its SoC and its source.

    [dim]Example:[/dim] codl dataset info --soc host
    """
    from codl.frames import dataset_frame

    data = Dataset.found(soc, dataset)
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
