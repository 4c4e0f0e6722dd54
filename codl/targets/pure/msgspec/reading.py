"""How the stand-in reads values of a type, and says what is wrong with them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from .records import Meta, Raw, Struct, WrongError, tag_of, text_of

Hook = Callable[[Any, Any], Any]


class Source(NamedTuple):
    """How other types are read, and whether keys are JSON's, which are always texts."""

    hook: Hook | None
    is_json: bool


Reader = Callable[[Any, Source], Any]
_ORDER = ("bool", "int", "float", "str", "object", "array", "null")
_NAMES = {str: "str", int: "int", float: "float", bool: "bool", type(None): "null", bytes: "bytes"}


def _name_of(value: Any) -> str:
    """What a value is called in messages."""
    if isinstance(value, Mapping):
        return "object"
    if isinstance(value, list | tuple | Set):
        return "array"
    return _NAMES.get(type(value), type(value).__name__)


def _called(hint: Any) -> str:
    """What a type is called in messages."""
    hint = _plain(hint)
    if hint in _NAMES:
        return _NAMES[hint]
    if get_origin(hint) is Literal:
        return _name_of(get_args(hint)[0])
    if _is_union(hint):
        names = dict.fromkeys(map(_called, _parts(hint)))
        return " | ".join(
            sorted(names, key=lambda name: _ORDER.index(name) if name in _ORDER else -1)
        )
    kind = get_origin(hint) or hint
    if not isinstance(kind, type):
        return "any"
    if issubclass(kind, Mapping | Struct) or is_dataclass(kind):
        return "object"
    return "array" if issubclass(kind, Sequence | Set) else kind.__name__


def _plain(hint: Any) -> Any:
    """A type without what is noted beside it."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return type(None) if hint is None else hint


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _parts(union: Any) -> list[Any]:
    """The members of a union, null last."""
    parts = [type(None) if part is None else part for part in get_args(union)]
    return sorted(parts, key=lambda part: _plain(part) is type(None))


def _expected(hint: Any, value: Any) -> WrongError:
    return WrongError(f"Expected `{_called(hint)}`, got `{_name_of(value)}`")


@cache
def _reader(hint: Any) -> Reader:
    """What reads values of a type."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        return _bounded(inner, [note for note in notes if isinstance(note, Meta)])
    hint = type(None) if hint is None else hint
    if hint is Any or hint is object or isinstance(hint, TypeVar):
        return lambda value, source: value
    if hint is Raw:
        return lambda value, source: Raw(text_of(value, None, False).encode())
    if _is_union(hint):
        return _union(hint)
    if get_origin(hint) is Literal:
        return _literal(hint)
    kind = get_origin(hint) or hint
    if kind in _NAMES:
        return _scalar(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    if isinstance(kind, type) and (issubclass(kind, Struct) or is_dataclass(kind)):
        return _record(kind)
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple(kind)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return _mapping(hint)
    if isinstance(kind, type) and issubclass(kind, list | tuple | Sequence | Set):
        return _array(hint, kind)
    return _custom(hint)


def _custom(hint: Any) -> Reader:
    def read(value: Any, source: Source) -> Any:
        if source.hook is None:
            raise _expected(hint, value)
        return _ruled(lambda: source.hook(hint, value))  # type: ignore[misc]

    return read


def _ruled(make: Callable[[], Any]) -> Any:
    """What a class makes; a rule of its own that is broken is an error of the value."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise WrongError(str(error)) from error


def _scalar(kind: Any) -> Reader:
    def read(value: Any, source: Source) -> Any:
        if type(value) is kind:
            return value
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind in (int, str) and isinstance(value, kind) and not isinstance(value, bool):
            return value
        raise _expected(kind, value)

    return read


def _literal(hint: Any) -> Reader:
    values = get_args(hint)
    types = {type(value) for value in values}

    def read(value: Any, source: Source) -> Any:
        if type(value) not in types:
            raise _expected(hint, value)
        if value not in values:
            raise WrongError(f"Invalid enum value {value!r}")
        return value

    return read


def _enum(kind: Any) -> Reader:
    def read(value: Any, source: Source) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise WrongError(f"Invalid enum value {value!r}") from None

    return read


#: How a bound is written, and what is right.
_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": (">=", operator.ge),
    "le": ("<=", operator.le),
    "min_length": (">=", operator.ge),
    "max_length": ("<=", operator.le),
}


def _bounded(inner: Any, notes: Sequence[Meta]) -> Reader:
    read, name = _reader(inner), _called(inner)

    def check(value: Any, source: Source) -> Any:
        made = read(value, source)
        for note in notes:
            for key, (sign, is_right) in _BOUNDS.items():
                bound, is_length = getattr(note, key), key.endswith("length")
                if bound is not None and not is_right(len(made) if is_length else made, bound):
                    of = "of length " * is_length
                    raise WrongError(f"Expected `{name}` {of}{sign} {bound}")
        return made

    return check


def _union(hint: Any) -> Reader:
    parts = _parts(hint)
    tagged = {tag_of(p): p for p in map(_plain, parts) if _is_struct(p) and tag_of(p) is not None}

    def read(value: Any, source: Source) -> Any:
        if len(tagged) > 1 and isinstance(value, Mapping):
            return _by_tag(tagged, value, source)
        if value is None and type(None) in map(_plain, parts):
            return None
        for part in parts:
            if _takes(_plain(part), value):
                return _reader(part)(value, source)
        raise _expected(hint, value)

    return read


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _by_tag(tagged: Mapping[Any, Any], value: Any, source: Source) -> Any:
    field = next(iter(tagged.values()))._tag_field
    if field not in value:
        raise WrongError(f"Object missing required field `{field}`")
    if value[field] not in tagged:
        raise WrongError(f"Invalid value {value[field]!r}", f".{field}")
    return _reader(tagged[value[field]])(value, source)


def _takes(part: Any, value: Any) -> bool:
    """Whether a member of a union is the one for a value, by what both are called."""
    if part is Any:
        return True
    name, called = _name_of(value), _called(part)
    if called == name or (called, name) == ("float", "int"):
        return True
    known = {*_NAMES.values(), "object", "array"}
    is_made = isinstance(part, type) and isinstance(value, part) and not isinstance(value, bool)
    return called not in known or is_made


def _mapping(hint: Any) -> Reader:
    key_hint, item_hint = get_args(hint) or (Any, Any)
    read_key, read_item, key_kind = _reader(key_hint), _reader(item_hint), _plain(key_hint)

    def key_of(key: Any, source: Source) -> Any:
        if source.is_json and key_kind in (int, float):
            try:
                key = key_kind(key)
            except ValueError:
                raise WrongError(f"Expected `{_NAMES[key_kind]}`, got `str`") from None
        return read_key(key, source)

    def read(value: Any, source: Source) -> Any:
        if not isinstance(value, Mapping):
            raise _expected(hint, value)
        made = {}
        for key, item in value.items():
            try:
                new = key_of(key, source)
            except WrongError as error:
                raise WrongError(error.reason, error.path, of_key=True) from None
            try:
                made[new] = read_item(item, source)
            except WrongError as error:
                raise error.below("[...]") from None
        return made

    return read


def _each(read: Reader, values: Iterable[Any], source: Source) -> list[Any]:
    made: list[Any] = []
    try:
        for value in values:
            made.append(read(value, source))
    except WrongError as error:
        raise error.below(f"[{len(made)}]") from None
    return made


def _array(hint: Any, kind: Any) -> Reader:
    arguments = get_args(hint)
    make = next((k for k in (tuple, frozenset, set) if issubclass(kind, k)), list)
    if make is tuple and arguments and arguments[-1] is not Ellipsis:
        return _fixed(hint, [_reader(part) for part in arguments], lambda values: tuple(values))
    read_item = _reader(arguments[0] if arguments else Any)

    def read(value: Any, source: Source) -> Any:
        if not isinstance(value, list | tuple | Set):
            raise _expected(hint, value)
        return make(_each(read_item, value, source))

    return read


def _fixed(
    hint: Any, readers: Sequence[Reader], make: Callable[[list[Any]], Any], least: int | None = None
) -> Reader:
    most = len(readers)
    fewest = most if least is None else least

    def read(value: Any, source: Source) -> Any:
        if not isinstance(value, list | tuple):
            raise _expected(hint, value)
        at, made = 0, []
        try:
            for at, (reader, item) in enumerate(zip(readers, value, strict=False)):  # noqa: B007
                made.append(reader(item, source))
        except WrongError as error:
            raise error.below(f"[{at}]") from None
        if not fewest <= len(value) <= most:
            length = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            raise WrongError(f"Expected `array` of length {length}")
        return make(made)

    return read


def _named_tuple(kind: Any) -> Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = [_reader(hints.get(name, Any)) for name in kind._fields]
    least = len(readers) - len(kind._field_defaults)
    return _fixed(kind, readers, lambda values: kind(*values), least)


def _record(kind: Any) -> Reader:
    """Of a struct or a dataclass: its readers are made when they are first needed."""
    is_struct = issubclass(kind, Struct)
    readers: dict[str, Reader] = {}
    required: list[str] = []

    def prepare() -> None:
        hints = get_type_hints(kind, include_extras=True)
        if is_struct:
            names = list(kind.__struct_fields__)
            required.extend(name for name in names if name not in kind._defaults)
        else:
            members = [field for field in fields(kind) if field.init]
            names = [field.name for field in members]
            required.extend(
                f.name for f in members if f.default is MISSING and f.default_factory is MISSING
            )
        readers.update({name: _reader(hints[name]) for name in names})

    def read(value: Any, source: Source) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, Mapping):
            raise _expected(kind, value)
        if not readers:
            prepare()
        made: dict[str, Any] = {}
        for name, item in value.items():
            reader = readers.get(name)
            if reader is None:
                _check_unknown(kind, name, item)
                continue
            try:
                made[name] = reader(item, source)
            except WrongError as error:
                raise error.below(f".{name}") from None
        for name in required:
            if name not in made:
                raise WrongError(f"Object missing required field `{name}`")
        return _ruled(lambda: kind(**made))

    return read


def _check_unknown(kind: Any, name: Any, item: Any) -> None:
    if not _is_struct(kind):
        return
    tag = tag_of(kind)
    if tag is not None and name == kind._tag_field:
        if item != tag:
            raise WrongError(f"Invalid value {item!r}", f".{name}")
    elif kind._forbid_unknown_fields:
        raise WrongError(f"Object contains unknown field `{name}`")


def read(value: Any, kind: Any, source: Source) -> Any:
    try:
        return _reader(kind)(value, source)
    except WrongError as error:
        raise error.error() from error.__cause__
