"""Valid messages with blobs, from which frames are mutated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codl.ir import parse
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.measure.batch import MeasureBatch
from codl.measure.check_variants import CheckTask
from codl.measure.tasks import DispatchTask, OpTask, SignalTask, StageTask
from codl.measure.timing import Effort, Rounds
from codl.records.tuned import Trial, Tuned
from codl.targets.base import Target
from codl.targets.process import Process
from codl.targets.served_models import Models
from codl.targets.wire import Answered, Asked, Event, Failed, Hello, Said, encode, question_of

CONV = "conv2d in=1x8x8x8 oc=8 kernel=3x3 pad=1"
OP = parse(CONV)
TUNED = Tuned(
    CONV, "gpu_direct", "0", {"rows": 2}, 1.0, 0.5, True, (Trial({"rows": 2}, 0.5),), "now", "0"
)
TUNING = Tuning({TUNED.key: TUNED}, {("conv2d", "gpu_direct"): 4})
ARRAYS = {"x": np.ones((1, 3), np.float32)}
Parts = list[bytes]


def _silent(*values: object) -> None:
    """What is told is nobody's business here."""


def asked(method: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[Asked, Parts]:
    """The message of a question, and its blobs."""
    question = question_of(method)
    sent, _ = question.bind(arguments, named)
    text, blobs = encode(question.arguments, sent)
    return Asked(question.name, text), [bytes(blob) for blob in blobs]


def answered(method: Callable[..., Any], value: Any) -> tuple[Answered, Parts]:
    """The message of what a question gives."""
    text, blobs = encode(question_of(method).answer, value)
    return Answered(text), [bytes(blob) for blob in blobs]


REQUESTS: Sequence[tuple[Asked, Parts]] = [
    asked(Process.look, "intel-opencl-rt"),
    asked(
        Models.measure,
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
        ),
        *(_silent,) * 3,
    ),
    asked(Target.check_kernels, [CheckTask(OP, registry.find(OP, "gpu_direct"))], budget_s=60.0),
    asked(Models.load, b"{}", ARRAYS, True, False, _silent),
    asked(Models.run, 1, ARRAYS),
    asked(Models.time, {"a": 1}, Effort(), True, TUNING, _silent),
]
#: What the seeds of answers and events are of.
ANSWER = question_of(Models.peer_outputs).answer
EVENT = question_of(Models.measure).events["measured"]
REPLIES: Sequence[tuple[Said, Parts]] = [
    (Hello(1, "0", 0.0, 1.0), []),
    (Failed("DeviceError", "lost"), []),
    (Event("measured", encode(EVENT, (0, {"latency_ms": 1.0}, False))[0]), []),
    answered(Models.peer_outputs, ARRAYS),
]
