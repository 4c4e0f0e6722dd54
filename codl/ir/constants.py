"""SHA-256 digests of contents, and packed constants identified by recipe.

Constants are an op's weights as its kernels or its net read them. Their recipe is the digest of the
weights and of the packing. It is equal on all machines, while linear algebra may give other last
bits on another CPU. Packing happens on request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray


def digest(content: str | bytes | Mapping[str, Any]) -> str:
    """SHA-256 of a content; of a mapping in any order of its keys."""
    if isinstance(content, Mapping):
        content = json.dumps(content, sort_keys=True)
    return sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()


Arrays: TypeAlias = Mapping[str, NDArray[Any]]


class Constants:
    """Named arrays that `pack` makes of an op's weights.

    `how` names all parameters of the packing but the weights. `weights` is None where only packed
    arrays exist, as in an executable read from a file.
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
        #: Names of the packed arrays; None where only packing shows them.
        self.names = names
        self._recipe = recipe

    @cached_property
    def recipe(self) -> str:
        """SHA-256 of the weights and of the packing's parameters."""
        if self._recipe is not None:
            return self._recipe
        digest = sha256(self.how.encode())
        for name, array in sorted((self.weights or {}).items()):
            digest.update(f"\n{name} {array_digest(array)}".encode())
        return digest.hexdigest()

    def arrays(self) -> Arrays:
        """The packed arrays by name; packs anew each time."""
        return self._pack()

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
