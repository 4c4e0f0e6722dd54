"""Valid requests and replies with blobs, from which frames are mutated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from codl.measure.facts import Fact
from codl.measure.sent_tasks import DispatchRecord, OpRecord, SignalRecord, StageRecord
from codl.measure.timing import Effort, Rounds
from codl.records.results import Conditions
from codl.records.tuned import Choices, Trial, Tuned, UsualBlocks
from codl.targets.arrays import to_wire
from codl.targets.measure_messages import (
    AnchorLevel,
    CheckKernels,
    CheckRecord,
    FactMeasured,
    KernelChecked,
    Look,
    Measure,
    Measured,
    MeasuredRow,
)
from codl.targets.message_base import Failed, Hello
from codl.targets.model_messages import Load, Ran, Run, Time

CONV = "conv2d in=1x8x8x8 oc=8 kernel=3x3 pad=1"
TUNED = Tuned(
    CONV, "gpu_direct", "0", {"rows": 2}, 1.0, 0.5, True, (Trial({"rows": 2}, 0.5),), "now", "0"
)
RECORDS, BLOBS = to_wire({"x": np.ones((1, 3), np.float32)})
Seeds = Sequence[tuple[Any, Sequence[bytes]]]

REQUESTS: Seeds = [
    (Look("intel-opencl-rt"), []),
    (
        Measure(
            tasks=(
                OpRecord(("conv2d_gpu_direct",), "gpu_direct", "gpu", CONV, "H", 0.5, CONV),
                DispatchRecord(4),
                StageRecord(CONV, (CONV,), "H", 0.5),
                SignalRecord("event_wait", 0.3),
            ),
            models=("digest",),
            run="run1",
            rounds=Rounds(),
            tuning=Choices((TUNED,), (UsualBlocks("conv2d", "gpu_direct", 4),)),
            left_s=None,
            reference_ms=(AnchorLevel(CONV, "gpu", 1.0),),
            tolerance={"cpu": 0.03},
        ),
        [b"model"],
    ),
    (CheckKernels((CheckRecord(CONV, "gpu_direct"),), 60.0), []),
    (Load(RECORDS, True), [b"{}", *map(bytes, BLOBS)]),
    (Run(1, RECORDS), list(map(bytes, BLOBS))),
    (Time({"a": 1}, Effort(), True, False, Choices()), []),
]
REPLIES: Seeds = [
    (Hello(1, "0", 0.0, 1.0), []),
    (Failed("DeviceError", "lost"), []),
    (MeasuredRow(0, {"latency_ms": 1.0}, False), []),
    (Measured((), Conditions()), []),
    (KernelChecked(0, ""), []),
    (Ran(RECORDS), list(map(bytes, BLOBS))),
    (FactMeasured(Fact("gpu.svm_atomics", True, "they met")), []),
]
