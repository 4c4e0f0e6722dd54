"""Concatenation in ONNX Runtime, along any axis."""

from __future__ import annotations

from codl.ir.ops.concat import Concat, ConcatNd
from codl.kernels.ort import CpuOrt, OrtPlan, nd_plan, node


def _names(count: int) -> list[str]:
    return [f"x{index}" for index in range(count)]


def _channels(op: Concat) -> OrtPlan:
    concat = node("Concat", _names(len(op.inputs)), axis=1)
    return OrtPlan((concat,), op.inputs, op.output)


def _any_axis(op: ConcatNd) -> OrtPlan:
    return nd_plan(op, [node("Concat", _names(len(op.shapes)), axis=op.axis)])


VARIANTS = (CpuOrt("concat", _channels), CpuOrt("concat_nd", _any_axis))
