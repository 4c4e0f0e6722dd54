"""A place in a JSON file, read key by key: whatever is wrong there is told with file and key."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from codl.errors import InvalidFileError, UnknownNameError


@dataclass(frozen=True)
class Field:
    """A value and where it stands. Every method raises `InvalidFileError` for a wrong value."""

    path: str
    where: str
    value: Any

    def wrong(self, wanted: str) -> InvalidFileError:
        """The error for a value that is not what it must be."""
        shown = repr(self.value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return InvalidFileError(self.path, f"must be {wanted}, got {shown}.", where=self.where)

    def key(self, name: str) -> Field:
        """A key that must be there; its value may be null."""
        found = self._mapping()
        if name not in found:
            problem = f"the key {name!r} is missing."
            fix = f"There are: {', '.join(map(str, found)) or 'none'}."
            raise InvalidFileError(self.path, problem, where=self.where or "top", fix=fix)
        return Field(self.path, f"{self.where}.{name}".lstrip("."), found[name])

    def get(self, name: str) -> Field | None:
        """A key that may be missing or null."""
        return self.key(name) if self._mapping().get(name) is not None else None

    def items(self) -> list[Field]:
        """The elements of a list."""
        if not isinstance(self.value, (list, tuple)):
            raise self.wrong("a list")
        return [Field(self.path, f"{self.where}[{i}]", v) for i, v in enumerate(self.value)]

    def pairs(self) -> list[tuple[str, Field]]:
        """The keys of a mapping with their values."""
        return [(printable(name), self.key(name)) for name in self._mapping()]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("a string")
        return printable(self.value)

    def number(self, *, signed: bool = False) -> float:
        """A finite number, at least 0 unless `signed`."""
        wanted = "a finite number" if signed else "a finite number of at least 0"
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise self.wrong(wanted)
        try:
            number = float(self.value)
        except OverflowError:
            raise self.wrong(wanted) from None
        if not isfinite(number) or (number < 0 and not signed):
            raise self.wrong(wanted)
        return number

    def count(self) -> int:
        if isinstance(self.value, bool) or not isinstance(self.value, int) or self.value < 0:
            raise self.wrong("a whole number of at least 0")
        return self.value

    def one_of(self, kind: str, names: Iterable[str]) -> str:
        """One of some names; the message lists them and the nearest."""
        name = self.text()
        known = list(names)
        if name not in known:
            problem = str(UnknownNameError(kind, name, known))
            raise InvalidFileError(self.path, problem, where=self.where)
        return name

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())

    def _mapping(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong("a mapping")
        return self.value


def printable(text: str) -> str:
    """Text without control characters, which neither a terminal nor XML should get from a file."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )
