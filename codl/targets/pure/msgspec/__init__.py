"""A stand-in for msgspec in pure Python: what codl uses of it, for agents where it is not.

It reads and writes the same JSON, refuses what msgspec refuses, and says so in the same words; it
is tens of times slower. A field `Raw` is written anew where msgspec would keep its text.
"""

from __future__ import annotations

import copy
import json as _json
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from json.encoder import encode_basestring as _quoted
from types import SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")
Hook = Callable[[Any, Any], Any]


class MsgspecError(Exception):
    """Base of all errors."""


class DecodeError(MsgspecError):
    """A text is no JSON."""


class ValidationError(DecodeError):
    """A value is of another type than was expected; the message says which, and where it is."""


class _WrongError(Exception):
    """The same on its way up, which adds to the path."""

    def __init__(self, reason: str, path: str = "", *, of_key: bool = False) -> None:
        self.reason, self.path, self.of_key = reason, path, of_key

    def below(self, step: str) -> _WrongError:
        return _WrongError(self.reason, step + self.path, of_key=self.of_key)

    def error(self) -> ValidationError:
        where = f" - at {'`key` in ' * self.of_key}`${self.path}`"
        return ValidationError(self.reason + where * bool(self.path or self.of_key))


@dataclass(frozen=True)
class Meta:
    """Bounds of a number, or of a length."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
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
        *,
        frozen: bool | None = None,
        forbid_unknown_fields: bool | None = None,
        tag: bool | str | None = None,
        tag_field: str | None = None,
    ) -> Any:
        settings = {
            "_frozen": frozen,
            "_forbids": forbid_unknown_fields,
            "_tag": tag,
            "_tag_field": tag_field,
        }
        hints = namespace.get("__annotations__", {})
        own = [key for key in hints if not str(hints[key]).startswith(("ClassVar", "typing.Class"))]
        defaults = {key: namespace.pop(key) for key in own if key in namespace}
        namespace |= {key: value for key, value in settings.items() if value is not None}
        cls: Any = super().__new__(mcs, name, bases, namespace)
        before = getattr(cls, "__struct_fields__", ())
        cls.__struct_fields__ = (*before, *(key for key in own if key not in before))
        cls._defaults = {**getattr(cls, "_defaults", {}), **defaults}
        return cls


class Struct(metaclass=_StructMeta):
    """A record of typed fields."""

    __struct_fields__: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[Mapping[str, Any]] = {}
    _frozen, _forbids, _tag, _tag_field = False, False, None, "type"

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


def _tag_of(cls: Any) -> str | None:
    tag: str | None = cls.__name__ if cls._tag is True else cls._tag
    return tag


# Writing.


def _members(value: Any) -> dict[Any, Any] | None:
    """A record as a mapping; None of what is none."""
    if isinstance(value, Struct):
        tag = _tag_of(type(value))
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


def _text(value: Any, hook: Callable[[Any], Any] | None, is_sorted: bool) -> str:
    if isinstance(value, str) and not isinstance(value, Enum):
        return _quoted(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float) and not isinstance(value, Enum):
        return _number(value) if isinstance(value, float) else int.__repr__(value)
    if isinstance(value, Raw):
        return value.decode()
    if isinstance(value, Enum):
        return _text(value.value, hook, is_sorted)
    members = value if isinstance(value, dict) else _members(value)
    if members is not None:
        pairs = [(_key(key), item) for key, item in members.items()]
        if is_sorted and members is value:
            pairs.sort(key=lambda pair: pair[0])
        items = [f"{_quoted(key)}:{_text(item, hook, is_sorted)}" for key, item in pairs]
        return f"{{{','.join(items)}}}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{','.join([_text(item, hook, is_sorted) for item in value])}]"
    if hook is not None:
        return _text(hook(value), hook, is_sorted)
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


# Reading.


class _Source(NamedTuple):
    """How other types are read, and whether keys are JSON's, which are always texts."""

    hook: Hook | None
    is_json: bool


Reader = Callable[[Any, _Source], Any]
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


def _expected(hint: Any, value: Any) -> _WrongError:
    return _WrongError(f"Expected `{_called(hint)}`, got `{_name_of(value)}`")


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
        return lambda value, source: Raw(_text(value, None, False).encode())
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
    def read(value: Any, source: _Source) -> Any:
        if source.hook is None:
            raise _expected(hint, value)
        return _ruled(lambda: source.hook(hint, value))  # type: ignore[misc]

    return read


def _ruled(make: Callable[[], Any]) -> Any:
    """What a class makes; a rule of its own that is broken is an error of the value."""
    try:
        return make()
    except (ValueError, TypeError) as error:
        raise _WrongError(str(error)) from error


def _scalar(kind: Any) -> Reader:
    def read(value: Any, source: _Source) -> Any:
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

    def read(value: Any, source: _Source) -> Any:
        if type(value) not in types:
            raise _expected(hint, value)
        if value not in values:
            raise _WrongError(f"Invalid enum value {value!r}")
        return value

    return read


def _enum(kind: Any) -> Reader:
    def read(value: Any, source: _Source) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise _WrongError(f"Invalid enum value {value!r}") from None

    return read


#: How a bound is written, and what is right.
_BOUNDS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "gt": (">", operator.gt),
    "ge": (">=", operator.ge),
    "lt": ("<", operator.lt),
    "le": ("<=", operator.le),
    "min_length": (">=", operator.ge),
    "max_length": ("<=", operator.le),
}


def _bounded(inner: Any, notes: Sequence[Meta]) -> Reader:
    read, name = _reader(inner), _called(inner)

    def check(value: Any, source: _Source) -> Any:
        made = read(value, source)
        for note in notes:
            for key, (sign, is_right) in _BOUNDS.items():
                bound, is_length = getattr(note, key), key.endswith("length")
                if bound is not None and not is_right(len(made) if is_length else made, bound):
                    of = "of length " * is_length
                    raise _WrongError(f"Expected `{name}` {of}{sign} {bound}")
        return made

    return check


def _union(hint: Any) -> Reader:
    parts = _parts(hint)
    tagged = {_tag_of(p): p for p in map(_plain, parts) if _is_struct(p) and _tag_of(p) is not None}

    def read(value: Any, source: _Source) -> Any:
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


def _by_tag(tagged: Mapping[Any, Any], value: Any, source: _Source) -> Any:
    field = next(iter(tagged.values()))._tag_field
    if field not in value:
        raise _WrongError(f"Object missing required field `{field}`")
    if value[field] not in tagged:
        raise _WrongError(f"Invalid value {value[field]!r}", f".{field}")
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

    def key_of(key: Any, source: _Source) -> Any:
        if source.is_json and key_kind in (int, float):
            try:
                key = key_kind(key)
            except ValueError:
                raise _WrongError(f"Expected `{_NAMES[key_kind]}`, got `str`") from None
        return read_key(key, source)

    def read(value: Any, source: _Source) -> Any:
        if not isinstance(value, Mapping):
            raise _expected(hint, value)
        made = {}
        for key, item in value.items():
            try:
                new = key_of(key, source)
            except _WrongError as error:
                raise _WrongError(error.reason, error.path, of_key=True) from None
            try:
                made[new] = read_item(item, source)
            except _WrongError as error:
                raise error.below("[...]") from None
        return made

    return read


def _each(read: Reader, values: Iterable[Any], source: _Source) -> list[Any]:
    made: list[Any] = []
    try:
        for value in values:
            made.append(read(value, source))
    except _WrongError as error:
        raise error.below(f"[{len(made)}]") from None
    return made


def _array(hint: Any, kind: Any) -> Reader:
    arguments = get_args(hint)
    make = next((k for k in (tuple, frozenset, set) if issubclass(kind, k)), list)
    if make is tuple and arguments and arguments[-1] is not Ellipsis:
        return _fixed(hint, [_reader(part) for part in arguments], lambda values: tuple(values))
    read_item = _reader(arguments[0] if arguments else Any)

    def read(value: Any, source: _Source) -> Any:
        if not isinstance(value, list | tuple | Set):
            raise _expected(hint, value)
        return make(_each(read_item, value, source))

    return read


def _fixed(
    hint: Any, readers: Sequence[Reader], make: Callable[[list[Any]], Any], least: int | None = None
) -> Reader:
    most = len(readers)
    fewest = most if least is None else least

    def read(value: Any, source: _Source) -> Any:
        if not isinstance(value, list | tuple):
            raise _expected(hint, value)
        at, made = 0, []
        try:
            for at, (reader, item) in enumerate(zip(readers, value, strict=False)):  # noqa: B007
                made.append(reader(item, source))
        except _WrongError as error:
            raise error.below(f"[{at}]") from None
        if not fewest <= len(value) <= most:
            length = f"{fewest}" if fewest == most else f"{fewest} to {most}"
            raise _WrongError(f"Expected `array` of length {length}")
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

    def read(value: Any, source: _Source) -> Any:
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
            except _WrongError as error:
                raise error.below(f".{name}") from None
        for name in required:
            if name not in made:
                raise _WrongError(f"Object missing required field `{name}`")
        return _ruled(lambda: kind(**made))

    return read


def _check_unknown(kind: Any, name: Any, item: Any) -> None:
    if not _is_struct(kind):
        return
    tag = _tag_of(kind)
    if tag is not None and name == kind._tag_field:
        if item != tag:
            raise _WrongError(f"Invalid value {item!r}", f".{name}")
    elif kind._forbids:
        raise _WrongError(f"Object contains unknown field `{name}`")


def _read(value: Any, kind: Any, source: _Source) -> Any:
    try:
        return _reader(kind)(value, source)
    except _WrongError as error:
        raise error.error() from error.__cause__


def convert(value: Any, type: Any, *, dec_hook: Hook | None = None) -> Any:
    """A value of a type, of mappings, lists and scalars; raises `ValidationError`."""
    return _read(value, type, _Source(dec_hook, False))


# JSON.


def _refused(text: str) -> Any:
    raise ValueError(f"invalid number {text}")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValidationError("Number out of range")
    return value


def decode(content: Any, *, type: Any = Any, dec_hook: Hook | None = None) -> Any:
    """What a JSON text says, of a type; raises `DecodeError` and `ValidationError`."""
    text = content if isinstance(content, str) else bytes(content).decode()
    try:
        value = _json.loads(text, parse_constant=_refused, parse_float=_float)
    except ValueError as error:
        raise DecodeError(f"JSON is malformed: {error}") from error
    return _read(value, type, _Source(dec_hook, True))


def encode(value: Any, *, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """The JSON of a value; `enc_hook` makes what JSON has of other types."""
    return _text(value, enc_hook, False).encode()


class Encoder:
    """Writes several values in one way; with an `order` the keys of mappings are sorted."""

    def __init__(
        self, *, enc_hook: Callable[[Any], Any] | None = None, order: str | None = None
    ) -> None:
        self._hook, self._is_sorted = enc_hook, order is not None

    def encode(self, value: Any) -> bytes:
        return _text(value, self._hook, self._is_sorted).encode()


class Decoder:
    """Reads several texts as one type."""

    def __init__(self, type: Any = Any, *, dec_hook: Hook | None = None) -> None:
        self._type, self._hook = type, dec_hook

    def decode(self, content: Any) -> Any:
        return decode(content, type=self._type, dec_hook=self._hook)


json = SimpleNamespace(encode=encode, decode=decode, Encoder=Encoder, Decoder=Decoder)
