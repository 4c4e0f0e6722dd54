"""Valid messages with blobs, from which frames are mutated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codl.ir import parse
from codl.ir.records.tuned import Trial, Tuned
from codl.kernels.tuning import Tuning
from codl.measure.tasks import DispatchTask, MeasureBatch, OpTask, SignalTask, StageTask
from codl.measure.timing import Effort, Rounds
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
    encode,
)

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
                    SignalTask("event_wait", 0.3),
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
