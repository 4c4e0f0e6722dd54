"""Random and mutated frames, for the suite and for `scripts/fuzz_frames.py`."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from codl.runtime.frames import HEAD, MAGIC, Connection, FrameError, Limits

#: A length that lies must not cost memory either.
LIMITS = Limits(json_bytes=1 << 20, blobs=100, blob_bytes=1 << 40)


#: What JSON gets in the place of something else.
PIECES = (b"", b"0", b"null", b'"', b"[", b"-1e999", b"{}")


class Ping(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="message", tag=True):
    count: int
    text: str


class Pong(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="message", tag=True):
    values: tuple[float, ...]


def frames_of(messages: Sequence[tuple[Any, Sequence[bytes]]]) -> list[bytes]:
    """The frames of messages, one after the other in one connection."""
    out = io.BytesIO()
    sender: Connection[Any, Any] = Connection(io.BytesIO(), out, Ping)
    frames, begin = [], 0
    for message, blobs in messages:
        sender.send(message, blobs)
        frames.append(out.getvalue()[begin:])
        begin = len(out.getvalue())
    return frames


def fuzz(
    count: int, seed: int = 1, incoming: Any = Ping | Pong, seeds: Any = ()
) -> tuple[int, int]:
    """Read so many streams: how many gave a message, and how many a `FrameError`."""
    dice = random.Random(seed)
    seeds = seeds or [(Ping(1, "text"), [b"blob"]), (Pong((1.0, 2.0)), []), (Ping(3, "ü"), [b"x"])]
    valid = [frame for message in seeds for frame in frames_of([message])]
    read = 0
    for _ in range(count):
        data = dice.choice(MAKERS)(dice, valid)
        receiver: Connection[Any, Any] = Connection(
            io.BytesIO(data), io.BytesIO(), incoming, limits=LIMITS
        )
        with suppress(FrameError):
            receiver.receive()
            read += 1
    return read, count - read


def _random(dice: random.Random, valid: list[bytes]) -> bytes:
    return dice.randbytes(dice.randrange(64))


def _random_body(dice: random.Random, valid: list[bytes]) -> bytes:
    """A right head before random bytes."""
    body = dice.randbytes(dice.randrange(64))
    return HEAD.pack(MAGIC, 0, dice.randrange(80), dice.randrange(3)) + body


def _random_head(dice: random.Random, valid: list[bytes]) -> bytes:
    return HEAD.pack(MAGIC, 0, dice.getrandbits(32), dice.getrandbits(32)) + dice.randbytes(40)


def _flipped(dice: random.Random, valid: list[bytes]) -> bytes:
    data = bytearray(dice.choice(valid))
    for _ in range(dice.randrange(1, 4)):
        data[dice.randrange(len(data))] = dice.getrandbits(8)
    return bytes(data)


def _other_json(dice: random.Random, valid: list[bytes]) -> bytes:
    """A right frame whose JSON has other bytes, taken from it or not."""
    text = bytearray(dice.choice(valid)[HEAD.size :])
    text = text[text.find(b"{") : text.rfind(b"}") + 1]
    for _ in range(dice.randrange(1, 4)):
        at, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
        text[at : min(end, at + 4)] = dice.choice(
            [b"", b"0", b"null", b'"', b"[", b"-1e999", b"{}"]
        )
    return HEAD.pack(MAGIC, 0, len(text), 0) + text


def _cut(dice: random.Random, valid: list[bytes]) -> bytes:
    data = dice.choice(valid)
    return data[: dice.randrange(len(data))]


def _spliced(dice: random.Random, valid: list[bytes]) -> bytes:
    a, b = dice.choice(valid), dice.choice(valid)
    return a[: dice.randrange(len(a))] + b[dice.randrange(len(b)) :]


def _grown(dice: random.Random, valid: list[bytes]) -> bytes:
    data, at = dice.choice(valid), dice.randrange(20)
    return data[:at] + dice.randbytes(dice.randrange(1, 5)) + data[at:]


MAKERS: tuple[Callable[[random.Random, list[bytes]], bytes], ...] = (
    _random,
    _random_body,
    _random_head,
    _flipped,
    _other_json,
    _cut,
    _spliced,
    _grown,
)
