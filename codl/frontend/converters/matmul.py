"""Products of matrices: fully connected layers, and products of any batches."""

from __future__ import annotations

from math import prod

import numpy as np

from codl.frontend.converters.base import ConvertedOp, attribute, converts, has_input, number
from codl.frontend.converters.operands import Operand, combine
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Array
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.nd import Sizes
from codl.ir.region import Shape, as_nchw


@converts("MatMul")
def _matmul(graph: Graph, node: Node) -> list[ConvertedOp]:
    """An operand of one axis is a row, or a column."""
    a, b = (tuple(graph.shapes[name]) for name in node.inputs[:2])
    b = (*b, 1) if len(b) == 1 else b
    if node.inputs[1] in graph.constants and len(b) == 2:
        matrix = graph.constant(node.inputs[1]).reshape(b)
        # A bias is no part of ONNX's node: a pass has folded it into this one.
        bias = graph.constant(node.inputs[2]) if has_input(node, 2) else np.zeros(b[1], np.float32)
        return [_with_constant(graph, node, a, matrix, bias, node.outputs[0])]
    a = (1, *a) if len(a) == 1 else a
    # Nor is a factor, which a pass has found in front of the node.
    alpha = number(attribute(node, "alpha", 1.0))
    return [ConvertedOp(MatMul(shapes=(a, b), alpha=alpha), node.inputs, node.outputs[0])]


@converts("Gemm")
def _gemm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """alpha * a @ b + beta * c; constants take the factors in."""
    alpha, beta = (number(attribute(node, name, 1.0)) for name in ("alpha", "beta"))
    trans_a, trans_b = (bool(attribute(node, name, 0)) for name in ("transA", "transB"))
    a, b = (tuple(graph.shapes[name]) for name in node.inputs[:2])
    n = b[0 if trans_b else 1]
    added = Operand.of(graph, node.inputs[2]) if has_input(node, 2) and beta else None
    product = node.outputs[0] if added is None else f"{node.outputs[0]}.product"
    if node.inputs[1] in graph.constants:
        bias = np.zeros(n, np.float32)
        if added is not None and added.value is not None and prod(added.sizes[:-1]) == 1:
            bias = np.array(np.broadcast_to(beta * added.value.reshape(-1), n), np.float32)
            added, product = None, node.outputs[0]
        matrix = graph.constant(node.inputs[1])
        matrix = matrix if alpha == 1 else np.float32(alpha) * matrix
        matrix = matrix.T if trans_b else matrix
        steps = [_with_constant(graph, node, a, matrix, bias, product, trans_a=trans_a)]
    else:
        op = MatMul(shapes=(a, b), trans_a=trans_a, trans_b=trans_b, alpha=alpha)
        steps = [ConvertedOp(op, node.inputs[:2], product)]
    if added is None:
        return steps
    to = (a[1 if trans_a else 0], n)
    if beta != 1:
        scaled = f"{node.outputs[0]}.scaled"
        steps.append(combine(node, "mul", (added, Operand.number(beta)), scaled))
        added = Operand(scaled, added.sizes)
    return [*steps, combine(node, "add", (Operand(product, to), added), node.outputs[0])]


def _with_constant(
    graph: Graph,
    node: Node,
    a: Sizes,
    matrix: Array,
    bias: Array,
    output: str,
    *,
    trans_a: bool = False,
) -> ConvertedOp:
    """The product with a constant (k, n): a fully connected layer where each image has one row.

    That row may still have the axes of an image; see `drop_reshapes`. One token of a decoder is
    multiplied as several are, so that they share what is made of the constant.
    """
    k, n = matrix.shape
    images = 0 if graph.states else graph.rows_of_images(a, k)
    if images == 1 or (images and not trans_a):
        shape = as_nchw(a) if a[0] == images else Shape(1, k, 1, 1)
        weights = {"weight": np.ascontiguousarray(matrix.T), "bias": bias}
        return ConvertedOp(
            FullyConnected(inputs=(shape,), out_channels=n), node.inputs[:1], output, weights
        )
    op = MatMul(shapes=(a,), matrix=(k, n), trans_a=trans_a)
    weights = {"weight": np.ascontiguousarray(matrix), "bias": bias}
    return ConvertedOp(op, node.inputs[:1], output, weights)
