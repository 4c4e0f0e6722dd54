"""Reductions in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

from codl.ir.ops.reductions import Reduce
from codl.kernels.ort import CpuOrt, OrtPlan, ints, node

_NODES: Mapping[str, str] = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "l1": "ReduceL1",
    "l2": "ReduceL2",
    "sum_square": "ReduceSumSquare",
    "log_sum": "ReduceLogSum",
    "log_sum_exp": "ReduceLogSumExp",
}


def _plan(op: Reduce) -> OrtPlan:
    reduce = node(_NODES[op.mode], ("x0", "axis"), keepdims=0)
    outer, _, inner = op.rows
    return OrtPlan((reduce,), (tuple(op.rows),), (outer, inner), {"axis": ints(1)})


VARIANT = CpuOrt("reduce", _plan)
