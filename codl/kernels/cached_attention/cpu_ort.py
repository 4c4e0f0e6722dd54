"""Attention to a cache in ONNX Runtime, whose own node writes into the memory that it reads."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import FeatureColumns
from codl.ir.onnx_node import Node
from codl.ir.ops.attention import CachedAttention, CachedAttentionColumns
from codl.kernels.feature_columns import beyond
from codl.kernels.ort import CpuOrt, OrtPlan, node, number
from codl.kernels.variant import ByColumns
from codl.records.soc import Soc

#: ONNX's code of the type of its counts.
INT32 = 6


class OrtCachedAttention(ByColumns, CpuOrt):
    """Two products for each head, of all its tokens with as much of the cache as is full.

    A mask saves nothing, and a row alone multiplies as fast as the cache is read.
    """

    op_columns: ClassVar[type[CachedAttentionColumns]] = CachedAttentionColumns

    def feature_columns(self, ops: CachedAttentionColumns, soc: Soc) -> FeatureColumns:
        keys = columns.round_up(ops.filled, soc.cpu.simd_floats)
        macs = ops.queries * keys * (ops.features + ops.value_features)
        read = ops.groups * ops.filled * (ops.features + ops.value_features)
        return {
            "padded_macs": macs,
            "one_row_macs": macs * (ops.tokens == 1),
            "powers": ops.queries * keys,
            "products": ops.groups * ops.heads,
            "rows": ops.queries,
            "output_bytes": 4.0 * ops.output_elements,
            "cache_beyond": beyond(4.0 * read, soc.cpu.l2_cache_bytes),
        }


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


VARIANT = OrtCachedAttention("cached_attention", _plan, _refusal)
