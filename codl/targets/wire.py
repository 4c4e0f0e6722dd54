"""Messages between a host and an agent, and the encoding of values as JSON and blobs.

Requests, answers and events are values of type hints. A dataclass becomes an object with its class
name as `is`; bytes and arrays become blobs after the JSON. The receiver checks every type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import repeat
from math import prod
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir import Op, parse, to_text
from codl.ir.ops.onnx_model import OnnxModel
from codl.ir.plan import Plan, read_plan
from codl.ir.records.tuned import Tuned
from codl.kernels.tuning import Tuning
from codl.targets.connection import Blob, FrameError
from codl.targets.requests import EventKind

#: Version of the messages; an agent with another version is refused.
VERSION = 4
#: Permitted element types of arrays. Types with pointers are refused.
ELEMENTS = frozenset({"bool", "float16", "float32", "float64", "uint8", "uint16", "uint32",
                      "uint64", "int8", "int16", "int32", "int64"})  # fmt: skip


class Message(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="message", tag=True
):
    """Base of all messages."""


class RequestMessage(Message, frozen=True):
    """A request with its class name; the only kind of message to an agent."""

    kind: str
    content: msgspec.Raw


class Hello(Message, frozen=True):
    """First message of an agent; `begin` and `ready` are its clock at its start and now.

    `build` identifies the agent file; empty for an agent in a checkout.
    """

    version: int
    codl: str
    begin: float
    ready: float
    build: str = ""


class Event(Message, frozen=True):
    """Start or end (with `content`) of task or step `index`, or the end of a timing round."""

    kind: EventKind
    index: int
    content: msgspec.Raw


class Warned(Message, frozen=True):
    """A `CodlWarning` issued during a request."""

    text: str


class Answered(Message, frozen=True):
    """The answer, as the last message of a request."""

    value: msgspec.Raw


class Failed(Message, frozen=True):
    """The error that ends a request; `kind` is its class name."""

    kind: str
    text: str


Response: TypeAlias = Hello | Event | Warned | Answered | Failed


class SentArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reference to an array, whose elements are a blob."""

    type: str
    shape: tuple[int, ...]
    blob: int


class SentOp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An op as text, with the blob of an `OnnxModel`'s model."""

    text: str
    model: int | None


def encode(value: Any) -> tuple[msgspec.Raw, list[bytes | memoryview]]:
    """Encode a value as JSON and blobs."""
    blobs: list[bytes | memoryview] = []
    places: dict[int, int] = {}

    def put(source: object, blob: bytes | memoryview) -> int:
        """Add a blob once per source object, and return its index."""
        if id(source) not in places:
            places[id(source)] = len(blobs)
            blobs.append(blob)
        return places[id(source)]

    def sent(value: Any) -> Any:
        if isinstance(value, bytes):
            return put(value, value)
        if isinstance(value, np.ndarray):
            dense = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            return SentArray(value.dtype.name, value.shape, put(value, dense.data))
        if isinstance(value, Op):
            model = put(value.model, value.model) if isinstance(value, OnnxModel) else None
            return SentOp(to_text(value), model)
        if isinstance(value, Plan):
            return value.to_json()
        if isinstance(value, Tuning):  # its choices without the trials, which msgspec writes fast
            return value.choices
        if isinstance(value, Mapping):
            pairs = [(sent(key), sent(item)) for key, item in value.items()]
            return dict(pairs) if all(isinstance(key, str) for key in value) else pairs
        if isinstance(value, list | tuple):
            return [sent(item) for item in value]
        if is_dataclass(value):
            kind: Any = type(value)
            record = {name: sent(getattr(value, name)) for name in members(kind)}
            return {"is": kind.__name__, **record}
        return value

    return msgspec.Raw(msgspec.json.encode(sent(value), enc_hook=dict)), blobs


@cache
def members(cls: Any) -> Mapping[str, Any]:
    """Names and type hints of a dataclass's fields."""
    hints = get_type_hints(cls, include_extras=True)
    return {member.name: hints[member.name] for member in fields(cls) if member.init}


def decode(hint: Any, sent: msgspec.Raw, blobs: Sequence[Blob]) -> Any:
    """Decode a value of a type; arrays are views of the blobs.

    Raises `FrameError` for a value of another type, and `CodlError` for missing or extra blobs.
    """
    reader = _Reader(blobs)
    try:
        value = reader.take(hint, msgspec.json.decode(sent))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"A value has another type than expected: {error}.") from error
    if len(reader.used) != len(blobs):
        raise CodlError(f"The message refers to {len(reader.used)} blobs, but has {len(blobs)}.")
    return value


class _Reader:
    """Reads values of a message with these blobs; errors are of any type of `decode`."""

    def __init__(self, blobs: Sequence[Blob]) -> None:
        self._blobs = blobs
        self.used: set[int] = set()
        self._contents: dict[int, bytes] = {}

    def take(self, hint: Any, value: Any) -> Any:
        origin, parts = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            member = _member(parts, value)
            return msgspec.convert(value, hint) if member is None else self.take(member, value)
        if origin is np.ndarray:
            return self._array(msgspec.convert(value, SentArray))
        if _is_kind(origin, Mapping):
            pairs = value.items() if isinstance(value, dict) else msgspec.convert(value, Pairs)
            return {self.take(parts[0], key): self.take(parts[1], item) for key, item in pairs}
        if _is_kind(origin, Sequence):
            return self._items(list if origin is list else tuple, parts, value)
        if hint is bytes:
            return self._content(msgspec.convert(value, int))
        if _is_kind(hint, Op):
            return self._op(msgspec.convert(value, SentOp))
        if hint is Plan:
            return read_plan(value, Path("plan"))
        if hint is Tuning:
            return Tuning.of(msgspec.convert(value, tuple[Tuned, ...]))
        if isinstance(hint, type) and is_dataclass(hint):
            return self._record(hint, msgspec.convert(value, dict[str, Any]))
        return msgspec.convert(value, hint)

    def _items(self, kind: Callable[[Any], Any], parts: Sequence[Any], value: Any) -> Any:
        items = msgspec.convert(value, list)
        is_any_length = kind is list or parts[1:] in ((), (Ellipsis,))
        kinds = repeat(parts[0], len(items)) if is_any_length else parts
        return kind(self.take(part, item) for part, item in zip(kinds, items, strict=True))

    def _record(self, cls: Any, value: dict[str, Any]) -> Any:
        hints = members(cls)
        if {*value} != {"is", *hints} or value["is"] != cls.__name__:
            raise ValueError(f"{cls.__name__} has {', '.join(hints)}; got {', '.join(value)}")
        return cls(**{name: self.take(hint, value[name]) for name, hint in hints.items()})

    def _op(self, sent: SentOp) -> Op:
        op = parse(sent.text)
        if not isinstance(op, OnnxModel):
            return op
        if sent.model is None:
            raise CodlError(f"The op {sent.text!r} came without its ONNX model.")
        return replace(op, model=self._content(sent.model))

    def _blob(self, index: int) -> Blob:
        if not 0 <= index < len(self._blobs):
            raise CodlError(f"The message refers to blob {index}, but has {len(self._blobs)}.")
        self.used.add(index)
        return self._blobs[index]

    def _content(self, index: int) -> bytes:
        if index not in self._contents:
            self._contents[index] = bytes(self._blob(index))
        return self._contents[index]

    def _array(self, sent: SentArray) -> NDArray[Any]:
        if sent.type not in ELEMENTS:
            raise CodlError(f"Arrays of {sent.type!r} cannot be sent.")
        if any(size < 0 for size in sent.shape):
            raise CodlError(f"An array cannot have the shape {sent.shape}.")
        kind, blob = np.dtype(sent.type), self._blob(sent.blob)
        size = kind.itemsize * prod(sent.shape)
        if size != len(blob):
            raise CodlError(
                f"An array of {sent.type} {sent.shape} needs {size} bytes; {len(blob)} came."
            )
        return np.frombuffer(blob, kind).reshape(sent.shape)


#: A mapping whose keys are no texts.
Pairs: TypeAlias = list[tuple[Any, Any]]


def _is_kind(hint: Any, kind: type) -> bool:
    return isinstance(hint, type) and issubclass(hint, kind)


def _member(parts: Sequence[Any], value: Any) -> Any:
    """The type in a union that reads a value; None for scalars.

    An object is of the dataclass that it names, or of the only one.
    """
    if value is None:
        return None
    others = [part for part in parts if part is not NoneType]
    if len(others) == 1:
        return others[0]
    if isinstance(value, dict):
        by_name = {getattr(part, "__name__", ""): part for part in others}
        return by_name.get(value.get("is"))
    if isinstance(value, list):
        return next((part for part in others if _is_kind(get_origin(part), Sequence)), None)
    return None
