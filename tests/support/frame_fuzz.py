"""Frames of strangers: each gives a message, or one clear error comes of it.

They are mutated from valid messages with blobs.
"""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from codl.ir import parse
from codl.ir.records.tuned import Trial, Tuned
from codl.kernels.tuning import Tuning
from codl.measure.tasks import DispatchTask, MeasureBatch, OpTask, StageTask, WaitTask
from codl.measure.timing import Effort, Rounds
from codl.targets.agent import request_class
from codl.targets.connection import HEAD, MAGIC, Connection
from codl.targets.kernel_requests import Check
from codl.targets.measuring import Measure, MeasuredRow, Time
from codl.targets.model_requests import Load, PeerOutputs, Run
from codl.targets.requests import Probe, Request
from codl.targets.wire import (
    Answered,
    Event,
    Failed,
    Hello,
    RequestMessage,
    Response,
    decode,
    encode,
)
from support.fuzzing import Subject
from support.mutations import BYTES, TREE

CONV = "conv2d in=1x8x8x8 oc=8 kernel=3x3 pad=1"
OP = parse(CONV)
TUNED = Tuned(
    CONV, "gpu_direct", "0", {"rows": 2}, 1.0, 0.5, True, (Trial({"rows": 2}, 0.5),), "now", "0"
)
TUNING = Tuning({TUNED.key: TUNED})
ARRAYS = {"x": np.ones((1, 3), np.float32)}
Parts = list[bytes]


def sent(request: Request[Any]) -> tuple[RequestMessage, Parts]:
    """The message of a request, and its blobs."""
    text, blobs = encode(request)
    return RequestMessage(type(request).__name__, text), [bytes(blob) for blob in blobs]


def answer_type(request: type[Request[Any]] | Request[Any]) -> Any:
    """The type of the answer to a request, or to a class of requests."""
    return (object.__new__(request) if isinstance(request, type) else request).answer


def answered(request: type[Request[Any]] | Request[Any], value: Any) -> tuple[Answered, Parts]:
    """The message of an answer to a request."""
    text, blobs = encode(value)
    return Answered(text), [bytes(blob) for blob in blobs]


REQUESTS: Sequence[tuple[RequestMessage, Parts]] = [
    sent(Probe("intel-opencl-rt")),
    sent(
        Measure(
            MeasureBatch(
                tasks=(
                    OpTask(("conv2d_gpu_direct",), "gpu_direct", "gpu", OP, "H", 0.5, OP),
                    DispatchTask(4),
                    StageTask(OP, (OP,), "H", 0.5),
                    WaitTask(0.3),
                ),
                run="run1",
                rounds=Rounds(),
                tuning=TUNING,
                left_s=1.0,
                reference_ms={(CONV, "gpu"): 1.0},
                tolerance={"cpu": 0.03},
            )
        )
    ),
    sent(Check(((OP, "gpu_direct"),), 60.0)),
    sent(Load(b"{}", ARRAYS)),
    sent(Run(1, ARRAYS)),
    sent(Time({"a": 1}, Effort(), True, TUNING)),
]
#: Types of the values in the seeds of answers and events.
ANSWER, EVENT = answer_type(PeerOutputs), MeasuredRow
REPLIES: Sequence[tuple[Response, Parts]] = [
    (Hello(1, "0", 0.0, 1.0), []),
    (Failed("DeviceError", "lost"), []),
    (Event("done", 0, encode(MeasuredRow({"latency_ms": 1.0}, False))[0]), []),
    answered(PeerOutputs, ARRAYS),
]


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
