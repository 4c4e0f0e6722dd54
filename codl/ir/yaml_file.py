"""YAML files as dataclasses; errors name the file, the key, the value and what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, get_type_hints

import msgspec
import yaml

from codl.errors import InvalidFileError, UnknownNameError

T = TypeVar("T")
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
NotNegative: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_WHERE = re.compile(r"(?P<problem>.*) - at `\$\.?(?P<keys>.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(?P<key>.*)`")


def read(path: Path, kind: type[T]) -> T:
    """The dataclass that a file holds; raises `InvalidFileError`."""
    return convert(read_content(path), kind, path)


def read_content(path: Path) -> Any:
    """What a YAML file holds; raises `InvalidFileError` for what is none."""
    try:
        return yaml.safe_load(path.read_text())
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # as of a date that is none
        raise InvalidFileError(path, f"not YAML: {error}") from error


def convert(content: Any, kind: type[T], path: Path) -> T:
    """A dataclass from what a file holds: every key is known, none is missing, each of its type."""
    _refuse_unknown(content, kind, path, "")
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), content, path) from error


def write(content: Any, path: Path, *, comment: str = "") -> Path:
    """Write a file at once; its folder is made, and a crash leaves no half of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    text = yaml.safe_dump(content, sort_keys=False, width=100)
    partial.write_text(f"# {comment}\n{text}" if comment else text)
    partial.replace(path)
    return path


def _refuse_unknown(content: Any, kind: Any, path: Path, where: str) -> None:
    if not is_dataclass(kind) or not isinstance(content, Mapping):
        return
    hints = get_type_hints(kind)
    known = {field.name: hints[field.name] for field in fields(kind)}
    for key, value in content.items():
        if key not in known:
            reason = str(UnknownNameError("key", str(key), known))
            raise InvalidFileError(path, reason, where=where or "top")
        for inner in getattr(known[key], "__args__", (known[key],)):  # of `PowerW | None` each
            _refuse_unknown(value, inner, path, f"{where}.{key}".lstrip("."))


def _explained(message: str, content: Any, path: Path) -> InvalidFileError:
    """msgspec's message by our words: the key, what was expected, and what is there instead."""
    match = _WHERE.fullmatch(message)
    problem, keys = (match["problem"], match["keys"]) if match else (message, "")
    if missing := _MISSING.fullmatch(problem):
        return InvalidFileError(
            path, "the key is missing.", where=f"{keys}.{missing['key']}".lstrip(".")
        )
    value = content
    for key in re.findall(r"[^.\[\]]+", keys):
        value = value[int(key) if isinstance(value, list) else key]
    expected = problem.replace("`", "").split(", got ")[0]
    expected = expected[0].lower() + expected[1:]
    return InvalidFileError(path, f"{expected}, got {value!r}.", where=keys or "top")
