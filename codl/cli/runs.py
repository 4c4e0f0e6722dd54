"""`codl runs`: what lies in a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from codl.cli.options import JsonOption, OutputOption
from codl.cli.output import emit
from codl.errors import CodlError
from codl.files import HOME
from codl.report.text_table import Table

if TYPE_CHECKING:
    from codl.api.home import HomeItem

FolderArgument = Annotated[
    Path | None,
    typer.Argument(help="A folder with files of codl; by default CODL_HOME, or the current one."),
]


def list_runs(
    folder: FolderArgument = None,
    json: JsonOption = False,
    output: OutputOption = None,
) -> None:
    """List what lies in this folder: SoCs, datasets, predictors, plans, bundles, traces, results.

    Each has its SoC, when it was made, and by which commit of codl where the file says so. Of an
    evaluation each model has its largest speedup over the better processor alone. Folders in the
    folder are looked into, one level deep.

    [dim]Examples:[/dim]
    codl runs
    codl runs results --json
    """
    from codl.api.home import home_items

    if folder is not None and not folder.is_dir():
        raise CodlError(f"{folder}: there is no such folder.")
    items = home_items(folder)
    result = {"items": [asdict(item) for item in items]}
    emit("runs", result, lambda: _table(items, folder), as_json=json, output=output)


def _table(items: Sequence[HomeItem], folder: Path | None) -> Table:
    table = Table(
        *("kind", "file", "SoC", "made", "commit", "what"),
        spare=("commit",),
        title=f"What lies in {folder or 'the home of codl'}",
        title_justify="left",
    )
    for item in items:
        made = item.when[:16].replace("T", "\N{NO-BREAK SPACE}")
        path = os.path.relpath(item.path, folder or HOME)
        what = f"cannot be read: {item.problem}" if item.problem else item.about
        table.add_row(item.kind, path, item.soc, made, item.commit[:7], what)
    if not items:
        table.caption = "Nothing of codl. `codl soc detect` describes this machine."
    return table
