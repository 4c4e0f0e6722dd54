"""Random messages that are right by their types alone: what a hostile end may say."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import inspect

from support.frame_fuzz import frames_of
from support.message_seeds import BLOBS, CONV

T = TypeVar("T")
#: Messages with their blobs.
Said: TypeAlias = Sequence[tuple[Any, Sequence[bytes]]]
#: What texts are of: names of this project's, and what a terminal, a path or a shell would mind.
WORDS = (
    *("", "x", "ok", "failed", "cpu", "gpu", "H", "float32", "numpy", "cpu_gemm", "gpu_direct"),
    *("DeviceError", "KeyboardInterrupt", "gpu.wave_size", CONV, "fc in=1x4x1x1 oc=2"),
    *("../../x", "-rf", "$(id)", "\x1b[2J", "\u202e", "a\nb", "{}" * 50),
)
INTEGERS = (0, 0, 1, 1, 2, 3, -1, -7, 64, 1 << 20, 1 << 62)
NUMBERS = (0.0, 1.0, 0.5, -1.0, 1e-9, 5e-324, 1e300, 123456.789)
PARTS = (b"", b"x", b"{}", bytes(BLOBS[0]), b"\0" * 64)
#: So often a message is made anew whose fields do not fit each other.
TRIES = 20


@cache
def _kind_of(message: Any) -> inspect.Type:
    return inspect.type_info(message)


def members(union: Any) -> tuple[type[Any], ...]:
    """The types of messages of a union."""
    kind = _kind_of(union)
    assert isinstance(kind, inspect.UnionType)
    return tuple(own.cls for own in kind.types if isinstance(own, inspect.StructType))


def message(dice: random.Random, cls: type[T]) -> T | None:
    """A message as a decoder gives it; None where none was met that it takes."""
    for _ in range(TRIES):
        text = msgspec.json.encode(_value(dice, _kind_of(cls)))
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.ValidationError, ValueError):
            continue
    return None


def blobs(dice: random.Random) -> list[bytes]:
    return [dice.choice(PARTS) for _ in range(dice.choice((0, 0, 1, 1, 2, 3)))]


def stream(dice: random.Random, first: Said, kinds: Sequence[type[Any]], most: int) -> bytes:
    """Frames of `first`, and then of so many random messages at most; the last may be damaged."""
    chosen = [message(dice, dice.choice(kinds)) for _ in range(dice.randrange(most + 1))]
    said = [*first, *((own, blobs(dice)) for own in chosen if own is not None)]
    whole = b"".join(frames_of(said))
    if dice.random() < 0.2:
        return whole + dice.randbytes(dice.randrange(40))
    return whole[: -dice.randrange(1, 9)] if chosen and dice.random() < 0.2 else whole


def _value(dice: random.Random, kind: inspect.Type) -> Any:
    """A value of a type, as JSON has it."""
    return _MAKERS[type(kind)](dice, kind)


def _fields(dice: random.Random, kind: Any) -> dict[str, Any]:
    taken = [own for own in kind.fields if own.required or dice.random() < 0.7]
    found = {own.encode_name: _value(dice, own.type) for own in taken}
    tag = {kind.tag_field: kind.tag} if getattr(kind, "tag_field", None) else {}
    return {**tag, **found}


def _several(dice: random.Random, kind: Any) -> list[Any]:
    return [_value(dice, kind.item_type) for _ in range(dice.choice((0, 1, 1, 2, 3)))]


def _mapping(dice: random.Random, kind: Any) -> dict[str, Any]:
    count = dice.choice((0, 1, 1, 2))
    return {dice.choice(WORDS): _value(dice, kind.value_type) for _ in range(count)}


def _anything(dice: random.Random, kind: Any) -> Any:
    return dice.choice([*WORDS, *INTEGERS, *NUMBERS, None, True, [], {}, [1], {"op": CONV}])


def _integer(dice: random.Random, kind: Any) -> int:
    least = -(1 << 70) if kind.ge is None else kind.ge
    return dice.choice([own for own in INTEGERS if own >= least])


_MAKERS: dict[type[inspect.Type], Callable[[random.Random, Any], Any]] = {
    inspect.StrType: lambda dice, kind: dice.choice(WORDS),
    inspect.IntType: _integer,
    inspect.FloatType: lambda dice, kind: dice.choice(NUMBERS),
    inspect.BoolType: lambda dice, kind: dice.random() < 0.5,
    inspect.NoneType: lambda dice, kind: None,
    inspect.LiteralType: lambda dice, kind: dice.choice(kind.values),
    inspect.AnyType: _anything,
    inspect.UnionType: lambda dice, kind: _value(dice, dice.choice(kind.types)),
    inspect.ListType: _several,
    inspect.VarTupleType: _several,
    inspect.TupleType: lambda dice, kind: [_value(dice, own) for own in kind.item_types],
    inspect.NamedTupleType: lambda dice, kind: [_value(dice, own.type) for own in kind.fields],
    inspect.DictType: _mapping,
    inspect.StructType: _fields,
    inspect.DataclassType: _fields,
}
