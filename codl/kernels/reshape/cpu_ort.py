"""Reshape in ONNX Runtime: no copy, but at the ends of what it computes."""

from __future__ import annotations

from codl.ir.ops.movement import Reshape
from codl.kernels.ort import CpuOrt, OrtPlan, ints, node


def _plan(op: Reshape) -> OrtPlan:
    to = ints(*op.to)
    return OrtPlan((node("Reshape", ("x0", "to")),), op.shapes, op.to, {"to": to})


VARIANT = CpuOrt("reshape", _plan)
