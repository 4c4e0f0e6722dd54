"""Frames: what is sent comes out, and anything else ends the connection with one clear error."""

from __future__ import annotations

import io
import struct
from typing import Any

import msgspec
import pytest
from support.frame_fuzz import Ping, Pong, frames, frames_of, replies, requests
from support.fuzzing import Subject, fuzz

from codl.targets import connection
from codl.targets.connection import (
    HEAD,
    MAGIC,
    Connection,
    ConnectionEnded,
    FrameError,
)


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames may hold little."""
    for name, most in (("MOST_JSON", 1000), ("MOST_BLOBS", 3), ("MOST_BYTES", 1000)):
        monkeypatch.setattr(connection, name, most)


def reading(data: bytes) -> Connection[Any, Any]:
    return Connection(io.BytesIO(data), io.BytesIO(), Ping | Pong)


def writing() -> tuple[Connection[Any, Any], io.BytesIO]:
    out = io.BytesIO()
    return Connection(io.BytesIO(), out, Ping), out


def test_messages_and_blobs_come_out_as_they_went_in() -> None:
    sender, out = writing()
    sent = [(Ping(1, "a"), []), (Pong((1.5,)), [b"xy", b"", memoryview(b"z" * 900)])]
    for message, blobs in sent:
        sender.send(message, blobs)
    receiver = reading(out.getvalue())
    for message, blobs in sent:
        assert receiver.receive() == (message, [bytes(blob) for blob in blobs])
    with pytest.raises(ConnectionEnded, match="ended the connection"):
        receiver.receive()


def head(*, magic: bytes = MAGIC, number: int = 0, json: int = 0, blobs: int = 0) -> bytes:
    return HEAD.pack(magic, number, json, blobs)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GET / HTTP/1.1\r\n", "Expected a frame, which begins with b'CDL1'; got b'GET '"),
        (head(number=3), "Expected frame 0, got frame 3: out of order"),
        (head(json=1001), "1001 bytes of JSON; at most 1000 are allowed"),
        (head(blobs=4), "4 blobs; at most 3 are allowed"),
        (head(blobs=1) + struct.pack("<Q", 1 << 63), "bytes of blobs; at most 1000"),
        (head(json=2, blobs=1) + struct.pack("<Q", 5) + b"{}abc", "blob 0 should have 5 bytes, 3"),
        (head(json=2) + b"{]", "holds no message that is expected here"),
        (head(json=18) + b'{"message":"Other"', "holds no message"),
    ],
)
def test_what_is_no_frame_ends_the_connection(data: bytes, message: str) -> None:
    receiver = reading(data)
    with pytest.raises(FrameError) as error:
        receiver.receive()
    assert message in str(error.value)
    with pytest.raises(FrameError, match="The connection has ended") as again:
        receiver.receive()
    assert message in str(again.value)
    with pytest.raises(FrameError, match="The connection has ended"):
        receiver.send(Ping(1, "a"))


@pytest.mark.usefixtures("_small")
def test_too_much_is_not_sent() -> None:
    for message, blobs, reason in (
        (Ping(1, "a" * 2000), [], "bytes of JSON"),
        (Ping(1, ""), [b""] * 4, "4 blobs"),
        (Ping(1, ""), [b"a" * 600] * 2, "1200 bytes of blobs"),
    ):
        sender, out = writing()
        with pytest.raises(FrameError, match=reason):
            sender.send(message, blobs)
        assert not out.getvalue()


def test_a_frame_that_came_twice_is_out_of_order() -> None:
    first, second = frames_of([(Ping(1, "a"), []), (Ping(2, "b"), [])])
    receiver = reading(first + first + second)
    receiver.receive()
    with pytest.raises(FrameError, match="Expected frame 1, got frame 0"):
        receiver.receive()


def test_deeply_nested_json_is_refused() -> None:
    class Anything(msgspec.Struct, tag=True):
        value: Any

    text = b'{"type":"Anything","value":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    receiver: Connection[Any, Any] = Connection(
        io.BytesIO(head(json=len(text)) + text), io.BytesIO(), Anything
    )
    with pytest.raises(FrameError, match="holds no message"):
        receiver.receive()


@pytest.mark.parametrize("subject", [frames(), requests(), replies()], ids=lambda one: one.name)
def test_random_and_mutated_frames_are_refused_or_read(subject: Subject) -> None:
    """Nothing but a message or an error comes of any bytes."""
    read, refused = fuzz(subject, 1500, seed=3)
    assert read > 0
    assert refused > 750
