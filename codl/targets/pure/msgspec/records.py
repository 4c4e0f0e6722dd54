"""Errors, bounds and records of the stand-in, and how records become JSON."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from json.encoder import encode_basestring as _quoted
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")


class MsgspecError(Exception):
    """Base of all errors."""


class DecodeError(MsgspecError):
    """A text is no JSON."""


class ValidationError(DecodeError):
    """A value is of another type than was expected; the message says which, and where it is."""


class WrongError(Exception):
    """The same on its way up, which adds to the path."""

    def __init__(self, reason: str, path: str = "", *, of_key: bool = False) -> None:
        self.reason, self.path, self.of_key = reason, path, of_key

    def below(self, step: str) -> WrongError:
        return WrongError(self.reason, step + self.path, of_key=self.of_key)

    def error(self) -> ValidationError:
        where = f" - at {'`key` in ' * self.of_key}`${self.path}`"
        return ValidationError(self.reason + where * bool(self.path or self.of_key))


@dataclass(frozen=True)
class Meta:
    """Bounds of a number, or of a length."""

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
    _frozen = _forbid_unknown_fields = False
    _tag, _tag_field = None, "type"

    def __init__(self, *values: Any, **named: Any) -> None:
        names = self.__struct_fields__
        if len(values) > len(names):
            raise TypeError("Extra positional arguments provided")
        given = dict(zip(names, values, strict=False))
        if unknown := {*named} & {*given} | {*named} - {*names}:
            raise TypeError(f"Unexpected keyword argument '{min(unknown)}'")
        given |= named
        for name in names:
            if name not in given and name not in self._defaults:
                raise TypeError(f"Missing required argument '{name}'")
            value = given[name] if name in given else copy.copy(self._defaults[name])
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
    return None


def _number(value: float) -> str:
    """The shortest text, without zeros that say nothing."""
    if not math.isfinite(value):
        return "null"
    text = float.__repr__(value)
    digits, _, exponent = text.partition("e")
    if not exponent:
        return text
    power = int(exponent)
    if power < -6 or power > 0:
        return f"{digits}e{power}"
    sign, plain = ("-", digits[1:]) if digits[0] == "-" else ("", digits)
    return f"{sign}0.{'0' * (-power - 1)}{plain.replace('.', '')}"


def text_of(value: Any, hook: Callable[[Any], Any] | None, is_sorted: bool) -> str:
    if isinstance(value, str) and not isinstance(value, Enum):
        return _quoted(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float) and not isinstance(value, Enum):
        return _number(value) if isinstance(value, float) else int.__repr__(value)
    if isinstance(value, Raw):
        return value.decode()
    if isinstance(value, Enum):
        return text_of(value.value, hook, is_sorted)
    members = value if isinstance(value, dict) else _members(value)
    if members is not None:
        pairs = [(_key(key), item) for key, item in members.items()]
        if is_sorted and members is value:
            pairs.sort(key=lambda pair: pair[0])
        items = [f"{_quoted(key)}:{text_of(item, hook, is_sorted)}" for key, item in pairs]
        return f"{{{','.join(items)}}}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{','.join([text_of(item, hook, is_sorted) for item in value])}]"
    if hook is not None:
        return text_of(hook(value), hook, is_sorted)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def _key(key: Any) -> str:
    if isinstance(key, Enum):
        key = key.value
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    if isinstance(key, float):
        return _number(key)
    raise TypeError("Only dicts with str-like or number-like keys are supported")


def to_builtins(value: Any) -> Any:
    """Records as mappings, all else as it is."""
    members = value if isinstance(value, dict) else _members(value)
    if members is not None:
        return {key: to_builtins(item) for key, item in members.items()}
    if isinstance(value, list | tuple | set | frozenset):
        kind = tuple if isinstance(value, tuple) else list
        return kind([to_builtins(item) for item in value])
    return value.value if isinstance(value, Enum) else value
