"""Scales and shifts by constants become part of the products with constants beside them.

ONNX Runtime folds them into convolutions. What it leaves are those of matrices: a bias behind a
product of tokens, a batch norm behind a linear layer or in front of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.frontend.graph.graph import Draft, Graph, Rewrite
from codl.frontend.graph.passes import RESHAPES
from codl.ir.onnx_node import Node

FoldedVector = NDArray[np.float64]

PRODUCTS = ("Gemm", "MatMul")


@dataclass(frozen=True, eq=False)
class Affine:
    """A node that computes `scale * x + shift`, both of the sizes of constants beside x."""

    x: str
    scale: NDArray[np.float64]
    shift: NDArray[np.float64]

    def along_last(self, size: int) -> tuple[FoldedVector, FoldedVector] | None:
        """Scale and shift for each element of the last axis; None where others matter."""
        parts = []
        for value in (self.scale, self.shift):
            if value.size not in (1, size) or (value.size > 1 and value.shape[-1] != size):
                return None
            parts.append(np.broadcast_to(value.reshape(-1), (size,)))
        return parts[0], parts[1]


def fold_affines(graph: Graph) -> Graph:
    """Fold such nodes into the product before them, or into all products behind them."""
    draft = Draft(graph)
    ways: tuple[tuple[Callable[[Draft, Node, Affine], None], int], ...]
    ways = (_into_before, 1), (_into_after, -1), (_into_factor, -1)
    for fold, step in ways:
        for old in draft.nodes[::step]:
            node = draft.makers.get(old.outputs[0])  # as folding has left it, if it has
            affine = _affine(draft, node) if node else None
            if node and affine:
                fold(draft, node, affine)
    return draft.graph


def _affine(graph: Draft, node: Node) -> Affine | None:
    if node.type == "BatchNormalization":
        return _batch_norm(graph, node)
    if node.type not in ("Add", "Sub", "Mul", "Div") or len(node.inputs) != 2:
        return None
    if any(tensor not in graph.shapes for tensor in (*node.inputs, *node.outputs)):
        return None
    first, second = (name in graph.constants for name in node.inputs)
    if first == second:
        return None
    x, name = node.inputs[::-1] if first else node.inputs
    if graph.constants[name].dtype.kind != "f":
        return None
    value = graph.constants[name].astype(np.float64)
    if value.ndim > len(graph.shapes[x]) or not np.isfinite(value).all():
        return None
    unit, zero = np.ones(()), np.zeros(())
    if node.type == "Add":
        return Affine(x, unit, value)
    if node.type == "Sub":
        return Affine(x, -unit, value) if first else Affine(x, unit, -value)
    if node.type == "Mul":
        return Affine(x, value, zero)
    return None if first or not value.all() else Affine(x, 1 / value, zero)


def _batch_norm(graph: Draft, node: Node) -> Affine | None:
    """Of rows alone: there the channels are the last axis."""
    fixed = all(name in graph.constants for name in node.inputs[1:5])
    rows = len(graph.shapes.get(node.inputs[0], ())) == 2
    if not fixed or not rows or node.attributes.get("training_mode", 0):
        return None
    scale, bias, mean, variance = (graph.constants[n].astype(np.float64) for n in node.inputs[1:5])
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    return Affine(node.inputs[0], factor, bias - mean * factor)


def _into_before(graph: Draft, node: Node, affine: Affine) -> None:
    """Reshapes that keep the last axis may lie between."""
    reader, tensor = node, affine.x
    while True:
        before = graph.links.makers.get(tensor)
        if before is None or not graph.is_read_once(tensor, reader):
            return
        if before.type not in RESHAPES:
            break
        last = [graph.shapes.get(name, ())[-1:] for name in (before.inputs[0], tensor)]
        if not last[0] or last[0] != last[1]:
            return
        reader, tensor = before, before.inputs[0]
    sizes = graph.shapes.get(tensor)
    parts = affine.along_last(sizes[-1]) if sizes else None
    if parts is None:
        return
    scale, shift = parts
    product = _product(graph, before)
    if product is None:
        return
    matrix = None if (scale == 1).all() else product.matrix * scale
    _fold(graph, before, matrix, product.bias * scale + shift)
    graph.drop(node.outputs[0], affine.x)


def _into_after(graph: Draft, node: Node, affine: Affine) -> None:
    """Every reader must be a product of the rows."""
    output = node.outputs[0]
    readers = graph.consumers(output)
    if graph.is_handed_out(output) or not readers or any(r.inputs[0] != output for r in readers):
        return
    sizes = graph.shapes.get(output)
    parts = affine.along_last(sizes[-1]) if sizes else None
    if parts is None or any(_product(graph, reader) is None for reader in readers):
        return
    scale, shift = parts
    for reader in readers:
        if product := _product(graph, reader):
            matrix = None if (scale == 1).all() else scale[:, None] * product.matrix
            _fold(graph, reader, matrix, product.bias + shift @ product.matrix)
    graph.drop(output, affine.x)


def _into_factor(graph: Draft, node: Node, affine: Affine) -> None:
    """One number that scales a product of two tensors, or an operand of one, becomes its factor."""
    output = node.outputs[0]
    if affine.scale.size != 1 or affine.shift.any():
        return
    maker = graph.links.makers.get(affine.x)
    products = [maker] if maker and graph.is_read_once(affine.x, node) else []
    products += [n for n in graph.consumers(output) if graph.is_read_once(output, n)]
    for product in products:
        if product.type == "MatMul" and not any(n in graph.constants for n in product.inputs):
            alpha = product.attributes.get("alpha", 1.0) * float(affine.scale.item())
            made = replace(product, attributes={"alpha": alpha}, proto=None)
            graph.rewrite(Rewrite(product, [made]))
            graph.drop(output, affine.x)
            return


class Product(NamedTuple):
    """The constant matrix, shaped (k, n), and the bias for each column, of a product of rows."""

    matrix: NDArray[np.float64]
    bias: NDArray[np.float64]


def _product(graph: Draft, node: Node) -> Product | None:
    if node.type not in PRODUCTS or node.inputs[1] not in graph.constants:
        return None
    matrix = graph.constants[node.inputs[1]].astype(np.float64)
    sizes = [graph.shapes.get(name, ()) for name in (node.inputs[0], node.outputs[0])]
    if matrix.ndim != 2 or min(map(len, sizes)) < 2:
        return None
    bias: NDArray[np.float64] = np.zeros(())
    beta = 1.0
    if node.type == "Gemm":
        if node.attributes.get("transA", 0):
            return None
        matrix = matrix.T if node.attributes.get("transB", 0) else matrix
        matrix = node.attributes.get("alpha", 1.0) * matrix
        beta = node.attributes.get("beta", 1.0)
    if len(node.inputs) > 2 and node.inputs[2]:
        added = graph.constants.get(node.inputs[2])
        # A column of as many rows adds another number to each of them.
        if added is None or added.size not in (1, *added.shape[-1:]):
            return None
        bias = beta * added.astype(np.float64).reshape(-1)
    return Product(matrix, np.broadcast_to(bias, matrix.shape[1:]))


def _fold(
    graph: Draft, node: Node, matrix: NDArray[np.float64] | None, bias: NDArray[np.float64]
) -> None:
    """Give a product another bias, and another matrix if there is one; a MatMul may have a bias.

    A matrix that stays is not copied: steps of an unrolled loop share one.
    """
    names, output = graph.names, node.outputs[0]
    name = names.tensor(output, "bias")
    values = {name: np.ascontiguousarray(bias, np.float32)}
    inputs, attributes = (*node.inputs[:2], name), {**node.attributes}
    if matrix is not None:
        inputs = (inputs[0], names.tensor(output, "matrix"), name)
        values[inputs[1]] = np.ascontiguousarray(matrix, np.float32)
        attributes = {}
    elif node.type == "Gemm":
        attributes["beta"] = 1.0
    made = replace(node, inputs=inputs, attributes=attributes, proto=None)
    graph.rewrite(Rewrite(node, [made], values))
