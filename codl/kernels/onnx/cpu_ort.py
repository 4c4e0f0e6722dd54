"""An ONNX model in ONNX Runtime, as it is: a session of its own."""

from __future__ import annotations

from codl.errors import UnsupportedError
from codl.ir.ops.onnx_model import OnnxModel
from codl.kernels.ort import CpuOrt, OrtPlan


def _plan(op: OnnxModel) -> OrtPlan:
    if not op.model:  # predicted from its text, which has no model
        raise UnsupportedError(f"The ONNX model {op.digest} ({op.nodes}) is not here to be run.")
    return OrtPlan((), op.shapes, op.to, model=op.model)


VARIANT = CpuOrt("onnx", _plan)
