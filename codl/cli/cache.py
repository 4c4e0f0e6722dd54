"""`codl cache`: the cache of compiled kernels and nets."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from codl.cli.options import JsonOption, OutputOption
from codl.cli.output import emit

if TYPE_CHECKING:
    from codl.runtime.cache import Usage

cache_app = typer.Typer(
    help="""The cache of compiled kernels and prepared nets.

[dim]Examples:[/dim]
codl cache show
codl cache prune
codl cache clear""",
    no_args_is_help=True,
)


def _emit(command: str, usage: Usage, *, as_json: bool, output: Path | None) -> None:
    text = f"{usage.folder}: {usage.files} files, {usage.bytes / 1e6:.1f} MB"
    if usage.pruned_files:
        text += f"; {usage.pruned_files} files, {usage.pruned_bytes / 1e6:.1f} MB, were removed"
    emit(command, asdict(usage), lambda: text, as_json=as_json, output=output)


@cache_app.command("show")
def show_cache(json: JsonOption = False, output: OutputOption = None) -> None:
    """Say where the cache lies, and how large it is. CODL_CACHE names another folder.

    [dim]Example:[/dim] codl cache show
    """
    from codl.runtime import cache

    _emit("cache show", cache.usage(), as_json=json, output=output)


@cache_app.command("prune")
def prune_cache(json: JsonOption = False, output: OutputOption = None) -> None:
    """Remove from the cache what was not used for long.

    [dim]Example:[/dim] codl cache prune
    """
    from codl.runtime import cache

    _emit("cache prune", cache.prune(), as_json=json, output=output)


@cache_app.command("clear")
def clear_cache(json: JsonOption = False, output: OutputOption = None) -> None:
    """Empty the cache: what is needed again is compiled again.

    [dim]Example:[/dim] codl cache clear
    """
    from codl.runtime import cache

    _emit("cache clear", cache.clear(), as_json=json, output=output)
