"""Gathering in ONNX Runtime."""

from __future__ import annotations

import numpy as np

from codl.ir.ops.concat import Gather
from codl.kernels.ort import TYPES, CpuOrt, OrtPlan, nd_plan, node


def _plan(op: Gather) -> OrtPlan:
    """Indices are floats outside; those out of range take the first or the last slice."""
    size = op.shapes[0][op.axis]
    nodes = [
        node("Cast", ("x1",), "whole", to=TYPES["int64"]),
        node("Clip", ("whole", "first", "last"), "inside"),
        node("Gather", ("x0", "inside"), axis=op.axis),
    ]
    ends = {"first": np.array(-size, np.int64), "last": np.array(size - 1, np.int64)}
    return nd_plan(op, nodes, ends)


VARIANT = CpuOrt("gather", _plan)
