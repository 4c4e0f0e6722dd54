"""Converters of matrix products, with constants or in batches, and of `Einsum`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from codl.frontend.converters.base import (
    ConvertedOp,
    Operand,
    Steps,
    attribute,
    between,
    converts,
    has_input,
    number,
    seen,
    unsupported,
)
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Array
from codl.ir.ops.matmul import FullyConnected, MatMul
from codl.ir.ops.nd import Sizes
from codl.ir.region import Shape, as_nchw


@converts("MatMul")
def _matmul(graph: Graph, node: Node) -> list[ConvertedOp]:
    """A product; an operand of one axis is a row on the left, a column on the right."""
    a, b = (tuple(graph.shapes[name]) for name in node.inputs[:2])
    b = (*b, 1) if len(b) == 1 else b
    if node.inputs[1] in graph.constants and len(b) == 2:
        # A third input is a bias, folded into the node by a pass; ONNX's MatMul has none.
        bias = graph.constant(node.inputs[2]) if has_input(node, 2) else np.zeros(b[1], np.float32)
        return [_with_constant(graph, node, a, Matrix(b), bias, node.outputs[0])]
    a = (1, *a) if len(a) == 1 else a
    # `alpha` is a factor found by a pass in front of the node.
    alpha = number(attribute(node, "alpha", 1.0))
    return [ConvertedOp(MatMul(shapes=(a, b), alpha=alpha), node.inputs, node.outputs[0])]


@converts("Gemm")
def _gemm(graph: Graph, node: Node) -> list[ConvertedOp]:
    """alpha * a @ b + beta * c, with factors multiplied into constants."""
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
    """A product's second input: sizes, whether it is transposed, and a factor."""

    sizes: tuple[int, int]
    turned: bool = False
    factor: float = 1.0

    def of(self, graph: Graph, node: Node, *, turned: bool) -> Array:
        """The matrix or its transpose, as one array for all its readers."""
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
    """A product with a constant (k, n): a fully connected layer if images have one row each.

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


@dataclass(frozen=True)
class Indexed:
    """A tensor with an index letter for each axis."""

    tensor: Operand
    axes: str

    def sizes(self, indices: str) -> Sizes:
        return tuple(self.tensor.sizes[self.axes.index(index)] for index in indices)


@converts("Einsum")
def _einsum(graph: Graph, node: Node) -> list[ConvertedOp]:
    """A batched product: indices of both tensors are batch axes if in the result, else summed."""
    steps = Steps(graph, node)
    equation = str(attribute(node, "equation", "")).replace(" ", "")
    left, _, target = equation.partition("->")
    texts = left.split(",")
    if len(texts) != 2 or any(len({*t}) < len(t) or not t.isalpha() for t in texts):
        raise unsupported(node, f"{equation!r} is no product of two tensors.")
    a, b = (
        Indexed(steps.operand(name), axes) for name, axes in zip(node.inputs, texts, strict=True)
    )
    batch = "".join(i for i in target if i in a.axes and i in b.axes)
    inner = "".join(i for i in a.axes if i in b.axes and i not in batch)
    rows, columns = ("".join(i for i in term.axes if i not in batch + inner) for term in (a, b))
    made = batch + rows + columns
    if sorted(made) != sorted(target) or a.sizes(inner) != b.sizes(inner):
        raise unsupported(node, f"{equation!r} sums an index of one tensor alone.")
    x, trans_a = _matrix(steps, a, batch, rows, inner)
    y, trans_b = _matrix(steps, b, batch, inner, columns)
    word = "" if made == target else "product"
    result = steps.matmul(x, y, word, trans_a=trans_a, trans_b=trans_b)
    if made != target:
        perm = tuple(made.index(index) for index in target)
        wide = np.broadcast_shapes(a.sizes(batch), b.sizes(batch))
        sizes = (*wide, *a.sizes(rows), *b.sizes(columns))
        steps.transpose(result, perm, "", axes=sizes)
    return steps.made


def _matrix(steps: Steps, term: Indexed, batch: str, first: str, last: str) -> tuple[Operand, bool]:
    """A tensor as matrices of `first` x `last`; or of `last` x `first` and True, if stored so."""
    x, sides = term.tensor, [prod(term.sizes(first)), prod(term.sizes(last))]
    if term.axes == batch + last + first:
        return seen(x, (*term.sizes(batch), *sides[::-1])), True
    if term.axes != batch + first + last:
        perm = tuple(term.axes.index(index) for index in batch + first + last)
        x = steps.transpose(x, perm, "ordered")
    return seen(x, (*term.sizes(batch), *sides)), False
