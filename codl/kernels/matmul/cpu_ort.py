"""Products of matrices in ONNX Runtime."""

from __future__ import annotations

import numpy as np

from codl.ir.onnx_node import Node
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.nd import Sizes
from codl.kernels.ort import CpuOrt, NamedArrays, OrtPlan, node, number


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


VARIANT = CpuOrt("matmul", _plan)
