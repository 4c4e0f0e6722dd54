"""`codl report`: one page of result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from codl.cli.options import writable
from codl.cli.output import note


def write_report(
    results: Annotated[
        list[Path], typer.Argument(help="Result files, written with -o or by --json.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The page.", callback=writable)
    ] = Path("report.html"),
    apart: Annotated[
        bool,
        typer.Option(
            "--apart", help="Put evaluations on one page that were not measured alike, too."
        ),
    ] = False,
) -> None:
    """Make one HTML page of result files: what commands write with -o, or print with --json.

    Evaluations of a SoC that differ in driver, device, clocks, cores, libraries or protocol are not
    to be compared, and are refused unless --apart says so.

    [dim]Examples:[/dim]
    codl report eval.json train.json -o report.html
    codl search yolov2,vgg16 --soc host --json > plans.json && codl report plans.json
    """
    from codl.report.html import write_report as write

    note(f"Wrote {write(results, output, apart=apart)}")
