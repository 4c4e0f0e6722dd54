"""Executables of strangers: each runs in NumPy to its end, or one clear error comes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import structs

from codl.errors import CodlError
from codl.ir.constants import Arrays, Constants
from codl.ir.executable import Executable
from codl.ir.executable_json import decode
from codl.runtime.numpy_interpreter import Interpreter
from support.executables import SOCS, encoded, small_executable
from support.fuzzing import Subject
from support.mutations import TREE


def executables() -> Subject:
    """The JSON of executables that have everything."""
    sound = [small_executable(soc) for soc in SOCS]
    arrays: dict[str, Any] = {}
    weights: dict[str, Arrays | None] = {}
    seeds = []
    for one in sound:
        content, own = encoded(one)
        seeds.append(content)
        arrays |= own
        weights |= {constants.recipe: constants.weights for constants in one.constants}

    def array(digest: str) -> Any:
        if digest not in arrays:
            raise CodlError(f"There is no array {digest!r}.")
        return arrays[digest]

    def run(content: bytes) -> None:
        executable = decode(content, array)
        try:
            with np.errstate(all="ignore"):
                Interpreter(_weighted(executable, weights)).run()
        except CodlError as error:  # of memory, too: a buffer is as large as the machine has it
            raise CodlError(str(error)) from None

    return Subject("executables", seeds, TREE, run)


def _weighted(executable: Executable, weights: dict[str, Arrays | None]) -> Executable:
    """With the weights that are not in a file, where the constants are still known."""
    constants = tuple(
        Constants(one.how, weights.get(one.recipe), one.arrays, names=one.names, recipe=one.recipe)
        for one in executable.constants
    )
    return structs.replace(executable, constants=constants)
