"""An ONNX model in ONNX Runtime, as it is: a session of its own."""

from __future__ import annotations

from codl.kernels.ort import CpuOrt, OrtPlan
from codl.ops.onnx_model import OnnxModel


def _plan(op: OnnxModel) -> OrtPlan:
    return OrtPlan((), op.shapes, op.to, model=op.model)


def _refusal(op: OnnxModel) -> str | None:
    return None if op.model else "its model is not here: only its name was read"


VARIANT = CpuOrt("onnx", _plan, _refusal)
