"""Products of matrices: fully connected layers, any batches, and constants of few bits."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    between,
    constant_input,
    converts,
    has_input,
    number,
    unsupported,
)
from codl.frontend.converters.steps import Operand, Steps
from codl.frontend.graph import dynamic_products as dynamic
from codl.frontend.graph import packed_matrices as nbits
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Array
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.matmul import MatMul
from codl.ir.ops.matmul_quantized import MIDDLE, WORD, MatMulDynamic, MatMulNBits, packed
from codl.ir.ops.nd import Sizes
from codl.ir.ops.reductions import RowRange
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

    That row may still have the axes of an image; see `drop_reshapes`. One token of a decoder is
    multiplied as several are, so that they share what is made of the constant.
    """
    k, n = matrix.sizes[::-1] if matrix.turned else matrix.sizes
    images = 0 if graph.states else graph.rows_of_images(a, k)
    if images == 1 or (images and not trans_a):
        shape = as_nchw(a) if a[0] == images else Shape(1, k, 1, 1)
        weights = {"weight": matrix.of(graph, node, turned=True), "bias": bias}
        return ConvertedOp(
            FullyConnected(inputs=(shape,), out_channels=n), node.inputs[:1], output, weights
        )
    op = MatMul(shapes=(a,), matrix=(k, n), trans_a=trans_a)
    weights = {"weight": matrix.of(graph, node, turned=False), "bias": bias}
    return ConvertedOp(op, node.inputs[:1], output, weights)


@converts(
    dynamic.KIND, parameters=(dynamic.MATRIX, dynamic.SCALES, dynamic.ZERO_POINTS, dynamic.BIAS)
)
def _dynamic_product(graph: Graph, node: Node) -> list[ConvertedOp]:
    """The ranges of rows, which all products of them share, and the product.

    That constants have the sizes which they must have was seen when the model was read.
    """
    if not dynamic.is_fusible(graph, node):
        raise unsupported(node, "it must multiply rows by a constant matrix of 8 bits.")
    matrix = constant_input(graph, node, dynamic.MATRIX)
    signed, n = matrix.dtype == np.int8, matrix.shape[1]
    middle = MIDDLE if signed else 0
    zeros = constant_input(graph, node, dynamic.ZERO_POINTS, 0).astype(np.int64) + middle
    numbers = np.ascontiguousarray((matrix.T.astype(np.int16) + middle).astype(np.uint8))
    weights = {
        "weight": packed(numbers, 8),
        "scales": _of_columns(constant_input(graph, node, dynamic.SCALES), n, np.float32),
        "zero_points": _of_columns(zeros, n, np.uint32),
        "bias": _of_columns(constant_input(graph, node, dynamic.BIAS, 0.0), n, np.float32),
    }
    x, sizes = node.inputs[0], tuple(graph.shapes[node.inputs[0]])
    ranges = RowRange(shapes=(sizes,))
    product = MatMulDynamic(
        shapes=(sizes, ranges.out_sizes), matrix=matrix.shape, signed=bool(signed)
    )
    name = graph.names.tensor(x, "ranges")
    return [
        ConvertedOp(ranges, (x,), name),
        ConvertedOp(product, (x, name), node.outputs[0], weights),
    ]


def _of_columns(value: NDArray[Any], n: int, dtype: type) -> NDArray[Any]:
    """One for each column."""
    return np.array(np.broadcast_to(value.reshape(-1), (n,)), dtype)


@converts(
    f"{nbits.DOMAIN}.{nbits.KIND}",
    parameters=(nbits.WEIGHT, nbits.SCALES, nbits.ZERO_POINTS, nbits.BIAS),
)
def _matmul_nbits(graph: Graph, node: Node) -> list[ConvertedOp]:
    """That constants have the sizes which they must have was seen when the model was read."""
    k, n, bits, block = (attribute(node, name, 4) for name in ("K", "N", "bits", "block_size"))
    if has_input(node, nbits.ORDER):
        raise unsupported(node, "rows of the matrix in another order are not taken.")
    weights = {
        "weight": _packed(constant_input(graph, node, nbits.WEIGHT).reshape(n, -1)),
        "scales": constant_input(graph, node, nbits.SCALES).astype(np.float32).reshape(n, -1),
        "bias": constant_input(graph, node, nbits.BIAS, np.zeros(n)).astype(np.float32),
    }
    if has_input(node, nbits.ZERO_POINTS):
        zeros = constant_input(graph, node, nbits.ZERO_POINTS)
        if zeros.dtype != np.uint8:
            raise unsupported(node, f"zero points must be packed in uint8, got {zeros.dtype}.")
        weights["zero_points"] = _packed(zeros.reshape(n, -1))
    sizes = tuple(graph.shapes[node.inputs[0]])
    op = MatMulNBits(
        shapes=((1, *sizes) if len(sizes) == 1 else sizes,),
        matrix=(k, n),
        bits=bits,
        block=block,
        zero_points="zero_points" in weights,
        int8=attribute(node, "accuracy_level", 0) == nbits.INT8,
    )
    if op.problem is not None:
        raise unsupported(node, op.problem)
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0], weights)]


def _packed(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Bytes as words, filled up with zeros."""
    size = WORD // 8
    padded = np.ascontiguousarray(np.pad(rows, ((0, 0), (0, -rows.shape[1] % size))))
    return padded.view("<u4").astype(np.uint32, copy=False)
