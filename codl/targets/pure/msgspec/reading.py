"""How the stand-in reads values of a type.

What comes is written by this codl on the other side, so nothing is looked at but what a value has
to become: a member of a union is chosen by how its value is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .records import Raw, Struct, ValidationError, tag_of, text_of

#: Makes values of types that are not known here, of the type and what is written.
Hook = Callable[[Any, Any], Any]
Reader = Callable[[Any, Hook | None], Any]
SCALARS = (str, int, bool, bytes, type(None))


def _same(value: Any, hook: Hook | None) -> Any:
    return value


@cache
def reader_of(hint: Any) -> Reader:
    """What reads values of a type."""
    hint = _bare(hint)
    kind = get_origin(hint) or hint
    if kind in (Any, object, Literal, *SCALARS) or isinstance(hint, TypeVar):
        return _same
    if kind is float:
        return lambda value, hook: float(value)
    if kind is Raw:
        return lambda value, hook: Raw(text_of(value, None).encode())
    if kind in (Union, UnionType):
        return _union(hint)
    if issubclass(kind, Enum):
        return lambda value, hook: kind(value)
    if issubclass(kind, Struct) or is_dataclass(kind):
        return _record(kind)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    if issubclass(kind, Mapping):
        return _mapping(*(get_args(hint) or (Any, Any)))
    if issubclass(kind, Sequence | Set):
        return _array(kind, get_args(hint))
    return _custom(hint)


def _bare(hint: Any) -> Any:
    """A type without what is noted beside it."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return type(None) if hint is None else hint


def _custom(hint: Any) -> Reader:
    def read(value: Any, hook: Hook | None) -> Any:
        return value if hook is None else hook(hint, value)

    return read


def _union(hint: Any) -> Reader:
    parts = [_bare(part) for part in get_args(hint)]
    by_tag = {tag_of(part): part for part in parts if _is_struct(part)}

    def read(value: Any, hook: Hook | None) -> Any:
        if len(by_tag) > 1 and isinstance(value, Mapping):
            part = by_tag.get(value.get(next(iter(by_tag.values()))._tag_field))
        else:
            able = [part for part in parts if _takes(part, value)]
            part = next((part for part in able if part is type(value)), *able[:1] or [None])
        if part is None:
            raise ValidationError(f"{hint} is no type of {value!r:.60}")
        return reader_of(part)(value, hook)

    return read


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _takes(part: Any, value: Any) -> bool:
    """Whether a value is written as those of a type are; of what a hook makes any may be."""
    kind = get_origin(part) or part
    if kind is Literal:
        return value in get_args(part)
    if kind is Any or not isinstance(kind, type):
        return True
    if is_dataclass(kind) or issubclass(kind, Struct | Mapping):
        return isinstance(value, Mapping)
    if kind in SCALARS or kind is float:
        return type(value) is kind or (kind is float and type(value) is int)
    if issubclass(kind, Sequence | Set):
        return isinstance(value, list | tuple | Set)
    return value is not None


def _mapping(key_hint: Any, item_hint: Any) -> Reader:
    """Keys of JSON are texts, whatever they are to become."""
    key_kind, read_item = _bare(key_hint), reader_of(item_hint)
    read_key = reader_of(key_hint)

    def read(value: Any, hook: Hook | None) -> Any:
        keys = map(key_kind, value) if key_kind in (int, float) else value
        items = zip(keys, value.values(), strict=True)
        return {read_key(key, hook): read_item(item, hook) for key, item in items}

    return read


def _array(kind: Any, arguments: tuple[Any, ...]) -> Reader:
    make = next((k for k in (tuple, frozenset, set) if issubclass(kind, k)), list)
    if make is tuple and arguments and arguments[-1] is not Ellipsis:
        readers = [reader_of(part) for part in arguments]
        return lambda value, hook: tuple(
            read(item, hook) for read, item in zip(readers, value, strict=True)
        )
    read_item = reader_of(arguments[0] if arguments else Any)
    return lambda value, hook: make(read_item(item, hook) for item in value)


def _named_tuple(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = [reader_of(hints.get(name, Any)) for name in kind._fields]
    return lambda value, hook: kind(
        *(read(item, hook) for read, item in zip(readers, value, strict=False))
    )


def _record(kind: Any) -> Reader:
    """Of a struct or a dataclass: its readers are made when they are first needed."""
    readers: dict[str, Reader] = {}

    def read(value: Any, hook: Hook | None) -> Any:
        if isinstance(value, kind):
            return value
        if not readers:
            hints, is_struct = get_type_hints(kind, include_extras=True), issubclass(kind, Struct)
            names = (
                kind.__struct_fields__ if is_struct else [f.name for f in fields(kind) if f.init]
            )
            readers.update({name: reader_of(hints[name]) for name in names})
        known = {name: item for name, item in value.items() if name in readers}
        made = {name: readers[name](item, hook) for name, item in known.items()}
        try:
            return kind(**made)
        except (TypeError, ValueError) as error:  # a field that is missing, or a rule of its own
            raise ValidationError(str(error)) from error

    return read


def _fields_of(kind: Any) -> list[str]:
    if issubclass(kind, Struct):
        return list(kind.__struct_fields__)
    return [field.name for field in fields(kind) if field.init]


def read(value: Any, hint: Any, hook: Hook | None) -> Any:
    """A value of a type; raises `ValidationError` for what cannot become one."""
    try:
        return reader_of(hint)(value, hook)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValidationError(f"{value!r:.60} is no {hint}: {error}") from error
