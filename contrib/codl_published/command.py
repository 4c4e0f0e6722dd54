"""`codl dataset import`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from codl.cli.output import Output, note
from codl.jobs.options import ToDatasetsOption
from codl.measure import dataset as datasets

#: Those that come with codl, by name.
SHIPPED_MAPPINGS = ", ".join(sorted(p.stem for p in Path(__file__).parent.glob("mappings/*.yaml")))
FilesArgument = Annotated[
    list[Path], typer.Argument(help="The original CoDL's t_*.csv, or any CSV with --mapping.")
]
NewSocOption = Annotated[str, typer.Option("--soc", help="The name of the SoC.")]
MappingOption = Annotated[
    Path | None,
    typer.Option("--mapping", help=f"Meaning of the columns: a YAML file, or {SHIPPED_MAPPINGS}."),
]
DeviceNameOption = Annotated[
    str | None,
    typer.Option("--device", help="The device's name in the table; the SoC's by default."),
]
WriteSocOption = Annotated[
    bool, typer.Option("--write-soc", help="Write socs/NAME.yaml, from the mapping.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Add to an existing dataset.")]


def dataset_import(
    out: Output,
    files: FilesArgument,
    soc: NewSocOption,
    mapping: MappingOption = None,
    device: DeviceNameOption = None,
    write_soc: WriteSocOption = False,
    resume: ResumeOption = False,
    root: ToDatasetsOption = datasets.FOLDER,
) -> None:
    """Import other people's measurements of one SoC as a dataset, marked `source: replayed`.

    Predictors can be trained and plans made, but nothing can run. Nothing is written unless every
    line can be read.

    [dim]Examples:[/dim]
    codl dataset import conv.csv --soc redmi --mapping conv_cpu_gpu --write-soc
    codl dataset import trans.csv --soc redmi --mapping data_trans --resume
    codl dataset import lat_datasets/sdm855/t_conv2d_op_*.csv --soc sdm855 --write-soc
    """
    from codl_published.importer import import_tables

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

    out.emit("dataset import", asdict(done), render)
