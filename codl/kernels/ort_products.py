"""Products of matrices and attention in ONNX Runtime on the CPU, with features of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir import columns
from codl.ir.columns import FeatureColumns
from codl.ir.onnx_node import Node
from codl.ir.ops.attention import TOKENS, Attention, AttentionColumns
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import MatMul, MatMulColumns
from codl.ir.ops.nd import Sizes
from codl.kernels.feature_columns import THIRD_LEVEL, beyond, by_level
from codl.kernels.ort import CpuOrt, NamedArrays, OrtPlan, ints, node, number
from codl.kernels.registry import register
from codl.records.soc import Soc


def _count_matmul(ops: MatMulColumns, soc: Soc) -> FeatureColumns:
    """Tiles of whole vectors of columns; a computed b is packed for each product.

    A bias takes a step of its own where there are more axes than two.
    """
    rows = ops.products * ops.m
    turned = ops.trans_a * ops.a_matrices * ops.m + ops.trans_b * ops.b_matrices * ops.n
    added = ops.is_constant * (ops.rank > 2)
    in_panels = columns.round_up(ops.n, soc.cpu.simd_floats)
    return {
        "padded_macs": rows * in_panels * ops.k,
        "rows": rows,
        "ragged": rows * columns.rest(ops.n, soc.cpu.simd_floats),
        "products": ops.products,
        "turned_bytes": 4.0 * turned * (1 - ops.is_constant) * ops.k,
        "packed_bytes": 4.0 * ops.products * (1 - ops.is_constant) * ops.n * ops.k,
        "added": added,
        "added_bytes": 4.0 * added * ops.output_elements,
        "input_bytes": 4.0 * ops.input_elements,
        "output_bytes": 4.0 * ops.output_elements,
        **by_level("weight", 4.0 * ops.weight_elements, soc.cpu.l2_cache_bytes),
    }


def _matmul(op: MatMul) -> OrtPlan:
    """A constant matrix is transposed and scaled once, when it is packed."""
    nodes: list[Node] = []
    a = _upright(nodes, "x0", op.shapes[0]) if op.trans_a else "x0"
    if op.matrix:
        nodes += [node("MatMul", (a, "weight"), "product"), node("Add", ("product", "bias"))]
        return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, pack=partial(_packed, op))
    b = _upright(nodes, "x1", op.shapes[1]) if op.trans_b else "x1"
    if op.alpha == 1:
        nodes.append(node("MatMul", (a, b)))
        return OrtPlan(tuple(nodes), op.shapes, op.out_sizes)
    nodes += [node("MatMul", (a, b), "product"), node("Mul", ("product", "alpha"))]
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, {"alpha": number(op.alpha)})


def _upright(nodes: list[Node], name: str, sizes: Sizes) -> str:
    """A matrix with its last two axes exchanged."""
    rank = len(sizes)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    nodes.append(node("Transpose", (name,), f"{name}_upright", perm=perm))
    return f"{name}_upright"


def _packed(op: MatMul, weights: Weights) -> NamedArrays:
    matrix = weights["weight"].T if op.trans_b else weights["weight"]
    scaled = matrix if op.alpha == 1 else np.float32(op.alpha) * matrix
    return {"weight": np.ascontiguousarray(scaled), "bias": weights["bias"]}


#: The version of ONNX's operators that has attention.
ATTENTION_OPSET = 23


def _count_attention(ops: AttentionColumns, soc: Soc) -> FeatureColumns:
    """Two products for each head, with all scores between them in memory, and those of a mask too.

    A causal mask saves nothing: it is added to the scores like any other.
    """
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


def _attention(op: Attention) -> OrtPlan:
    """A causal mask of later queries is a bias: the node counts queries from the first key.

    The node gives zeros where a query sees no key, so that NaN takes their place where that is
    meant: where the largest of a row of the bias is below what finite numbers become. OpenVINO's
    maximum of infinities is the lowest number.
    """
    nodes: list[Node] = []
    constants: dict[str, NDArray[Any]] = {}
    mask = _bias(op, nodes, constants) if op.has_bias else ""
    has_nan = op.has_bias and not op.zeros
    is_later = op.causal and (op.first > 0 or has_nan)
    if is_later:
        distance = np.arange(op.keys) - np.arange(op.queries)[:, None] - op.first
        constants["seen"] = np.where(distance > 0, np.float32(-np.inf), np.float32(0))
        if mask:
            nodes.append(node("Add", (mask, "seen"), "masked"))
        mask = "masked" if mask else "seen"
    inputs = ("x0", "x1", "x2", *([mask] if mask else []))
    is_causal = int(op.causal and not is_later)
    output = "attended" if has_nan else "y"
    nodes.append(node("Attention", inputs, output, scale=op.scale, is_causal=is_causal))
    if has_nan:
        constants |= {"keys": ints(3), "little": number(1e-37), "far": number(-1e3)}
        constants["nan"] = number(np.nan)
        nodes += [
            node("Mul", (mask, "little"), "shrunk"),
            node("ReduceMax", ("shrunk", "keys"), "best", keepdims=1),
            node("Less", ("best", "far"), "blind"),
            node("Where", ("blind", "nan", output)),
        ]
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, constants, opset=ATTENTION_OPSET)


def _bias(op: Attention, nodes: list[Node], constants: dict[str, NDArray[Any]]) -> str:
    """The node stretches a bias over images and heads, and not over queries."""
    if op.shapes[3][TOKENS] == op.queries:
        return "x3"
    constants["sizes"] = ints(*op.shapes[3][:TOKENS], op.queries, op.keys)
    nodes.append(node("Expand", ("x3", "sizes"), "bias"))
    return "bias"


register(
    CpuOrt("matmul", _matmul, _count_matmul, MatMulColumns),
    CpuOrt("attention", _attention, _count_attention, AttentionColumns),
)
