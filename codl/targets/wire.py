"""The wire of a target follows from the signatures of its methods.

A method that is marked as a `question` can be asked of an agent, by its name. Arguments and the
answer go as JSON by their type hints, so that what does not fit them is refused; bytes and arrays
are blobs behind it. What is callable among the arguments stays where it is: a call of it over there
is an event on the way to the answer, made here.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, cached_property
from importlib import import_module
from math import prod
from pathlib import Path
from types import UnionType
from typing import (
    Any,
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
from codl.runtime.connection import Blob, FrameError

F = TypeVar("F", bound=Callable[..., Any])
#: Seconds from one frame to the next that an answer may take; it may depend on the arguments.
Limit: TypeAlias = "float | Callable[[Mapping[str, Any]], float]"
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
#: Of the messages; an agent of another version is refused.
VERSION = 2
#: Types that elements of arrays may have: what holds pointers is none.
ELEMENTS = frozenset({"bool", "float16", "float32", "float64", "uint8", "uint16", "uint32",
                      "uint64", "int8", "int16", "int32", "int64"})  # fmt: skip


class Message(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="message", tag=True
):
    """Base of everything that is sent."""


class Asked(Message, frozen=True):
    """A question by its name, such as `Target.describe`; the only message to an agent."""

    question: str
    arguments: msgspec.Raw


class Hello(Message, frozen=True):
    """The first frame of an agent; `begin` and `ready` are its clock's when it began and now.

    `build` is that of the file that it was started from, empty where there is none.
    """

    version: int
    codl: str
    begin: float
    ready: float
    build: str = ""


class Event(Message, frozen=True):
    """A call of the argument of this name, on the way to an answer."""

    name: str
    values: msgspec.Raw


class Warned(Message, frozen=True):
    """An event: a warning of codl's."""

    text: str


class Answered(Message, frozen=True):
    """The end of a question."""

    value: msgspec.Raw


class Failed(Message, frozen=True):
    """Why a question failed; `kind` is the name of one of codl's errors, or another exception's."""

    kind: str
    text: str


Said: TypeAlias = Hello | Event | Warned | Answered | Failed


@dataclass
class Question:
    """How a method is asked over the wire; what has no limit is not sent as it is."""

    method: Callable[..., Any]
    limit: Limit | None

    @property
    def name(self) -> str:
        return self.method.__qualname__

    def limit_s(self, arguments: Mapping[str, Any]) -> float:
        assert self.limit is not None
        return self.limit(arguments) if callable(self.limit) else self.limit

    def bind(
        self, arguments: Sequence[Any], named: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Callable[..., Any]]]:
        """By their names the arguments of a call that are sent, and those that are called."""
        bound = self._signature.bind(None, *arguments, **named)
        bound.apply_defaults()
        sent = dict(list(bound.arguments.items())[1:])
        return sent, {name: sent.pop(name) for name in self.events}

    @cached_property
    def arguments(self) -> Form:
        """Of the arguments that are sent, by their names."""
        sent = {name: hint for name, hint in self._hints.items() if not _is_call(hint)}
        return _record(self.name, sent, dict.__getitem__, dict)

    @cached_property
    def events(self) -> Mapping[str, Form]:
        """What is told, by the names of the arguments that are called with it."""
        called = {name: hint for name, hint in self._hints.items() if _is_call(hint)}
        return {name: form_of(tuple[tuple(get_args(hint)[0])]) for name, hint in called.items()}  # type: ignore[misc]

    @cached_property
    def answer(self) -> Form:
        return form_of(_evaluated(self.method)["return"])

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.method)

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        return {name: hint for name, hint in _evaluated(self.method).items() if name != "return"}


def question(limit: Limit | None = 60.0) -> Callable[[F], F]:
    """Mark a method as one that is asked over the wire.

    None instead of a limit: whoever asks from elsewhere has a method of its own for it.
    """

    def mark(method: F) -> F:
        method.question = Question(method, limit)  # type: ignore[attr-defined]
        return method

    return mark


def question_of(method: Callable[..., Any]) -> Question:
    """The question that a method was marked as."""
    question: Question = method.question  # type: ignore[attr-defined]
    return question


def questions(cls: type[Any]) -> Iterator[Question]:
    """Those of a class, and of its bases."""
    for _, method in inspect.getmembers(cls, inspect.isfunction):
        if hasattr(method, "question"):
            yield method.question


def encode(form: Form, value: Any) -> tuple[msgspec.Raw, list[bytes | memoryview]]:
    """A value as JSON, and its blobs."""
    blobs: list[bytes | memoryview] = []
    places: dict[int, int] = {}

    def put(source: object, blob: bytes | memoryview) -> int:
        """What is sent several times is one blob."""
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
        raise NotImplementedError(f"{type(value).__name__} is not sent")

    return msgspec.Raw(msgspec.json.encode(form.send(value), enc_hook=hook)), blobs


def decode(form: Form, sent: msgspec.Raw, blobs: Sequence[Blob]) -> Any:
    """A value as it was sent; arrays lie in the blobs' own memory.

    Raises `FrameError` for what is of another type, and `CodlError` for blobs that do not fit.
    """
    used: set[int] = set()

    def blob_of(index: int) -> Blob:
        if not 0 <= index < len(blobs):
            raise CodlError(f"Blob {index} of {len(blobs)} was spoken of.")
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
        raise NotImplementedError(f"{kind} is not sent")

    try:
        value = msgspec.json.decode(sent, type=form.sent, dec_hook=hook)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"It holds what is not expected here: {error}.") from error
    if len(used) != len(blobs):
        raise CodlError(f"{len(used)} blobs were spoken of, and {len(blobs)} came.")
    return form.take(value)


def _array(record: SentArray, blob: Blob) -> NDArray[Any]:
    if record.type not in ELEMENTS:
        raise CodlError(f"An array is of {record.type!r}, which is not sent.")
    if any(size < 0 for size in record.shape):
        raise CodlError(f"An array cannot be shaped {record.shape}.")
    kind = np.dtype(record.type)
    size = kind.itemsize * prod(record.shape)
    if size != len(blob):
        raise CodlError(
            f"An array is {record.type} {record.shape}, {size} bytes; {len(blob)} came."
        )
    return np.frombuffer(blob, kind).reshape(record.shape)


# Type hints, and what is sent for them.


class Content:
    """Bytes that are sent as a blob."""

    def __init__(self, content: bytes) -> None:
        self.content = content


class SentArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: str
    shape: tuple[int, ...]
    blob: int


class SentOp(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An op as a line of text, and the model of one that is an ONNX model."""

    text: str
    model: Content | None


def _same(value: Any) -> Any:
    return value


class Form(NamedTuple):
    """What is sent for values of a type: a type that msgspec knows, and the ways there and back."""

    sent: Any
    send: Callable[[Any], Any] = _same
    take: Callable[[Any], Any] = _same

    @property
    def is_plain(self) -> bool:
        return self.send is _same


@cache
def form_of(hint: Any) -> Form:
    """The form of a type hint: msgspec's own wherever nothing in it needs another."""
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
    """Several dataclasses are told apart by a tag; of other unions msgspec knows the members."""
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


def _form_of_dataclass(cls: Any, **tag: Any) -> Form:
    every = get_type_hints(cls, include_extras=True)
    hints = {member.name: every[member.name] for member in fields(cls) if member.init}
    if all(form_of(member).is_plain for member in hints.values()) and not tag:
        return Form(cls)
    return _record(cls.__name__, hints, getattr, cls, **tag)


def _record(
    name: str,
    hints: Mapping[str, Any],
    get: Callable[[Any, str], Any],
    make: Callable[..., Any],
    **tag: Any,
) -> Form:
    """Values by their names, which `get` gives and `make` takes."""
    forms = {key: form_of(hint) for key, hint in hints.items()}
    members = [(key, form.sent) for key, form in forms.items()]
    struct = msgspec.defstruct(name, members, frozen=True, forbid_unknown_fields=True, **tag)
    return Form(
        struct,
        lambda value: struct(**{key: form.send(get(value, key)) for key, form in forms.items()}),
        lambda sent: make(**{key: form.take(getattr(sent, key)) for key, form in forms.items()}),
    )


def _sent_op(op: Op) -> SentOp:
    return SentOp(to_text(op), Content(op.model) if isinstance(op, OnnxModel) else None)


def _taken_op(sent: SentOp) -> Op:
    op = parse(sent.text)
    if not isinstance(op, OnnxModel):
        return op
    if sent.model is None:
        raise CodlError(f"The ONNX model of the op {sent.text!r} was not sent with it.")
    return replace(op, model=sent.model.content)


def _form_of_tuning(cls: Any) -> Form:
    """What kernels are made by, without the trials that led there."""
    from codl.records.tuned import Choices

    return Form(Choices, lambda tuning: tuning.choices, cls.of_choices)


def _form_of_plan(cls: Any) -> Form:
    from codl.ir.plan import read_plan

    return Form(dict[str, Any], cls.to_json, lambda sent: read_plan(sent, Path("plan")))


def _form_of_kernel_task(cls: Any) -> Form:
    """An op and a variant by its name; whatever else there is behind them."""
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


#: Of classes by their names: an agent begins without their modules.
SPECIAL: Mapping[str, Callable[[Any], Form]] = {
    "codl.kernels.tuning.Tuning": _form_of_tuning,
    "codl.ir.plan.Plan": _form_of_plan,
    "codl.measure.tuner.TuneTask": _form_of_kernel_task,
    "codl.measure.check_variants.CheckTask": _form_of_kernel_task,
}


class _Names(dict[str, Any]):
    """The names of a module; what it imports for type checkers alone is imported here at need."""

    def __init__(self, module: str) -> None:
        super().__init__()
        self._module = module

    def __missing__(self, name: str) -> Any:
        names = vars(sys.modules[self._module])
        if name in names or hasattr(builtins, name):
            return names.get(name, getattr(builtins, name, None))
        module, attribute = _type_imports(self._module)[name]
        return getattr(import_module(module), attribute)


@cache
def _type_imports(module: str) -> Mapping[str, tuple[str, str]]:
    """Module and name there of every name that is imported under `if TYPE_CHECKING`."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    blocks = (node for node in tree.body if isinstance(node, ast.If))
    imports = (node for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING"
               for node in block.body if isinstance(node, ast.ImportFrom))  # fmt: skip
    return {alias.asname or alias.name: (str(node.module), alias.name)
            for node in imports for alias in node.names}  # fmt: skip


def _evaluated(method: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of a method."""
    names = _Names(method.__module__)
    hints = method.__annotations__.items()
    return {name: eval(h, {}, names) if isinstance(h, str) else h for name, h in hints}


def _is_call(hint: Any) -> bool:
    return get_origin(hint) is Callable
