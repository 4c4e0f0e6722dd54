"""Errors, bounds and records of the stand-in, and how records become JSON."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class MsgspecError(Exception):
    """Base of all errors."""


class DecodeError(MsgspecError):
    """A text is no JSON."""


class ValidationError(DecodeError):
    """A value is of another type than was expected."""


@dataclass(frozen=True)
class Meta:
    """Bounds of a number, or of a length, which are not looked at here."""

    ge: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None


class Raw(bytes):
    """JSON that is written as it is."""


# Records.


class _StructMeta(type):
    """Makes the fields of a class from its annotations, behind those of its bases."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        **settings: bool | str | None,
    ) -> Any:
        hints = namespace.get("__annotations__", {})
        own = [key for key in hints if not str(hints[key]).startswith(("ClassVar", "typing.Class"))]
        defaults = {key: namespace.pop(key) for key in own if key in namespace}
        namespace |= {f"_{name}": value for name, value in settings.items() if value is not None}
        cls: Any = super().__new__(mcs, name, bases, namespace)
        before = getattr(cls, "__struct_fields__", ())
        cls.__struct_fields__ = (*before, *(key for key in own if key not in before))
        cls._defaults = {**getattr(cls, "_defaults", {}), **defaults}
        return cls


class Struct(metaclass=_StructMeta):
    """A record of typed fields."""

    __struct_fields__: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[Mapping[str, Any]] = {}
    _frozen = False
    _tag, _tag_field = None, "type"

    def __init__(self, *values: Any, **named: Any) -> None:
        names = self.__struct_fields__
        passed = {**dict(zip(names, values, strict=False)), **named}
        wrong = {*names} ^ ({*passed} | {*self._defaults})
        if wrong or len(values) > len(names):
            raise TypeError(f"{type(self).__name__} has {', '.join(names)}: {sorted(wrong)}")
        for name in names:
            value = passed[name] if name in passed else copy.copy(self._defaults[name])
            object.__setattr__(self, name, value)
        if hasattr(self, "__post_init__"):
            self.__post_init__()

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen:
            raise AttributeError(f"immutable type: '{type(self).__name__}'")
        object.__setattr__(self, name, value)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._values() == self._values()

    def __hash__(self) -> int:
        if not self._frozen:
            raise TypeError(f"unhashable type: '{type(self).__name__}'")
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        values = zip(self.__struct_fields__, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values)})"


def defstruct(name: str, members: Iterable[Any], **settings: Any) -> Any:
    """A record by the names and types of its fields, and any defaults."""
    parts = [(member, Any) if isinstance(member, str) else tuple(member) for member in members]
    namespace: dict[str, Any] = {"__annotations__": {part[0]: part[1] for part in parts}}
    namespace |= {part[0]: part[2] for part in parts if len(part) > 2}
    return _StructMeta(name, (Struct,), {"__module__": __name__, **namespace}, **settings)


def replace(record: T, **changes: Any) -> T:
    """A copy of a record with other values."""
    names = record.__struct_fields__  # type: ignore[attr-defined]
    values = {name: getattr(record, name) for name in names}
    return type(record)(**{**values, **changes})


def tag_of(cls: Any) -> str | None:
    tag: str | None = cls.__name__ if cls._tag is True else cls._tag
    return tag


# Writing.


def _members(value: Any) -> dict[Any, Any] | None:
    """A record as a mapping; None of what is none."""
    if isinstance(value, Struct):
        tag = tag_of(type(value))
        head = {} if tag is None else {value._tag_field: tag}
        return {**head, **dict(zip(value.__struct_fields__, value._values(), strict=True))}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value if isinstance(value, dict) else None


def plain(value: Any, hook: Callable[[Any], Any] | None) -> Any:
    """What JSON has of a value: records as mappings; `hook` makes it of other types."""
    if isinstance(value, Raw):
        return json.loads(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    members = _members(value)
    if members is not None:
        return {key: plain(item, hook) for key, item in members.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item, hook) for item in value]
    if hook is not None:
        return plain(hook(value), hook)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def text_of(value: Any, hook: Callable[[Any], Any] | None, *, is_sorted: bool = False) -> str:
    made = plain(value, hook)
    return json.dumps(made, ensure_ascii=False, separators=(",", ":"), sort_keys=is_sorted)


def to_builtins(value: Any) -> Any:
    """Records as mappings, all else as it is."""
    members = _members(value)
    if members is not None:
        return {key: to_builtins(item) for key, item in members.items()}
    if isinstance(value, list | tuple | set | frozenset):
        kind = tuple if isinstance(value, tuple) else list
        return kind([to_builtins(item) for item in value])
    return value.value if isinstance(value, Enum) else value
