"""Attention to a cache in ONNX Runtime, whose own node writes into the memory that it reads."""

from __future__ import annotations

import numpy as np

from codl.ir.onnx_node import Node
from codl.ir.ops.cached_attention import CachedAttention
from codl.kernels.ort import CpuOrt, OrtPlan, node, number

#: ONNX's code of the type of its counts.
INT32 = 6


def _plan(op: CachedAttention) -> OrtPlan:
    """The node is told how many tokens there will be, and the place of the last one."""
    _, tokens, groups, width = op.shapes[0]
    inputs = ("x0", "x1", "x2", "x4", "x5", "last", "total")
    nodes = (
        node("Clip", ("x3", "zero", "most"), "before"),
        node("Cast", ("before",), "first", to=INT32),
        node("Add", ("first", "others"), "last"),
        node("Add", ("first", "new"), "all"),
        node("Squeeze", ("all",), "total"),
        Node(
            "y",
            "com.microsoft.GroupQueryAttention",
            inputs,
            ("y", "keys", "values"),
            {"num_heads": op.heads * groups, "kv_num_heads": groups, "scale": op.scale},
        ),
    )
    return OrtPlan(
        nodes,
        (
            (1, tokens, groups * width),
            (1, tokens, groups * op.features),
            (1, tokens, groups * op.value_features),
            *op.shapes[3:],
        ),
        (1, tokens, groups * op.heads * op.value_features),
        {
            "zero": number(0),
            "most": number(op.capacity - tokens),
            "others": np.array([tokens - 1], np.int32),
            "new": np.array([tokens], np.int32),
        },
        updates={"x4": "keys", "x5": "values"},
    )


def _refusal(op: CachedAttention) -> str | None:
    if op.features != op.value_features or op.features % 8:
        own = (op.features, op.value_features)
        return f"keys and values must have as many features, a multiple of 8, got {own}"
    return None


VARIANT = CpuOrt("cached_attention", _plan, _refusal)
