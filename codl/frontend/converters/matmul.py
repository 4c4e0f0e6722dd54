"""Products: of matrices, as fully connected layers or in batches, and of indices (`Einsum`)."""

from __future__ import annotations

from dataclasses import dataclass
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
    unsupported,
)
from codl.frontend.converters.reductions import reduced
from codl.frontend.converters.steps import Operand, Steps, seen
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


#: What stands for the axes that an equation leaves out; no index of a user's is one of these.
LEFT_OUT = "0123456789"


@dataclass(frozen=True)
class Indexed:
    """A tensor with an index for each of its axes."""

    tensor: Operand
    axes: str

    def size(self, index: str) -> int:
        return self.tensor.sizes[self.axes.index(index)]

    def sizes(self, indices: str) -> Sizes:
        return tuple(self.size(index) for index in indices)


@converts("Einsum")
def _einsum(graph: Graph, node: Node) -> list[ConvertedOp]:
    steps = Steps(graph, node)
    terms, target = _equation(steps)
    if len(terms) > 2:
        raise unsupported(node, f"one or two tensors are known, got {len(terms)}.")
    others = ["".join(t.axes for t in terms if t is not term) + target for term in terms]
    # An index that nothing else has is summed up first.
    first, *rest = (
        _summed(steps, term, "".join(i for i in term.axes if i in other))
        for term, other in zip(terms, others, strict=True)
    )
    result = _einsum_product(steps, first, rest[0], target) if rest else first
    ordered = _ordered(steps, result, target)
    steps.finish(ordered.tensor, node.outputs[0])
    return steps.made


def _equation(steps: Steps) -> tuple[list[Indexed], str]:
    """The tensors with their indices, and those of the result."""
    equation = str(attribute(steps.node, "equation", "")).replace(" ", "")
    left, arrow, target = equation.partition("->")
    texts = left.split(",")
    operands = [steps.operand(name) for name in steps.node.inputs]
    if len(texts) != len(operands):
        reason = f"{equation!r} is one of {len(texts)} tensors, got {len(operands)}."
        raise unsupported(steps.node, reason)
    hidden = [
        len(x.sizes) - len(t.replace("...", "")) for t, x in zip(texts, operands, strict=True)
    ]
    terms = []
    for text, operand, count in zip(texts, operands, hidden, strict=True):
        axes = text.replace("...", LEFT_OUT[: max(hidden)][max(hidden) - count :])
        if len(axes) != len(operand.sizes):
            reason = f"{text!r} of {equation!r} does not fit {operand.sizes}."
            raise unsupported(steps.node, reason)
        if len(set(axes)) < len(axes):
            raise unsupported(steps.node, f"{text!r} takes a diagonal.")
        terms.append(Indexed(operand, axes))
    if not arrow:
        indices = "".join(texts).replace(".", "")
        target = "..." + "".join(sorted(i for i in set(indices) if indices.count(i) == 1))
    target = target.replace("...", LEFT_OUT[: max(hidden)])
    if len(set(target)) < len(target) or not set(target) <= set("".join(t.axes for t in terms)):
        raise unsupported(steps.node, f"{target!r} is no result of {equation!r}.")
    return terms, target


def _summed(steps: Steps, term: Indexed, kept: str) -> Indexed:
    axes = tuple(axis for axis, index in enumerate(term.axes) if index not in kept)
    if not axes:
        return term
    total = reduced(steps, term.tensor, "sum", axes, "sum", keepdims=False)
    return Indexed(Operand(total.name, term.sizes(kept)), kept)


def _einsum_product(steps: Steps, a: Indexed, b: Indexed, target: str) -> Indexed:
    """Indices of both tensors and the result are batches; of both alone, they are summed up."""
    batch = "".join(i for i in target if i in a.axes and i in b.axes)
    inner = "".join(i for i in a.axes if i in b.axes and i not in batch)
    rows, columns = ("".join(i for i in term.axes if i not in batch + inner) for term in (a, b))
    for index in inner:
        if a.size(index) != b.size(index):
            reason = f"{index!r} is {a.size(index)} and {b.size(index)}."
            raise unsupported(steps.node, reason)
    left, trans_a = _matrix(steps, a, batch, rows, inner)
    right, trans_b = _matrix(steps, b, batch, inner, columns)
    result = steps.matmul(left, right, "product", trans_a=trans_a, trans_b=trans_b)
    wide = tuple(max(a.size(index), b.size(index)) for index in batch)
    sizes = (*wide, *a.sizes(rows), *b.sizes(columns))
    return Indexed(seen(result, sizes), batch + rows + columns)


def _matrix(steps: Steps, term: Indexed, batch: str, first: str, last: str) -> tuple[Operand, bool]:
    """A tensor as matrices of `first` x `last`, or of `last` x `first` where it lies so (True)."""
    turned = term.axes == batch + last + first
    if not turned:
        term = _ordered(steps, term, batch + first + last)
    sides = [prod(term.sizes(first)), prod(term.sizes(last))]
    sizes = (*term.sizes(batch), *(sides[::-1] if turned else sides))
    return seen(term.tensor, sizes), turned


def _ordered(steps: Steps, term: Indexed, axes: str) -> Indexed:
    """The tensor with its axes in another order."""
    if term.axes == axes:
        return term
    perm = tuple(term.axes.index(index) for index in axes)
    return Indexed(steps.transpose(term.tensor, perm, "ordered"), axes)
