"""What `codl run` makes of a bundle, and of a SoC that may be left out with one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from codl import bundle
from codl import soc as socs
from codl.bundle.archive import Archive
from codl.cli.deployed import RunOptions
from codl.errors import UnsupportedError
from codl.execute.engine import Engine
from codl.models import BUNDLE
from codl.soc import Soc


def is_bundle(model: str) -> bool:
    return Path(model).suffix == BUNDLE


def load_soc(name: str | None) -> Soc:
    """The SoC that a model is to run on; only a bundle brings one."""
    if name is None:
        raise typer.BadParameter(
            "a model wants a SoC; only a bundle has its own.", param_hint="--soc"
        )
    return socs.load(name)


def open_bundle(path: str, soc: str | None, wanted: RunOptions, fixed: Mapping[str, Any]) -> Engine:
    """The engine of a bundle; raises `UnsupportedError` for what is `fixed` and yet given."""
    given = [f"--{key}" for key, value in fixed.items() if value]
    if given:
        raise UnsupportedError(
            f"{', '.join(given)} cannot change {path}: a bundle's plan and shapes are fixed. "
            "`codl package` with these options makes another."
        )
    own = bundle.soc_of(Archive(Path(path))) if soc is None else socs.load(soc)
    return bundle.load(path, soc=wanted.applied(own))
