"""Attention in ONNX Runtime: ONNX's own node."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.onnx_node import Node
from codl.ir.ops.attention import TOKENS, Attention
from codl.kernels.ort import CpuOrt, OrtPlan, ints, node

#: The version of ONNX's operators that has attention.
OPSET = 23


def _plan(op: Attention) -> OrtPlan:
    """A causal mask of later queries is a bias: the node counts queries from the first key."""
    nodes: list[Node] = []
    constants: dict[str, NDArray[Any]] = {}
    mask = _bias(op, nodes, constants) if op.has_bias else ""
    is_later = op.causal and op.first > 0
    if is_later:
        distance = np.arange(op.keys) - np.arange(op.queries)[:, None] - op.first
        constants["seen"] = np.where(distance > 0, np.float32(-np.inf), np.float32(0))
        if mask:
            nodes.append(node("Add", (mask, "seen"), "masked"))
        mask = "masked" if mask else "seen"
    inputs = ("x0", "x1", "x2", *([mask] if mask else []))
    is_causal = int(op.causal and not is_later)
    nodes.append(node("Attention", inputs, scale=op.scale, is_causal=is_causal))
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, constants, opset=OPSET)


def _bias(op: Attention, nodes: list[Node], constants: dict[str, NDArray[Any]]) -> str:
    """The node stretches a bias over images and heads, and not over queries."""
    if op.shapes[3][TOKENS] == op.queries:
        return "x3"
    constants["sizes"] = ints(*op.shapes[3][:TOKENS], op.queries, op.keys)
    nodes.append(node("Expand", ("x3", "sizes"), "bias"))
    return "bias"


VARIANT = CpuOrt("attention", _plan)
