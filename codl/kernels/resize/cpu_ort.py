"""Resize in ONNX Runtime: rows and columns gathered, or multiplied with the tables of an op.

Unlike ONNX's own node, that also computes a part of an op's rows.
"""

from __future__ import annotations

import numpy as np

from codl.ir.ops.resize import Resize
from codl.kernels.ort import CpuOrt, NamedArrays, OrtPlan, node, number


def _plan(op: Resize) -> OrtPlan:
    beside = (op.rows.indices[:, :1] < 0) | (op.columns.indices[:, 0] < 0)
    if op.mode == "nearest":
        nodes = [node("Gather", ("x0", "rows"), "tall", axis=2)]
        nodes.append(node("Gather", ("tall", "columns"), "wide", axis=3))
        constants: NamedArrays = {
            "rows": np.maximum(op.rows.indices[:, 0], 0),
            "columns": np.maximum(op.columns.indices[:, 0], 0),
        }
    else:
        nodes = [
            node("MatMul", ("x0", "columns"), "thin"),
            node("MatMul", ("rows", "thin"), "wide"),
        ]
        constants = {
            "rows": op.rows.matrix(op.input.h).astype(np.float32),
            "columns": op.columns.matrix(op.input.w).T.astype(np.float32),
        }
    nodes.append(node("Where", ("beside", "outside", "wide")) if beside.any()
                 else node("Identity", ("wide",)))  # fmt: skip
    outside = {"beside": beside, "outside": number(op.outside)} if beside.any() else {}
    return OrtPlan(tuple(nodes), op.inputs, op.output, {**constants, **outside})


VARIANT = CpuOrt("resize", _plan)
