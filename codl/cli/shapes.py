"""The option `--shape` of commands that take a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import typer

from codl.errors import CodlError

ShapeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--shape",
        help="Sizes of an input that the model leaves open, as NAME=1x3x224x224; once an input.",
    ),
]
GIVEN = re.compile(r"(?P<name>.+)=(?P<sizes>[1-9]\d*(x[1-9]\d*)*)")


def read_shapes(given: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Sizes by input; raises `CodlError` with what is none."""
    shapes = {}
    for text in given or ():
        found = GIVEN.fullmatch(text)
        if found is None:
            raise CodlError(f"--shape must be like input=1x3x224x224, got {text!r}.")
        shapes[found["name"]] = tuple(int(size) for size in found["sizes"].split("x"))
    return shapes
