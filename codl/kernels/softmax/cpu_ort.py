"""Softmax in ONNX Runtime."""

from __future__ import annotations

from codl.ir.ops.reductions import Softmax
from codl.kernels.ort import CpuOrt, OrtPlan, node


def _plan(op: Softmax) -> OrtPlan:
    outer, size, inner = op.rows
    seen = (outer, size) if inner == 1 else (outer, size, inner)
    softmax = node("LogSoftmax" if op.log else "Softmax", axis=1)
    return OrtPlan((softmax,), (seen,), seen)


VARIANT = CpuOrt("softmax", _plan)
