"""Attention in ONNX Runtime: ONNX's own node."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir import columns
from codl.ir.columns import FeatureColumns
from codl.ir.onnx_node import Node
from codl.ir.ops.attention import TOKENS, Attention, AttentionColumns
from codl.kernels.feature_columns import THIRD_LEVEL, beyond
from codl.kernels.ort import CpuOrt, OrtPlan, ints, node
from codl.kernels.variant import ByColumns
from codl.records.soc import Soc

#: The version of ONNX's operators that has attention.
OPSET = 23


class OrtAttention(ByColumns, CpuOrt):
    """Two products for each head, with all scores between them in memory, and those of a mask too.

    A causal mask saves nothing: it is added to the scores like any other.
    """

    op_columns: ClassVar[type[AttentionColumns]] = AttentionColumns

    def feature_columns(self, ops: AttentionColumns, soc: Soc) -> FeatureColumns:
        rows, lanes = ops.heads * ops.queries, soc.cpu.simd_floats
        keys = columns.round_up(ops.keys, lanes)
        values = columns.round_up(ops.value_features, lanes)
        is_masked = np.maximum(ops.causal, ops.bias_elements > 0)
        scores = 4.0 * rows * ops.keys
        return {
            "padded_macs": rows * (keys * ops.features + ops.keys * values),
            "powers": rows * keys,
            "masked": rows * ops.keys * is_masked,
            "rows": rows,
            "ragged": rows * columns.rest(ops.keys, lanes),
            "products": ops.heads,
            "packed_bytes": 4.0 * ops.heads * ops.keys * (ops.features + ops.value_features),
            "output_bytes": 4.0 * ops.output_elements,
            "score_beyond": beyond(scores, soc.cpu.l2_cache_bytes),
            "score_far": beyond(scores, THIRD_LEVEL * soc.cpu.l2_cache_bytes),
        }


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


VARIANT = OrtAttention("attention", _plan)
