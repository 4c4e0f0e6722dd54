"""Random messages that are right by their types alone: what a hostile end may say."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec
import numpy as np
from msgspec import inspect

from codl.errors import CodlError
from codl.ir import Op
from codl.ir.plan import Plan
from codl.ir.records.tuned import Tuned
from codl.kernels.tuning import Tuning
from codl.targets.connection import FrameError
from codl.targets.requests import EventKind, Request
from codl.targets.wire import Answered, Event, RequestMessage, SentOp, Warned, decode, members
from support.frame_fuzz import ARRAYS, CONV, answer_type, frames_of

T = TypeVar("T")
#: A message with its blobs.
Said: TypeAlias = tuple[Any, Sequence[bytes]]
Speaks: TypeAlias = Callable[[random.Random], Said | None]
#: What texts are of: names of this project's, and what a terminal, a path or a shell would mind.
WORDS = (
    *("", "x", "ok", "failed", "cpu", "gpu", "H", "float32", "numpy", "cpu_gemm", "gpu_direct"),
    *("DeviceError", "KeyboardInterrupt", "gpu.wave_size", CONV, "fc in=1x4x1x1 oc=2"),
    *("../../x", "-rf", "$(id)", "\x1b[2J", "\u202e", "a\nb", "{}" * 50),
)
INTEGERS = (0, 0, 1, 1, 2, 3, -1, -7, 64, 1 << 20, 1 << 62)
NUMBERS = (0.0, 1.0, 0.5, -1.0, 1e-9, 5e-324, 1e300, 123456.789)
PARTS = (b"", b"x", b"{}", ARRAYS["x"].tobytes(), b"\0" * 64)
#: So often a message is made anew whose fields do not fit each other.
TRIES = 20


@cache
def _kind_of(hint: Any) -> inspect.Type:
    return inspect.type_info(hint)


def asks(kind: type[Request[Any]]) -> Speaks:
    """Sends a request of any content."""

    def speak(dice: random.Random) -> Said | None:
        made = _text(dice, kind)
        return made and (RequestMessage(kind.__name__, made[0]), made[1])

    return speak


def answers(request: type[Request[Any]] | Request[Any]) -> Speaks:
    """Answers a request with anything of the right type."""

    def speak(dice: random.Random) -> Said | None:
        made = _text(dice, answer_type(request))
        return made and (Answered(made[0]), made[1])

    return speak


def tells(request: type[Request[Any]] | Request[Any]) -> Speaks:
    """Sends an event of any kind; one that is done has a value of the right type."""

    def speak(dice: random.Random) -> Said | None:
        kind = dice.choice([*get_args(EventKind), "begin", "done"])
        made = _text(dice, request.event if kind == "done" else type(None))
        return made and (Event(kind, dice.choice(INTEGERS), made[0]), made[1])

    return speak


def warns(dice: random.Random) -> Said:
    return Warned(dice.choice(WORDS)), ()


def message(dice: random.Random, cls: type[T]) -> T | None:
    """A message as a decoder gives it; None where none was met that it takes."""
    made = _text(dice, cls)
    return made and msgspec.json.decode(made[0], type=cls)


def stream(dice: random.Random, first: Sequence[Said], kinds: Sequence[Speaks], most: int) -> bytes:
    """Frames of `first`, and then of so many random messages at most; the last may be damaged."""
    chosen = [dice.choice(kinds)(dice) for _ in range(dice.randrange(most + 1))]
    said = [*first, *(own for own in chosen if own is not None)]
    whole = b"".join(frames_of(said))
    if dice.random() < 0.2:
        return whole + dice.randbytes(dice.randrange(40))
    return whole[: -dice.randrange(1, 9)] if chosen and dice.random() < 0.2 else whole


def _text(dice: random.Random, hint: Any) -> tuple[msgspec.Raw, list[bytes]] | None:
    """A value of a type as JSON with its blobs, seldom too many or few of them."""
    for _ in range(TRIES):
        maker = _Maker(dice)
        text = msgspec.json.encode(maker.value(hint))
        try:
            decode(hint, msgspec.Raw(text), [bytearray(blob) for blob in maker.blobs])
        except FrameError:
            continue
        except CodlError:  # such as blobs that do not fit
            pass
        if dice.random() < 0.02:
            maker.blobs.append(b"x")
        return msgspec.Raw(text), maker.blobs[:-1] if dice.random() < 0.05 else maker.blobs
    return None


class _Maker:
    """Makes values of types, as JSON has them, and the blobs that they speak of."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.blobs: list[bytes] = []

    def value(self, hint: Any) -> Any:
        """A value of a type as it is sent (see `codl.targets.wire`)."""
        origin, parts = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            return self.value(self.dice.choice(parts))
        if origin is np.ndarray:
            return self.array()
        if hint is bytes:
            return self.blob()
        if isinstance(origin, type) and issubclass(origin, Mapping):
            count = self.dice.choice((0, 1, 1, 2))
            pairs = [[self.value(part) for part in parts] for _ in range(count)]
            return dict(pairs) if parts[0] is str else pairs
        if isinstance(origin, type) and issubclass(origin, Sequence):
            is_fixed = origin is tuple and Ellipsis not in parts
            count = self.dice.choice((0, 1, 1, 2, 3))
            return [self.value(part) for part in (parts if is_fixed else parts[:1] * count)]
        if hint is Plan:
            return self.anything(None)
        if hint is Tuning:
            return self.made(_kind_of(tuple[Tuned, ...]))
        if isinstance(hint, type) and issubclass(hint, Op):
            return self.made(_kind_of(SentOp))
        if isinstance(hint, type) and is_dataclass(hint):
            found = {name: self.value(part) for name, part in members(hint).items()}
            return {"is": hint.__name__, **found}
        return self.made(_kind_of(hint))

    def made(self, kind: inspect.Type) -> Any:
        return _MAKERS[type(kind)](self, kind)

    def fields(self, kind: Any) -> dict[str, Any]:
        taken = [own for own in kind.fields if own.required or self.dice.random() < 0.7]
        found = {own.encode_name: self.made(own.type) for own in taken}
        tag = {kind.tag_field: kind.tag} if getattr(kind, "tag_field", None) else {}
        return {**tag, **found}

    def several(self, kind: Any) -> list[Any]:
        return [self.made(kind.item_type) for _ in range(self.dice.choice((0, 1, 1, 2, 3)))]

    def mapping(self, kind: Any) -> dict[str, Any]:
        count = self.dice.choice((0, 1, 1, 2))
        return {self.dice.choice(WORDS): self.made(kind.value_type) for _ in range(count)}

    def anything(self, kind: Any) -> Any:
        return self.dice.choice(
            [*WORDS, *INTEGERS, *NUMBERS, None, True, [], {}, [1], {"op": CONV}]
        )

    def integer(self, kind: Any) -> int:
        least = -(1 << 70) if kind.ge is None else kind.ge
        most = 1 << 70 if kind.le is None else kind.le
        return self.dice.choice([own for own in INTEGERS if least <= own <= most])

    def blob(self) -> int:
        """The number of a blob."""
        self.blobs.append(self.dice.choice(PARTS))
        return len(self.blobs) - 1 if self.dice.random() < 0.95 else self.dice.choice(INTEGERS)

    def array(self) -> dict[str, Any]:
        """An array that may fit a blob."""
        index = self.blob()
        if self.dice.random() < 0.5:
            self.blobs[-1] = ARRAYS["x"].tobytes()
            return {"type": "float32", "shape": [1, 3], "blob": index}
        shape = [self.dice.choice(INTEGERS) for _ in range(self.dice.randrange(3))]
        return {"type": self.dice.choice(("float32", "uint8", "object")), "shape": shape,
                "blob": index}  # fmt: skip


_MAKERS: dict[type[inspect.Type], Callable[[_Maker, Any], Any]] = {
    inspect.StrType: lambda make, kind: make.dice.choice(WORDS),
    inspect.IntType: _Maker.integer,
    inspect.FloatType: lambda make, kind: make.dice.choice(NUMBERS),
    inspect.BoolType: lambda make, kind: make.dice.random() < 0.5,
    inspect.NoneType: lambda make, kind: None,
    inspect.LiteralType: lambda make, kind: make.dice.choice(kind.values),
    inspect.AnyType: _Maker.anything,
    inspect.UnionType: lambda make, kind: make.made(make.dice.choice(kind.types)),
    inspect.ListType: _Maker.several,
    inspect.VarTupleType: _Maker.several,
    inspect.TupleType: lambda make, kind: [make.made(own) for own in kind.item_types],
    inspect.NamedTupleType: lambda make, kind: [make.made(own.type) for own in kind.fields],
    inspect.DictType: _Maker.mapping,
    inspect.StructType: _Maker.fields,
    inspect.DataclassType: _Maker.fields,
}
