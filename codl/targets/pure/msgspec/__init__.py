"""A stand-in for msgspec in pure Python with the parts that codl uses, for agents without it.

Structs are dataclasses. The sender is the same codl, so values are converted to their types without
checks of bounds and unknown fields. It is tens of times slower.
"""

from __future__ import annotations

import copy
import json as _json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from inspect import get_annotations
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as _hints

#: Converts a value to a type that is not known here: gets the type and the value.
Hook = Callable[[Any, Any], Any]
Reader = Callable[[Any, Hook | None], Any]
SCALARS = (str, int, bool, bytes, type(None))


class MsgspecError(Exception):
    """Base of all errors."""


class DecodeError(MsgspecError):
    """A text is not JSON."""


class ValidationError(DecodeError):
    """A value has another type than expected."""


class Meta:
    """Bounds of a number or a length, which are not checked."""

    def __init__(self, **bounds: Any) -> None:
        """Accept any bounds."""


class Raw(bytes):
    """JSON text."""


class Struct:
    """A record: a dataclass of its annotations, with an optional tag."""

    _frozen: ClassVar[bool] = False
    _tag: ClassVar[Any] = None
    _tag_field: ClassVar[str] = "type"

    def __init_subclass__(cls, **settings: Any) -> None:
        for name, value in settings.items():
            if value is not None:
                setattr(cls, f"_{name}", value)
        for name in get_annotations(cls):
            if isinstance(default := vars(cls).get(name), dict | list | set):
                setattr(cls, name, field(default_factory=partial(copy.copy, default)))
        dataclass(frozen=cls._frozen, repr=False)(cls)

    def __repr__(self) -> str:
        values = (f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({', '.join(values)})"


def tag_of(cls: Any) -> Any:
    return cls.__name__ if cls._tag is True else cls._tag


# Writing.


def _members(value: Any) -> dict[Any, Any] | None:
    """A record as a mapping; None for a value of another kind."""
    if not is_dataclass(value) or isinstance(value, type):
        return value if isinstance(value, dict) else None
    found = {own.name: getattr(value, own.name) for own in fields(value)}
    tag = tag_of(type(value)) if isinstance(value, Struct) else None
    return found if tag is None else {value._tag_field: tag, **found}  # type: ignore[attr-defined]


def to_builtins(value: Any, hook: Callable[[Any], Any] | None = None) -> Any:
    """A value as mappings, sequences and scalars; `hook` converts values of other types."""
    members = _members(value)
    if members is not None:
        return {key: to_builtins(item, hook) for key, item in members.items()}
    if isinstance(value, Raw):
        return _json.loads(value)
    if isinstance(value, tuple):
        return tuple(to_builtins(item, hook) for item in value)
    if isinstance(value, list):
        return [to_builtins(item, hook) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if hook is None:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return to_builtins(hook(value), hook)


def _finite(value: Any) -> Any:
    """The value with null for numbers outside JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def encode(
    value: Any, *, enc_hook: Callable[[Any], Any] | None = None, order: str | None = None
) -> bytes:
    """The JSON of a value; with an `order` the keys of mappings are sorted."""
    made = _finite(to_builtins(value, enc_hook))
    text = _json.dumps(made, ensure_ascii=False, separators=(",", ":"), sort_keys=order is not None)
    return text.encode()


# Reading.


def convert(value: Any, type: Any, *, dec_hook: Hook | None = None) -> Any:
    """Convert mappings, sequences and scalars to a type; raises `ValidationError`."""
    try:
        return reader_of(type)(value, dec_hook)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValidationError(f"{value!r:.60} cannot become {type}: {error}") from error


def _refuse(text: str) -> Any:
    raise ValueError(f"invalid number {text}")


def decode(content: Any, *, type: Any = Any, dec_hook: Hook | None = None) -> Any:
    """Read a JSON text as a type; raises `DecodeError` for a text that is not JSON."""
    text = content if isinstance(content, str) else bytes(content).decode()
    try:
        value = _json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        raise DecodeError(f"JSON is malformed: {error}") from error
    return convert(value, type, dec_hook=dec_hook)


class Encoder:
    """Writes values with the same options."""

    def __init__(self, **options: Any) -> None:
        self.encode = partial(encode, **options)


class Decoder:
    """Reads texts as one type."""

    def __init__(self, type: Any = Any, *, dec_hook: Hook | None = None) -> None:
        self.decode = partial(decode, type=type, dec_hook=dec_hook)


structs = SimpleNamespace(replace=replace)
json = SimpleNamespace(encode=encode, decode=decode, Encoder=Encoder, Decoder=Decoder)


@cache
def reader_of(hint: Any) -> Reader:
    """The function that reads values of a type."""
    hint = _bare(hint)
    kind = get_origin(hint) or hint
    if kind in (Any, object, Literal, *SCALARS) or isinstance(hint, TypeVar):
        return lambda value, hook: value
    if kind is Raw:
        return lambda value, hook: Raw(encode(value))
    if kind in (Union, UnionType):
        return _union(hint)
    if kind is float:
        return lambda value, hook: float(value)
    if is_dataclass(kind):
        return _record(kind)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    if issubclass(kind, Mapping):
        return _mapping(*(get_args(hint) or (Any, Any)))
    if issubclass(kind, Sequence):
        return _array(kind, get_args(hint))
    return lambda value, hook: value if hook is None else hook(hint, value)


def _bare(hint: Any) -> Any:
    """A type without its annotations."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return type(None) if hint is None else hint


def _union(hint: Any) -> Reader:
    parts = [_bare(part) for part in get_args(hint)]
    structs: list[Any] = [
        part for part in parts if isinstance(part, type) and issubclass(part, Struct)
    ]
    by_tag = {tag_of(part): part for part in structs}

    def read(value: Any, hook: Hook | None) -> Any:
        if len(by_tag) > 1 and isinstance(value, Mapping):
            part: Any = by_tag.get(value.get(structs[0]._tag_field))
        else:
            able = [part for part in parts if _takes(part, value)]
            part = next((part for part in able if part is type(value)), *able[:1] or [None])
        if part is None:
            raise ValidationError(f"{value!r:.60} is not one of {hint}")
        return reader_of(part)(value, hook)

    return read


def _takes(part: Any, value: Any) -> bool:
    """Whether a value may be of a type; any value may be one made by a hook."""
    kind = get_origin(part) or part
    if kind is Literal:
        return value in get_args(part)
    if kind is Any or not isinstance(kind, type):
        return True
    if is_dataclass(kind) or issubclass(kind, Mapping):
        return isinstance(value, Mapping)
    if kind in SCALARS or kind is float:
        return type(value) is kind or (kind is float and type(value) is int)
    if issubclass(kind, Sequence):
        return isinstance(value, list | tuple)
    return value is not None


def _mapping(key_hint: Any, item_hint: Any) -> Reader:
    """Reads a mapping, whose keys in JSON are texts."""
    key_kind, read_key, read_item = _bare(key_hint), reader_of(key_hint), reader_of(item_hint)

    def read(value: Any, hook: Hook | None) -> Any:
        keys = map(key_kind, value) if key_kind in (int, float) else value
        items = zip(keys, value.values(), strict=True)
        return {read_key(key, hook): read_item(item, hook) for key, item in items}

    return read


def _array(kind: Any, arguments: tuple[Any, ...]) -> Reader:
    make: Any = tuple if issubclass(kind, tuple) else list
    if make is tuple and arguments and arguments[-1] is not Ellipsis:
        readers = [reader_of(part) for part in arguments]
        return lambda value, hook: tuple(
            read(item, hook) for read, item in zip(readers, value, strict=True)
        )
    read_item = reader_of(arguments[0] if arguments else Any)
    return lambda value, hook: make(read_item(item, hook) for item in value)


def _named_tuple(kind: Any) -> Reader:
    hints = _hints(kind, include_extras=True)
    readers = [reader_of(hints.get(name, Any)) for name in kind._fields]
    return lambda value, hook: kind(
        *(read(item, hook) for read, item in zip(readers, value, strict=False))
    )


def _record(kind: Any) -> Reader:
    """The reader of a struct or a dataclass; its fields' readers are made on first use."""
    readers: dict[str, Reader] = {}

    def read(value: Any, hook: Hook | None) -> Any:
        if isinstance(value, kind):
            return value
        if not readers:
            hints = _hints(kind, include_extras=True)
            readers.update({f.name: reader_of(hints[f.name]) for f in fields(kind) if f.init})
        known = {name: item for name, item in value.items() if name in readers}
        return kind(**{name: readers[name](item, hook) for name, item in known.items()})

    return read
