"""Ranges of rows in ONNX Runtime."""

from __future__ import annotations

from codl.ir.ops.reductions import RowRange
from codl.kernels.ort import CpuOrt, OrtPlan, ints, node


def _plan(op: RowRange) -> OrtPlan:
    nodes = (
        node("ReduceMin", ("x0", "axis"), "low", keepdims=1),
        node("ReduceMax", ("x0", "axis"), "high", keepdims=1),
        node("Concat", ("low", "high"), axis=1),
    )
    return OrtPlan(nodes, ((op.rows, op.size),), (op.rows, 2), {"axis": ints(1)})


VARIANT = CpuOrt("row_range", _plan)
