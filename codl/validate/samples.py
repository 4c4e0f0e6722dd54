"""Samples of a model's inputs, one of which at a time is in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, overload

from codl.validate.references import Values

Reader: TypeAlias = Callable[[], Values]


class Samples(Sequence[Values]):
    """Inputs that are read whenever one is asked for: a folder may hold more than memory does."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = list(readers)

    def __len__(self) -> int:
        return len(self._readers)

    @overload
    def __getitem__(self, place: int) -> Values: ...
    @overload
    def __getitem__(self, place: slice) -> Samples: ...
    def __getitem__(self, place: int | slice) -> Values | Samples:
        if isinstance(place, slice):
            return Samples(self._readers[place])
        return self._readers[place]()
