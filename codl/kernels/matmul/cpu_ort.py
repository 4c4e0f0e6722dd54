"""Products of matrices in ONNX Runtime."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import FeatureColumns
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import MatMul, MatMulColumns
from codl.ir.ops.nd import Sizes
from codl.kernels.feature_columns import by_level
from codl.kernels.ort import CpuOrt, NamedArrays, OrtPlan, node, number
from codl.kernels.variant import ByColumns
from codl.records.soc import Soc


class OrtMatMul(ByColumns, CpuOrt):
    """Tiles of whole vectors of columns; a computed b is packed for each product.

    A bias takes a step of its own where there are more axes than two.
    """

    op_columns: ClassVar[type[MatMulColumns]] = MatMulColumns

    def feature_columns(self, ops: MatMulColumns, soc: Soc) -> FeatureColumns:
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


def _plan(op: MatMul) -> OrtPlan:
    """A constant matrix is transposed and scaled once, when it is packed."""
    nodes: list[Node] = []
    a = _upright(nodes, "x0", op.shapes[0]) if op.trans_a else "x0"
    if op.matrix:
        nodes += [node("MatMul", (a, "weight"), "product"), node("Add", ("product", "bias"))]
        return OrtPlan(tuple(nodes), op.shapes, op.out_sizes, pack=lambda own: _pack(op, own))
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


def _pack(op: MatMul, weights: Weights) -> NamedArrays:
    matrix = weights["weight"].T if op.trans_b else weights["weight"]
    scaled = matrix if op.alpha == 1 else np.float32(op.alpha) * matrix
    return {"weight": np.ascontiguousarray(scaled), "bias": weights["bias"]}


VARIANT = OrtMatMul("matmul", _plan)
