"""Reads YAML files so that whatever is wrong with one is named with its line, key and value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import yaml

from codl import yaml_file
from codl.errors import InvalidFileError, UnknownNameError

T = TypeVar("T")
#: What a value becomes; raises `ValueError` with what was expected.
ValueReader = Callable[[Any], T]
MISSING: Any = object()
#: No size, count or tensor that a file names is larger.
MOST = (1 << 31) - 1


class Key(NamedTuple):
    """How the value of a key is read, and what stands for one that is not there."""

    read: ValueReader[Any]
    default: Any = MISSING


class _Lined(dict[str, Any]):
    """A mapping that knows the line of each of its keys."""

    lines: dict[str, int]


class _Loader(yaml_file.Loader):
    """Makes `_Lined` mappings."""

    def lined(self, node: yaml.MappingNode) -> _Lined:
        self.flatten_mapping(node)
        mapping, lines = _Lined(), {}
        for key_node, value_node in node.value:
            key = str(self.construct_object(key_node, deep=True))
            mapping[key] = self.construct_object(value_node, deep=True)
            lines[key] = key_node.start_mark.line + 1
        mapping.lines = lines
        return mapping


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _Loader.lined)


class Section:
    """A mapping of a file, with its place in there; `place` is empty at the top."""

    def __init__(self, path: Path, place: str, content: Any, line: int = 1) -> None:
        self.path, self._place, self._line = path, place, line
        if not isinstance(content, _Lined):
            self._refuse(f"expected keys with values, got {content!r}.", place, line)
        self.content: Mapping[str, Any] = content
        self._lines = content.lines

    @property
    def name(self) -> str:
        """Where this mapping is in the file, as a path of keys."""
        return self._place or "top"

    def check_keys(self, keys: Collection[str]) -> None:
        """Refuse keys that are not known, with the nearest one that is."""
        for key in self.content:
            if key not in keys:
                self.refuse(str(UnknownNameError("key", key, keys)), key)

    def take(self, key: str, reader: ValueReader[T], default: Any = MISSING) -> T:
        """The value of a key, or the default where it is not there; raises where it has none."""
        if key not in self.content:
            if default is MISSING:
                self._refuse(f"the key {key!r} is missing.", self._place, self._line)
            return default  # type: ignore[no-any-return]
        try:
            return reader(self.content[key])
        except ValueError as error:
            self.refuse(f"{error}, got {_plain(self.content[key])!r}.", key)

    def values(self, keys: Mapping[str, Key]) -> dict[str, Any]:
        """The values of some keys, by name, or their defaults."""
        return {name: self.take(name, *key) for name, key in keys.items()}

    def section(self, key: str) -> Section:
        """The mapping under a key."""
        content = self.take(key, anything)
        return Section(self.path, self._at(key), content, self._lines[key])

    def sections(self, key: str) -> Iterator[Section]:
        """Every mapping of the list under a key."""
        for index, content in enumerate(self.take(key, sequence(anything))):
            lines = getattr(content, "lines", {}).values()
            line = min(lines, default=self._lines[key])
            yield Section(self.path, f"{self._at(key)}[{index}]", content, line)

    def refuse(self, problem: str, key: str = "") -> NoReturn:
        """Raise `InvalidFileError` with the place of a key, or of the whole mapping."""
        line = self._lines.get(key, self._line)
        self._refuse(problem, self._at(key) if key else self._place, line)

    def _at(self, key: str) -> str:
        return f"{self._place}.{key}" if self._place else key

    def _refuse(self, problem: str, place: str, line: int) -> NoReturn:
        where = f"line {line}, {place}" if place else f"line {line}"
        raise InvalidFileError(self.path, problem, where=where)


def anything(value: Any) -> Any:
    return value


def read_yaml(path: Path) -> Section:
    """The top of a YAML file; raises `InvalidFileError` where it is not one."""
    return Section(path, "", yaml_file.read_content(path, _Loader))


def text(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise ValueError("expected a word")


def flag(value: Any) -> bool:
    """Also 0 and 1, as MACE writes it."""
    if value in (0, 1) and isinstance(value, int):
        return bool(value)
    raise ValueError("expected true or false (1 or 0)")


def whole(least: int) -> ValueReader[int]:
    def reader(value: Any) -> int:
        if type(value) is int and value > MOST:
            raise ValueError(f"expected at most {MOST}")
        if type(value) is int and value >= least:
            return value
        raise ValueError(f"expected a whole number of {least} or more")

    return reader


def number(value: Any) -> float:
    if type(value) is float or (type(value) is int and abs(value) <= MOST):
        return float(value)
    raise ValueError("expected a number")


def one_of(*choices: Any) -> ValueReader[Any]:
    def reader(value: Any) -> Any:
        # 1 is also True, and "a" no part of "abc"
        if any(value == other and type(value) is type(other) for other in choices):
            return value
        raise ValueError(f"expected one of {', '.join(map(str, choices))}")

    return reader


def sequence(reader: ValueReader[T]) -> ValueReader[tuple[T, ...]]:
    """A list of one or more."""

    def read(value: Any) -> tuple[T, ...]:
        if isinstance(value, list) and value:
            return tuple(reader(item) for item in value)
        raise ValueError("expected a list")

    return read


def pair(least: int) -> ValueReader[tuple[int, int]]:
    """A height and a width; one number is both."""

    def reader(value: Any) -> tuple[int, int]:
        values = value if isinstance(value, list) else [value, value]
        if len(values) == 2 and all(type(v) is int and least <= v <= MOST for v in values):
            return values[0], values[1]
        raise ValueError(f"expected one or two whole numbers of {least} or more")

    return reader


def sizes(value: Any) -> tuple[int, ...]:
    """A shape: a list, or a text such as `1,3,224,224`, or one size."""
    values = _split(value)
    if not values or not all(type(v) is int and v > 0 for v in values):
        raise ValueError("expected sizes above 0 such as 1,3,224,224")
    if prod(values) > MOST:
        raise ValueError(f"expected a tensor of at most {MOST} numbers")
    return tuple(values)


def _split(value: Any) -> Sequence[Any]:
    if isinstance(value, str):
        return [int(part) if part.strip().isdecimal() else part for part in value.split(",")]
    return value if isinstance(value, list) else [value]


def _plain(value: Any) -> Any:
    """As a person would write it."""
    return dict(value) if isinstance(value, _Lined) else value
