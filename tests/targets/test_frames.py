"""Frames and rows from a device: what is sent comes out, and anything else is one clear error."""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from support.device_doubles import measured
from support.frame_fuzz import Ping, Pong, frames, frames_of, replies, requests
from support.fuzzing import Subject, fuzz
from support.simulated import conv_tasks

from codl.ir import to_text
from codl.kernels.tuning import Tuning
from codl.measure.tasks import MeasureBatch
from codl.measure.timing import Rounds
from codl.targets import connection
from codl.targets.connection import (
    HEAD,
    MAGIC,
    Connection,
    ConnectionEnded,
    FrameError,
)
from codl.targets.kernel_runs import Remaining
from codl.targets.measuring import MOST_LETTERS, Arriving, MeasuredRow, check_anchors, checked_row


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


TASKS = tuple(conv_tasks()[:3])
BATCH = MeasureBatch(TASKS, "run2", Rounds(), Tuning(), float("inf"), {}, {})


def content(**changes: Any) -> dict[str, Any]:
    """A row of the first task as it is sent."""
    row = msgspec.to_builtins(replace(TASKS[0].row_template, run="run2"))
    return {**row, "latency_ms": 1.5, "runs": 3, **changes}


def row(index: int) -> tuple[Any, ...]:
    """The event of a row."""
    return "done", index, MeasuredRow(content(), False)


def arriving(*events: tuple[Any, ...]) -> Arriving:
    """After some events."""
    heard = Arriving(BATCH)
    for kind, index, value in events:
        heard.on_event(kind, index, value)
    return heard


def test_a_row_comes_as_it_is() -> None:
    row = checked_row(TASKS[0], "run2", content())
    assert (row.latency_ms, row.runs, row.key) == (1.5, 3, TASKS[0].key)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": "fc in=1x1x1x1 oc=1"}, "whose op is"),
        ({"run": "run1"}, "whose run is 'run1' instead of 'run2'"),
        ({"source": "replayed"}, "whose source is"),
        ({"latency_ms": 0.0}, "a latency of 0.0 ms"),
        ({"latency_ms": float("inf")}, "whose latency_ms is inf"),
        ({"latency_ms": "fast"}, "an invalid row"),
        ({"status": "fine"}, "an invalid row"),
    ],
)
def test_what_is_not_the_row_that_was_asked_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(FrameError, match=message):
        checked_row(TASKS[0], "run2", content(**changes))


def test_a_devices_own_words_are_made_plain() -> None:
    """Nothing steers the terminal on which they are shown, and no line of a table is broken."""
    said = "no\nroom\0 \x1b]0;title\x07" + "x" * 1000
    row = checked_row(TASKS[0], "run2", content(status="failed", reason=said, latency_ms=0.0))
    assert row.reason.startswith("no room ]0;title x")
    assert len(row.reason) == MOST_LETTERS
    row = checked_row(TASKS[0], "run2", content(throttled="cpu\ngpu\x1b"))
    assert row.throttled == "cpu gpu"


@pytest.mark.parametrize("index", [-1, 3, 1 << 40])
def test_tasks_that_were_not_sent_are_refused(index: int) -> None:
    for event in (("begin", index, None), row(index)):
        with pytest.raises(FrameError, match=f"of task {index} of 3"):
            arriving(event)


def test_events_of_another_request_are_refused() -> None:
    with pytest.raises(FrameError, match="it sent 'round' of task 0 of 3"):
        arriving(("round", 0, None))


def test_a_row_comes_once() -> None:
    twice = [row(0)] * 2
    with pytest.raises(FrameError, match="the row of task 0 twice"):
        arriving(*twice)


def test_whose_row_is_here_is_no_suspect() -> None:
    begun = [("begin", 0, None), row(0), ("begin", 1, None), ("begin", 2, None)]
    assert arriving(*begun[:1]).suspects == TASKS[:1]
    assert arriving(*begun[:2]).suspects == ()
    assert arriving(*begun).suspects == TASKS[2:]
    assert arriving(*begun, ("timing", 0, None)).suspects == TASKS[1:]
    assert [one.task for one in arriving(*begun).measurements] == [TASKS[0]]


def test_anchors_are_codls_own() -> None:
    anchors = measured(BATCH, 1.0, 0).anchors
    check_anchors(anchors)
    for wrong in (
        {"op": to_text(TASKS[0].op)},
        {"processor": "npu"},
        {"latency_ms": float("nan")},
        {"latency_ms": 0.0},
    ):
        changed: dict[str, Any] = vars(anchors[0]) | wrong
        with pytest.raises(FrameError, match="it sent"):
            check_anchors([type(anchors[0])(**changed)])


def test_events_of_other_tasks_or_of_finished_ones_are_refused() -> None:
    left = Remaining("ab")
    left.event("done", "ab", 0)
    for kind in ("begin", "done"):
        with pytest.raises(FrameError, match=f"it sent '{kind}' of task 0, which is done"):
            left.event(kind, "ab", 0)
        with pytest.raises(FrameError, match=f"it sent '{kind}' of task 2 of 2"):
            left.event(kind, "ab", 2)
