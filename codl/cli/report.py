"""`codl report`: one page of result files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from codl.cli.output import note


def write_report(
    results: Annotated[list[Path], typer.Argument(help="Result files written with -o.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page.")] = Path("report.html"),
) -> None:
    """Make one HTML page of result files.

    [dim]Example:[/dim] codl report eval.json train.json -o report.html
    """
    from codl.report.html import write_report as write

    note(f"Wrote {write(results, output)}")
