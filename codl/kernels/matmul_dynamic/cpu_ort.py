"""Products of rows rounded to 8 bits in ONNX Runtime: its integer product, that scales its sums."""

from __future__ import annotations

from functools import partial

import numpy as np

from codl.ir.onnx_node import Node
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul_quantized import MIDDLE, MatMulDynamic
from codl.kernels.ort import CpuOrt, NamedArrays, OrtPlan, node


def _plan(op: MatMulDynamic) -> OrtPlan:
    """The scale and zero point of the ranges are those of the rows."""
    of_ranges = ("rounded_ranges", "scale", "zero")
    nodes = (
        Node("scale", "DynamicQuantizeLinear", ("x1",), of_ranges),
        node("QuantizeLinear", ("x0", "scale", "zero"), "rounded"),
        node(
            "com.microsoft.MatMulIntegerToFloat",
            ("rounded", "weight", "scale", "scales", "zero", "zero_points", "bias"),
        ),
    )
    return OrtPlan(nodes, op.shapes, op.out_sizes, pack=partial(_packed, op))


def _packed(op: MatMulDynamic, weights: Weights) -> NamedArrays:
    """The matrix (k, n) with the sign that the model has."""
    found = {
        "weight": np.ascontiguousarray(op.numbers(weights).T),
        "zero_points": weights["zero_points"].astype(np.uint8),
    }
    if op.signed:
        found = {name: (value ^ MIDDLE).view(np.int8) for name, value in found.items()}
    return {**found, "scales": weights["scales"], "bias": weights["bias"]}


VARIANT = CpuOrt("matmul_dynamic", _plan)
