"""Frames of strangers: each gives a message, or one clear error comes of it."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from typing import Any

import msgspec

from codl.targets.agent import request_class
from codl.targets.connection import HEAD, MAGIC, Connection
from codl.targets.wire import Answered, Event, RequestMessage, Response, decode
from support.fuzzing import Subject
from support.message_seeds import ANSWER, EVENT, REPLIES, REQUESTS
from support.mutations import BYTES, TREE


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


def frames() -> Subject:
    """Of messages with everything that one may have."""
    small = [(Ping(1, "text"), [b"blob"]), (Pong((1.0, 2.0)), []), (Ping(3, "ü"), [b"x"])]
    return _subject("frames", Ping | Pong, small)


def requests() -> Subject:
    """What a host sends to an agent."""
    return _subject("requests", RequestMessage, REQUESTS)


def replies() -> Subject:
    """What an agent sends to a host."""
    return _subject("replies", Response, REPLIES)


def _subject(name: str, incoming: Any, messages: Sequence[tuple[Any, Sequence[bytes]]]) -> Subject:
    def receive(content: bytes) -> None:
        stream = io.BytesIO(content)
        receiver: Connection[Any, Any] = Connection(stream, io.BytesIO(), incoming)
        said, blobs = receiver.receive()
        if isinstance(said, RequestMessage):
            decode(request_class(said.kind), said.content, blobs)
        elif isinstance(said, Answered):
            decode(ANSWER, said.value, blobs)
        elif isinstance(said, Event):
            decode(EVENT, said.content, blobs)

    seeds = [frame for message in messages for frame in frames_of([message])]
    return Subject(name, seeds, MAKERS, receive)


def _random_body(dice: random.Random, content: bytes) -> bytes:
    """A right head before random bytes."""
    body = dice.randbytes(dice.randrange(64))
    return HEAD.pack(MAGIC, 0, dice.randrange(80), dice.randrange(3)) + body


def _random_head(dice: random.Random, content: bytes) -> bytes:
    return HEAD.pack(MAGIC, 0, dice.getrandbits(32), dice.getrandbits(32)) + dice.randbytes(40)


def _other_json(dice: random.Random, content: bytes) -> bytes:
    """A right frame whose JSON is another, before the same blobs."""
    if len(content) < HEAD.size:
        return content
    _, number, size, blobs = HEAD.unpack_from(content)
    begin = HEAD.size + 8 * blobs
    text = dice.choice(TREE)(dice, content[begin : begin + size])
    head = HEAD.pack(MAGIC, number, len(text), blobs)
    return head + content[HEAD.size : begin] + text + content[begin + size :]


def _grown(dice: random.Random, content: bytes) -> bytes:
    at = dice.randrange(20)
    return content[:at] + dice.randbytes(dice.randrange(1, 5)) + content[at:]


MAKERS = (*BYTES, _random_body, _random_head, _grown, *(_other_json,) * 8)
