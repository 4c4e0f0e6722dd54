"""Products of matrices: fully connected layers, and any batches."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    between,
    converts,
    has_input,
    number,
)
from codl.frontend.converters.steps import Operand, Steps
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
        # A bias is no part of ONNX's node: a pass has folded it into this one.
        bias = graph.constant(node.inputs[2]) if has_input(node, 2) else np.zeros(b[1], np.float32)
        return [_with_constant(graph, node, a, Matrix(b), bias, node.outputs[0])]
    a = (1, *a) if len(a) == 1 else a
    # Nor is a factor, which a pass has found in front of the node.
    alpha = number(attribute(node, "alpha", 1.0))
    return [ConvertedOp(MatMul(shapes=(a, b), alpha=alpha), node.inputs, node.outputs[0])]


@converts("Gemm")
def _gemm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """alpha * a @ b + beta * c; constants take the factors in."""
    steps = Steps(graph, node)
    alpha, beta = (number(attribute(node, name, 1.0)) for name in ("alpha", "beta"))
    trans_a, trans_b = (bool(attribute(node, name, 0)) for name in ("transA", "transB"))
    a, b = (tuple(graph.shapes[name]) for name in node.inputs[:2])
    to = (a[1 if trans_a else 0], b[0 if trans_b else 1])
    added = steps.operand(node.inputs[2]) if has_input(node, 2) and beta else None
    product = Operand(node.outputs[0] if added is None else between(graph, node, "product"), to)
    if node.inputs[1] in graph.constants:
        bias = np.zeros(to[1], np.float32)
        if added is not None and added.value is not None and prod(added.sizes[:-1]) == 1:
            bias = np.array(np.broadcast_to(beta * added.value.reshape(-1), to[1]), np.float32)
            added, product = None, Operand(node.outputs[0], to)
        matrix = Matrix((b[0], b[1]), trans_b, alpha)
        steps.made.append(
            _with_constant(graph, node, a, matrix, bias, product.name, trans_a=trans_a)
        )
    else:
        op = MatMul(shapes=(a, b), trans_a=trans_a, trans_b=trans_b, alpha=alpha)
        steps.made.append(ConvertedOp(op, node.inputs[:2], product.name))
    if added is not None:
        if beta != 1:
            added = steps.combine("mul", added, Operand.number(beta), "scaled")
        steps.combine("add", product, added)
    return steps.made


class Matrix(NamedTuple):
    """The second input of a product: its sizes, whether it is read turned, and its factor."""

    sizes: tuple[int, int]
    turned: bool = False
    factor: float = 1.0

    def of(self, graph: Graph, node: Node, *, turned: bool) -> Array:
        """The matrix, or its transpose, once for all nodes that read it."""
        way = self.turned != turned
        return graph.matrix(node.inputs[1], self.sizes, turned=way, factor=self.factor)


def _with_constant(
    graph: Graph,
    node: Node,
    a: Sizes,
    matrix: Matrix,
    bias: Array,
    output: str,
    *,
    trans_a: bool = False,
) -> ConvertedOp:
    """The product with a constant (k, n): a fully connected layer where each image has one row.

    That row may still have the axes of an image; see `drop_reshapes`.
    """
    k, n = matrix.sizes[::-1] if matrix.turned else matrix.sizes
    images = graph.rows_of_images(a, k)
    if images == 1 or (images and not trans_a):
        shape = as_nchw(a) if a[0] == images else Shape(1, k, 1, 1)
        weights = {"weight": matrix.of(graph, node, turned=True), "bias": bias}
        return ConvertedOp(
            FullyConnected(inputs=(shape,), out_channels=n), node.inputs[:1], output, weights
        )
    op = MatMul(shapes=(a,), matrix=(k, n), trans_a=trans_a)
    weights = {"weight": matrix.of(graph, node, turned=False), "bias": bias}
    return ConvertedOp(op, node.inputs[:1], output, weights)
