"""Products of matrices and attention in ONNX Runtime on the CPU, with features of their own."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir import columns
from codl.ir.columns import FeatureColumns
from codl.ir.onnx_node import Node
from codl.ir.ops.attention import (
    TOKENS,
    Attention,
    AttentionColumns,
    CachedAttention,
    CachedAttentionColumns,
)
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import MatMul, MatMulColumns
from codl.ir.ops.matmul_quantized import (
    MIDDLE,
    MatMulDynamic,
    MatMulNBits,
    MatMulNBitsColumns,
)
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


#: What ONNX Runtime calls rows that it may round to 8 bits, and those that it may not.
ACCURACY = {True: 4, False: 0}


def _count_nbits(ops: MatMulNBitsColumns, soc: Soc) -> FeatureColumns:
    """One row is multiplied by packed numbers; for more of them numbers become floats first."""
    lanes = columns.round_up(ops.n, soc.cpu.simd_floats)
    numbers = lanes * ops.blocks * ops.block
    return {
        "padded_macs": numbers * ops.m,
        "unpacked": numbers * (ops.m > 1),
        "rows": ops.m,
        "input_bytes": 4.0 * ops.input_elements,
        "output_bytes": 4.0 * ops.output_elements,
        **by_level("weight", 4.0 * ops.weight_elements, soc.cpu.l2_cache_bytes),
    }


def _nbits(op: MatMulNBits) -> OrtPlan:
    if op.bits == 4 or op.int8:
        names = (
            "x0",
            "weight",
            "scales",
            *(["zero_points"] if op.zero_points else [""]),
            "",
            "bias",
        )
        nodes = [_nbits_node(op, op.bits, names, "y")]
        return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, pack=partial(_packed_nbits, op))
    nodes = [
        _nbits_node(op, 4, ("x0", "high", "high_scales", "high_zero_points"), "above"),
        _nbits_node(op, 4, ("x0", "low", "scales", "low_zero_points", "", "bias"), "below"),
        node("Add", ("above", "below")),
    ]
    return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, pack=partial(_halves, op))


def _nbits_node(op: MatMulNBits, bits: int, inputs: tuple[str, ...], output: str) -> Node:
    return node(
        "com.microsoft.MatMulNBits",
        inputs,
        output,
        K=op.k,
        N=op.n,
        bits=bits,
        block_size=op.block,
        accuracy_level=ACCURACY[op.int8],
    )


def _packed_nbits(op: MatMulNBits, weights: Weights) -> NamedArrays:
    """The words as bytes, which is what they are."""
    packed = {
        "weight": _bytes(weights["weight"]).reshape(op.n, op.blocks, -1),
        "scales": weights["scales"],
        "bias": weights["bias"],
    }
    if op.zero_points:
        size = -(-op.blocks * op.bits // 8)
        packed["zero_points"] = np.ascontiguousarray(_bytes(weights["zero_points"])[:, :size])
    return packed


def _halves(op: MatMulNBits, weights: Weights) -> NamedArrays:
    """Numbers of 8 bits as 16 times the upper 4 bits and the lower."""
    whole = _packed_nbits(op, weights)
    zeros = whole.get("zero_points", np.full((op.n, op.blocks), 128, np.uint8))
    packed = {"scales": whole["scales"], "bias": whole["bias"], "high_scales": 16 * whole["scales"]}
    for name, shift in (("low", 0), ("high", 4)):
        packed[name] = _pairs(whole["weight"] >> shift & 15)
        packed[f"{name}_zero_points"] = _pairs(zeros >> shift & 15)
    return packed


def _pairs(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """Numbers of 4 bits along the last axis, two in a byte."""
    even = np.pad(
        numbers.astype(np.uint8), [(0, 0)] * (numbers.ndim - 1) + [(0, numbers.shape[-1] % 2)]
    )
    return np.ascontiguousarray(even[..., ::2] | even[..., 1::2] << 4)


def _bytes(words: NDArray[np.uint32]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(words).astype("<u4", copy=False).view(np.uint8)


def _dynamic(op: MatMulDynamic) -> OrtPlan:
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
    return OrtPlan(nodes, op.shapes, op.out_sizes, pack=partial(_packed_dynamic, op))


def _packed_dynamic(op: MatMulDynamic, weights: Weights) -> NamedArrays:
    """The matrix (k, n) with the sign that the model has."""
    packed = {
        "weight": np.ascontiguousarray(op.numbers(weights).T),
        "zero_points": weights["zero_points"].astype(np.uint8),
    }
    if op.signed:
        packed = {name: (value ^ MIDDLE).view(np.int8) for name, value in packed.items()}
    return {**packed, "scales": weights["scales"], "bias": weights["bias"]}


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


#: ONNX's code of the type of its counts.
INT32 = 6


def _count_cached_attention(ops: CachedAttentionColumns, soc: Soc) -> FeatureColumns:
    """Two products for each head, of all its tokens with as much of the cache as is full.

    A mask saves nothing, and a row alone multiplies as fast as the cache is read.
    """
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


def _cached_attention(op: CachedAttention) -> OrtPlan:
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


def _refuse_cached(op: CachedAttention) -> str | None:
    if op.features != op.value_features or op.features % 8:
        features = (op.features, op.value_features)
        return f"keys and values must have as many features, a multiple of 8, got {features}"
    return None


register(
    CpuOrt("matmul", _matmul, _count_matmul, MatMulColumns),
    CpuOrt("matmul_nbits", _nbits, _count_nbits, MatMulNBitsColumns),
    CpuOrt("matmul_dynamic", _dynamic),
    CpuOrt("attention", _attention, _count_attention, AttentionColumns),
    CpuOrt(
        "cached_attention",
        _cached_attention,
        _count_cached_attention,
        CachedAttentionColumns,
        _refuse_cached,
    ),
)
