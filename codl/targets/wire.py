"""Messages between a host and an agent, and their encoding as JSON and blobs.

Requests are frozen dataclasses of `codl.targets.requests`, `codl.targets.measuring` and
`codl.targets.measuring`. They become JSON, checked against type hints; bytes and arrays
become blobs after the JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.ir import Op, parse, to_text
from codl.ir.ops.onnx_model import OnnxModel
from codl.targets.connection import Blob, FrameError

Answer = TypeVar("Answer")
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
#: Version of the messages; an agent with another version is refused.
VERSION = 3
#: Permitted element types of arrays. Types with pointers are refused.
ELEMENTS = frozenset({"bool", "float16", "float32", "float64", "uint8", "uint16", "uint32",
                      "uint64", "int8", "int16", "int32", "int64"})  # fmt: skip


@dataclass(frozen=True)
class Request(Generic[Answer]):
    """Base of all requests: a `Request[X]` is answered by an X, after events that carry `event`."""

    #: Most seconds between two messages of the agent; a property if it depends on the request.
    limit_s: ClassVar[Any] = 60.0
    #: Type of the value in an event.
    event: ClassVar[Any] = type(None)

    @property
    def answer(self) -> Any:
        """Type of the answer: the base class's parameter."""
        (base,) = type(self).__orig_bases__  # type: ignore[attr-defined]
        return get_args(base)[0]


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


EventKind: TypeAlias = Literal["begin", "timing", "done", "progress", "round"]


#: Receives the events of a request: kind, index, and value.
EventHandler: TypeAlias = Callable[[EventKind, int, Any], object]


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


def encode(form: Form, value: Any) -> tuple[msgspec.Raw, list[bytes | memoryview]]:
    """Encode a value as JSON and blobs."""
    blobs: list[bytes | memoryview] = []
    places: dict[int, int] = {}

    def put(source: object, blob: bytes | memoryview) -> int:
        """Add a blob once per source object, and return its index."""
        if id(source) not in places:
            places[id(source)] = len(blobs)
            blobs.append(blob)
        return places[id(source)]

    def hook(value: Any) -> Any:
        if isinstance(value, Content):
            return put(value.content, value.content)
        if isinstance(value, np.ndarray):
            dense = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            return SentArray(value.dtype.name, value.shape, put(value, dense.data))
        if isinstance(value, Mapping):
            return dict(value)
        raise NotImplementedError(f"{type(value).__name__} cannot be sent")

    return msgspec.Raw(msgspec.json.encode(form.send(value), enc_hook=hook)), blobs


def decode(form: Form, sent: msgspec.Raw, blobs: Sequence[Blob]) -> Any:
    """Decode a value; arrays are views of the blobs.

    Raises `FrameError` for a value of another type, and `CodlError` for missing or extra blobs.
    """
    used: set[int] = set()

    def blob_of(index: int) -> Blob:
        if not 0 <= index < len(blobs):
            raise CodlError(f"The message refers to blob {index}, but has {len(blobs)}.")
        used.add(index)
        return blobs[index]

    @cache
    def content_of(index: int) -> Content:
        return Content(bytes(blob_of(index)))

    def hook(kind: Any, value: Any) -> Any:
        if kind is Content:
            return content_of(msgspec.convert(value, int))
        if get_origin(kind) is np.ndarray:
            record = msgspec.convert(value, SentArray)
            return _array(record, blob_of(record.blob))
        raise NotImplementedError(f"{kind} cannot be sent")

    try:
        value = msgspec.json.decode(sent, type=form.sent, dec_hook=hook)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"A value has another type than expected: {error}.") from error
    if len(used) != len(blobs):
        raise CodlError(f"The message refers to {len(used)} blobs, but has {len(blobs)}.")
    return form.take(value)


def _array(record: SentArray, blob: Blob) -> NDArray[Any]:
    if record.type not in ELEMENTS:
        raise CodlError(f"Arrays of {record.type!r} cannot be sent.")
    if any(size < 0 for size in record.shape):
        raise CodlError(f"An array cannot have the shape {record.shape}.")
    kind = np.dtype(record.type)
    size = kind.itemsize * prod(record.shape)
    if size != len(blob):
        raise CodlError(
            f"An array of {record.type} {record.shape} needs {size} bytes; {len(blob)} came."
        )
    return np.frombuffer(blob, kind).reshape(record.shape)


# Wire types of type hints.


class Content:
    """Bytes to send as a blob; msgspec would encode them as base64."""

    def __init__(self, content: bytes) -> None:
        self.content = content


class SentArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reference to an array, whose elements are a blob."""

    type: str
    shape: tuple[int, ...]
    blob: int


class SentOp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An op as text, with the model of an `OnnxModel`."""

    text: str
    model: Content | None


def _same(value: Any) -> Any:
    return value


class Form(NamedTuple):
    """Wire form of a type: the type that msgspec reads, and conversions to and from it."""

    sent: Any
    send: Callable[[Any], Any] = _same
    take: Callable[[Any], Any] = _same

    @property
    def is_plain(self) -> bool:
        return self.send is _same


def _form_of(hint: Any) -> Form:
    """The form of a type hint: the hint itself if msgspec supports all of its parts."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _form_of_union(hint, parts)
    if isinstance(origin, type) and issubclass(origin, tuple | Sequence | Mapping):
        forms = tuple(form_of(part) for part in parts if part is not Ellipsis)
        is_usual = not issubclass(origin, Mapping) or get_origin(parts[0]) is not tuple
        if is_usual and all(form.is_plain for form in forms):
            return Form(hint)
        if issubclass(origin, Mapping):  # as pairs
            items = form_of(tuple[tuple[parts], ...])  # type: ignore[valid-type]
            pairs, back = items.send, items.take
            return Form(
                items.sent, lambda mapping: pairs([*mapping.items()]), lambda sent: dict(back(sent))
            )
        if origin is tuple and Ellipsis not in parts:
            return _form_of_tuple(forms)
        return _form_of_list(forms[0], list if origin is list else tuple)
    if hint is bytes:
        return Form(Content, Content, lambda sent: sent.content)
    if not isinstance(hint, type) or not is_dataclass(hint):
        return Form(hint)
    if issubclass(hint, Op):
        return Form(SentOp, _sent_op, _taken_op)
    special = SPECIAL.get(f"{hint.__module__}.{hint.__qualname__}")
    return special(hint) if special else _form_of_dataclass(hint)


form_of: Callable[[Any], Form] = cache(_form_of)


def _form_of_tuple(forms: Sequence[Form]) -> Form:
    return Form(
        tuple[tuple(form.sent for form in forms)],  # type: ignore[misc]
        lambda values: tuple(form.send(v) for form, v in zip(forms, values, strict=True)),
        lambda sent: tuple(form.take(v) for form, v in zip(forms, sent, strict=True)),
    )


def _form_of_list(inner: Form, kind: Callable[[Any], Any]) -> Form:
    return Form(
        list[inner.sent],  # type: ignore[name-defined]
        lambda values: [inner.send(item) for item in values],
        lambda sent: kind(inner.take(item) for item in sent),
    )


def _form_of_union(hint: Any, parts: Sequence[Any]) -> Form:
    """The form of a union: a tag names the class if several members are dataclasses."""
    classes = [part for part in parts if isinstance(part, type) and is_dataclass(part)]
    if len(classes) > 1:
        forms = {part: _form_of_dataclass(part, tag_field="is", tag=True) for part in classes}
        by_sent = {form.sent: form for form in forms.values()}
        return Form(
            Union[tuple(by_sent)],  # noqa: UP007
            lambda value: forms[type(value)].send(value),
            lambda sent: by_sent[type(sent)].take(sent),
        )
    inner = next((form for part in parts if not (form := form_of(part)).is_plain), None)
    if inner is None:
        return Form(hint)
    return Form(
        inner.sent | None,
        lambda value: None if value is None else inner.send(value),
        lambda sent: None if sent is None else inner.take(sent),
    )


@cache
def form_of_request(cls: Any) -> Form:
    """The form of a request class, which refuses unknown fields."""
    return _form_of_dataclass(cls, forbid_unknown_fields=True)


def _form_of_dataclass(cls: Any, **options: Any) -> Form:
    every = get_type_hints(cls, include_extras=True)
    hints = {member.name: every[member.name] for member in fields(cls) if member.init}
    forms = {name: form_of(hint) for name, hint in hints.items()}
    if all(form.is_plain for form in forms.values()) and not options:
        return Form(cls)
    members = [(name, form.sent) for name, form in forms.items()]
    options = {"frozen": True, "forbid_unknown_fields": True, **options}
    struct = msgspec.defstruct(cls.__name__, members, **options)
    return Form(
        struct,
        lambda value: struct(**{n: form.send(getattr(value, n)) for n, form in forms.items()}),
        lambda sent: cls(**{n: form.take(getattr(sent, n)) for n, form in forms.items()}),
    )


def _sent_op(op: Op) -> SentOp:
    return SentOp(to_text(op), Content(op.model) if isinstance(op, OnnxModel) else None)


def _taken_op(sent: SentOp) -> Op:
    op = parse(sent.text)
    if not isinstance(op, OnnxModel):
        return op
    if sent.model is None:
        raise CodlError(f"The op {sent.text!r} came without its ONNX model.")
    return replace(op, model=sent.model.content)


def _form_of_tuning(cls: Any) -> Form:
    """The form of a `Tuning`: its choices without the trials."""
    from codl.ir.records.tuned import Choices

    return Form(Choices, lambda tuning: tuning.choices, cls.of_choices)


def _form_of_plan(cls: Any) -> Form:
    from codl.ir.plan import read_plan

    return Form(dict[str, Any], cls.to_json, lambda sent: read_plan(sent, Path("plan")))


def _form_of_kernel_task(cls: Any) -> Form:
    """The form of a task with op and variant, which is sent by name."""
    from codl.kernels import registry

    hints = get_type_hints(cls)
    rest = [member.name for member in fields(cls)][2:]
    members = (Op, str, *(hints[name] for name in rest))
    inner = form_of(tuple[members])  # type: ignore[valid-type]

    def send(task: Any) -> Any:
        return inner.send((task.op, task.variant.name, *(getattr(task, name) for name in rest)))

    def take(sent: Any) -> Any:
        op, variant, *others = inner.take(sent)
        return cls(op, registry.find(op, variant), *others)

    return Form(inner.sent, send, take)


#: Forms of classes by qualified name, so that an agent starts without importing their modules.
SPECIAL: Mapping[str, Callable[[Any], Form]] = {
    "codl.kernels.tuning.Tuning": _form_of_tuning,
    "codl.ir.plan.Plan": _form_of_plan,
    "codl.measure.tuner.TuneTask": _form_of_kernel_task,
    "codl.measure.check_variants.CheckTask": _form_of_kernel_task,
}
