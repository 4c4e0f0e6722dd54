"""Folding of constant scales and shifts into products, and of parallel convolutions into one.

ONNX Runtime does so for convolutions. It leaves matrix products: a bias behind a product of tokens,
and a batch norm behind or in front of a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.frontend.graph.graph import Draft, Graph, Rewrite, applied
from codl.frontend.graph.passes import RESHAPES
from codl.ir.onnx_node import Node

FoldedVector = NDArray[np.float64]

PRODUCTS = ("Gemm", "MatMul")


@dataclass(frozen=True, eq=False)
class Affine:
    """A node that computes `scale * x + shift`, with constants that broadcast to x."""

    x: str
    scale: NDArray[np.float64]
    shift: NDArray[np.float64]

    def along_last(self, size: int) -> tuple[FoldedVector, FoldedVector] | None:
        """Scale and shift for each element of the last axis; None if they vary along others."""
        parts = []
        for value in (self.scale, self.shift):
            if value.size not in (1, size) or (value.size > 1 and value.shape[-1] != size):
                return None
            parts.append(np.broadcast_to(value.reshape(-1), (size,)))
        return parts[0], parts[1]


def fold_affines(graph: Graph) -> Graph:
    """Fold scales and shifts into the product before, else into all products behind."""
    draft = Draft(graph)
    ways: tuple[tuple[Callable[[Draft, Node, Affine], None], int], ...]
    ways = (_into_before, 1), (_into_after, -1), (_into_factor, -1)
    for fold, step in ways:
        for old in draft.order[::step]:
            node = draft.makers.get(old.outputs[0])  # possibly folded
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
    """A batch norm of rows, with channels as last axis; None for others."""
    fixed = all(name in graph.constants for name in node.inputs[1:5])
    rows = len(graph.shapes.get(node.inputs[0], ())) == 2
    if not fixed or not rows or node.attributes.get("training_mode", 0):
        return None
    scale, bias, mean, variance = (graph.constants[n].astype(np.float64) for n in node.inputs[1:5])
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    return Affine(node.inputs[0], factor, bias - mean * factor)


def _into_before(graph: Draft, node: Node, affine: Affine) -> None:
    """Fold into the product before, also through reshapes that keep the last axis."""
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
    """Fold into all readers; each must be a product of rows."""
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
    """Fold a scalar into the factor of a product of two tensors, before or behind."""
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
    """A product of rows: its constant matrix, shaped (k, n), and a bias for each column."""

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
        # A column vector would add another number to each row.
        if added is None or added.size not in (1, *added.shape[-1:]):
            return None
        bias = beta * added.astype(np.float64).reshape(-1)
    return Product(matrix, np.broadcast_to(bias, matrix.shape[1:]))


def _fold(
    graph: Draft, node: Node, matrix: NDArray[np.float64] | None, bias: NDArray[np.float64]
) -> None:
    """Replace a product's bias, and its matrix if given; a MatMul may have a bias.

    An unchanged matrix is not copied, as steps of an unrolled loop share one.
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


# Parallel convolutions whose results are added: networks such as RepVGG and MobileOne are trained
# with several branches a layer, convolutions of several window sizes and a batch norm of the input.
# All are linear, so their sum is one convolution, with the sum of their windows. ONNX Runtime has
# folded norms behind convolutions before.

SUMS, TERMS = ("Add", "Sum"), ("Conv", "BatchNormalization")


class _Geometry(NamedTuple):
    """Input, strides and groups that parallel convolutions share."""

    x: str
    strides: tuple[int, ...]
    groups: int


class _Branch(NamedTuple):
    """A convolution's bias, and weights (outputs, inputs of a group, rows, columns).

    `before` and `behind` are zero rows and columns around the input.
    """

    weights: NDArray[np.float64]
    bias: NDArray[np.float64]
    before: tuple[int, ...] = (0, 0)
    behind: tuple[int, ...] = (0, 0)


def merge_parallel_convolutions(graph: Graph) -> Graph:
    """Merge convolutions where one has at most the work of all; inner sums are part of it."""
    terms, rewrites, inner = _terms(graph), list[Rewrite](), set[str]()
    for node in reversed(graph.nodes):
        found = terms.get(node.outputs[0], ())
        rewrite = None if node.name in inner else _merged_sum(graph, node, found)
        if rewrite is not None:
            rewrites.append(rewrite)
        if rewrite is not None or node.name in inner:
            makers = (graph.makers.get(name) for name in node.inputs)
            inner.update(maker.name for maker in makers if maker and maker.type in SUMS)
    return applied(graph, rewrites)


def _merged_sum(graph: Graph, node: Node, terms: Sequence[Node]) -> Rewrite | None:
    geometries = {geometry for term in terms if (geometry := _geometry(graph, term))}
    if len(terms) < 2 or len(geometries) != 1:
        return None
    (geometry,) = geometries
    branches = [_branch(graph, term, geometry) for term in terms]
    summed = _summed([branch for branch in branches if branch is not None])
    if summed is None or None in branches:
        return None
    values = {
        graph.names.tensor(node.outputs[0], "weights"): summed.weights.astype(np.float32),
        graph.names.tensor(node.outputs[0], "bias"): summed.bias.astype(np.float32),
    }
    attributes = {
        "kernel_shape": list(summed.weights.shape[2:]),
        "strides": list(geometry.strides),
        "pads": [*summed.before, *summed.behind],
        "group": geometry.groups,
    }
    return Rewrite(
        node, [Node(node.name, "Conv", (geometry.x, *values), node.outputs, attributes)], values
    )


def _terms(graph: Graph) -> Mapping[str, tuple[Node, ...]]:
    """Addends of each (nested) sum of convolutions and norms without other readers, by tensor."""
    found: dict[str, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node.type in SUMS:
            parts = [_term(graph, node, name, found) for name in node.inputs]
            if all(parts):
                found[node.outputs[0]] = tuple(term for part in parts for term in part)
    return found


def _term(
    graph: Graph, node: Node, name: str, found: Mapping[str, tuple[Node, ...]]
) -> tuple[Node, ...]:
    maker = graph.makers.get(name)
    if maker is None or graph.shapes.get(name) != graph.shapes.get(node.outputs[0]):
        return ()
    if not graph.is_read_once(name, node):
        return ()
    return (maker,) if maker.type in TERMS else found.get(name, ())


def _geometry(graph: Graph, node: Node) -> _Geometry | None:
    """The geometry of an undilated 2-D convolution with constant weights; None for other nodes."""
    if node.type != "Conv" or len(graph.shapes.get(node.inputs[0], ())) != 4:
        return None
    attributes, window = node.attributes, graph.shapes.get(node.inputs[1], ())[2:]
    gaps = zip(attributes.get("dilations", (1, 1)), window, strict=True)
    if any(step > 1 and size > 1 for step, size in gaps) or not _is_fixed(graph, node):
        return None
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    strides = tuple(attributes.get("strides", (1, 1)))
    return _Geometry(node.inputs[0], strides, attributes.get("group", 1))


def _is_fixed(graph: Graph, node: Node) -> bool:
    values = [graph.constants.get(name) for name in node.inputs[1:]]
    return all(value is not None and value.dtype.kind == "f" for value in values)


def _branch(graph: Graph, node: Node, geometry: _Geometry) -> _Branch | None:
    """The node as a convolution along `geometry`; None if it is none."""
    if node.inputs[0] != geometry.x or not _is_fixed(graph, node):
        return None
    values = [graph.constants[name].astype(np.float64) for name in node.inputs[1:]]
    if _geometry(graph, node) == geometry:
        bias = values[1] if len(values) > 1 else np.zeros(len(values[0]))
        pads = tuple(node.attributes.get("pads", (0, 0, 0, 0)))
        return _Branch(values[0], bias, pads[:2], pads[2:])
    is_norm = node.type == "BatchNormalization" and not node.attributes.get("training_mode", 0)
    if is_norm and geometry.strides == (1, 1):
        return _norm_branch(node, values, geometry.groups)
    return None


def _norm_branch(node: Node, values: Sequence[NDArray[np.float64]], groups: int) -> _Branch:
    """A batch norm as a 1x1 convolution that scales each channel."""
    scale, bias, mean, variance = values
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    channels, of_group = len(factor), len(factor) // groups
    weights = np.zeros((channels, of_group, 1, 1))
    weights[np.arange(channels), np.arange(channels) % of_group, 0, 0] = factor
    return _Branch(weights, bias - mean * factor)


def _summed(branches: Sequence[_Branch]) -> _Branch | None:
    """The sum of branches with equal outputs; None if its window exceeds theirs together."""
    first = branches[0] if branches else None
    if first is None or any(b.weights.shape[:2] != first.weights.shape[:2] for b in branches):
        return None
    befores, behinds = (np.array([getattr(b, k) for b in branches]) for k in ("before", "behind"))
    # Rows and columns that each window reaches behind the first pixel.
    reaches = np.array([branch.weights.shape[2:] for branch in branches]) - befores
    before, window = befores.max(axis=0), befores.max(axis=0) + reaches.max(axis=0)
    behind = behinds[reaches.argmax(axis=0), [0, 1]]
    if prod(window) > sum(prod(branch.weights.shape[2:]) for branch in branches):
        return None
    weights = np.zeros((*first.weights.shape[:2], *window))
    for branch, (row, column) in zip(branches, (before - befores).tolist(), strict=True):
        rows, columns = branch.weights.shape[2:]
        weights[:, :, row : row + rows, column : column + columns] += branch.weights
    bias = np.sum([branch.bias for branch in branches], axis=0)
    return _Branch(weights, bias, tuple(before.tolist()), tuple(behind.tolist()))
