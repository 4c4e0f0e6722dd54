"""Names for contents (SHA-256), and arrays that never change, known by theirs.

Constants are an op's weights as its kernels, or its net, want them. They are known by what they are
made of and how (the recipe), which is the same on every machine; linear algebra may give other last
bits on another CPU. They are packed when they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError


def digest(content: str | bytes | Mapping[str, Any]) -> str:
    """A name for some content that no other content has; the order of a mapping does not matter."""
    if isinstance(content, Mapping):
        content = json.dumps(content, sort_keys=True)
    return sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()


Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class Constants:
    """Named arrays that `pack` makes of an op's own weights, as `how` says.

    `how` names all that the packing depends on but the weights. `weights` are None where only the
    packed arrays are at hand, as in an executable that was read from a file.
    """

    def __init__(
        self,
        how: str,
        weights: Arrays | None,
        pack: Callable[[], Arrays],
        *,
        names: tuple[str, ...] | None = None,
        recipe: str | None = None,
    ) -> None:
        self.how, self.weights, self._pack = how, weights, pack
        #: What the packed arrays are called; None where that is not known before they are packed.
        self.names = names
        self._recipe = recipe

    @cached_property
    def recipe(self) -> str:
        """SHA-256 of the weights and of how they are packed."""
        if self._recipe == "":
            self._gone()
        if self._recipe is not None:
            return self._recipe
        digest = sha256(self.how.encode())
        for name, array in sorted((self.weights or {}).items()):
            digest.update(f"\n{name} {array_digest(array)}".encode())
        return digest.hexdigest()

    def arrays(self) -> Arrays:
        """The packed arrays by name; packs anew each time."""
        return self._pack()

    def let_go(self) -> None:
        """Hold no weights any more: kernels and libraries have theirs."""
        self.weights, self._pack = None, self._gone
        self._recipe = self._recipe or ""

    def _gone(self) -> Arrays:
        raise CodlError(f"The arrays of {self.how!r} were let go when they had been loaded.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constants) and self.recipe == other.recipe

    def __hash__(self) -> int:
        return hash(self.recipe)

    def __repr__(self) -> str:
        return f"Constants({self.how!r})"


def array_digest(array: NDArray[Any]) -> str:
    """SHA-256 of an array's type, shape and elements."""
    dense = np.ascontiguousarray(array)
    head = f"{dense.dtype.str} {array.shape}"
    digest = sha256(head.encode())
    if dense.size:
        digest.update(dense.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
