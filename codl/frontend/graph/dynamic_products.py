"""Products whose rows are rounded to 8 bits while a model runs: written out, or as one node.

ONNX Runtime's quantiser writes them as several nodes: one finds the scale and the zero point of all
rows and rounds them, one multiplies whole numbers, others make floats of the sums and scale them.
All of them become the one node that ONNX Runtime fuses them to, which has floats at both ends. A
node between that another one reads stays, and is dropped where none does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from codl.errors import CodlError
from codl.frontend.graph.expansions import MICROSOFT, made_node
from codl.frontend.graph.graph import Graph, Rewrite
from codl.ir.onnx_node import Node

#: The node that all forms become: rows, a matrix, its scales, its zero points and a bias.
KIND = f"{MICROSOFT}.DynamicQuantizeMatMul"
TO_FLOAT = f"{MICROSOFT}.MatMulIntegerToFloat"
#: Its inputs behind the rows.
MATRIX, SCALES, ZERO_POINTS, BIAS = range(1, 5)
NUMBERS = ("int8", "uint8")


@dataclass(frozen=True)
class Product:
    """A product in any form, whose result `last` makes: what it reads, "" for nothing.

    A column's scale is the product of all `scales`.
    """

    last: Node
    rows: str
    matrix: str
    scales: tuple[str, ...]
    zero_points: str
    bias: str = ""


def fuse_dynamic_products(graph: Graph) -> Graph:
    """The graph with one node for each such product by a constant matrix.

    Raises `CodlError` where a constant of one is not of the shape that it must have.
    """
    rewrites = []
    for product in filter(None, (_product(graph, node) for node in graph.nodes)):
        scales = graph.names.tensor(product.last.outputs[0], "scales")
        fused = _fused(product, scales)
        rewrites.append(Rewrite(product.last, [fused], {scales: _scales(graph, product)}))
    if rewrites:
        graph = graph.rewritten(*rewrites)
        graph = replace(graph, domains={MICROSOFT: 1, **graph.domains}).without_unread
    for node in graph.nodes:
        if node.type == KIND:
            _check(graph, node)
    return graph


def is_fusible(graph: Graph, node: Node) -> bool:
    """Whether a node of `KIND` multiplies rows by a constant matrix."""
    if len(node.inputs) <= MATRIX or not node.inputs[MATRIX]:
        return False
    rows = graph.shapes.get(node.inputs[0], ())
    constants = [name for name in node.inputs[MATRIX:] if name]
    if len(rows) < 2 or any(name not in graph.constants for name in constants):
        return False
    matrix = graph.constants[node.inputs[MATRIX]]
    return matrix.ndim == 2 and matrix.dtype.name in NUMBERS


def _product(graph: Graph, node: Node) -> Product | None:
    """What a node that multiplies whole numbers is a part of; None where that is something else."""
    if node.type == TO_FLOAT:
        product = _to_float(graph, node)
    elif node.type == "MatMulInteger":
        product = _written_out(graph, node)
    else:
        return None
    fits = product and is_fusible(graph, _fused(product, ""))
    if not product or not fits or any(name not in graph.constants for name in product.scales):
        return None
    return product


def _to_float(graph: Graph, node: Node) -> Product | None:
    """A node that also scales what it has summed."""
    a, b, a_scale, scale, a_zero, zero, bias = (*node.inputs, *[""] * 7)[:7]
    rounding = producer(graph, a, "DynamicQuantizeLinear")
    if rounding is None or rounding.outputs[1:] != (a_scale, a_zero):
        return None
    return Product(node, rounding.inputs[0], b, (scale,), zero, bias)


def _written_out(graph: Graph, node: Node) -> Product | None:
    """Behind the node its sums become floats, times the scale of the rows and those of columns."""
    a, b, a_zero, zero = (*node.inputs, *[""] * 4)[:4]
    rounding = producer(graph, a, "DynamicQuantizeLinear")
    last = _only_reader(graph, node, "Cast")
    if rounding is None or rounding.outputs[2:] != (a_zero,) or last is None:
        return None
    if last.attributes["to"] != TensorProto.FLOAT:
        return None
    scale, factors = rounding.outputs[1], list[str]()
    while scale not in factors or len(factors) < 2:
        product = _only_reader(graph, last, "Mul")
        if product is None:
            return None
        (other,) = (set(product.inputs) - set(last.outputs)) or {""}
        both = producer(graph, other, "Mul")
        factors += both.inputs if both is not None and scale in both.inputs else [other]
        last = product
    factors.remove(scale)
    values = [graph.constants.get(name) for name in factors]
    n = graph.shapes.get(b, (0,))[-1]
    rows = graph.shapes.get(rounding.inputs[0], ())
    if any(x is None or (x.size > 1 and (x.shape[-1], x.size) != (n, n)) for x in values):
        return None
    if graph.shapes.get(last.outputs[0]) != (*rows[:-1], n):
        return None
    return Product(last, rounding.inputs[0], b, tuple(factors), zero)


def _only_reader(graph: Graph, node: Node, kind: str) -> Node | None:
    """The one reader of a node's output, where that is of some type."""
    reader = graph.reader_of(node.outputs[0])
    return reader if reader is not None and reader.type == kind else None


def _scales(graph: Graph, product: Product) -> NDArray[np.float32]:
    values = [graph.constant(name) for name in product.scales]
    scales = np.asarray(prod(values[1:], start=values[0]))
    return scales.reshape(-1) if scales.size > 1 else scales.reshape(())


def _fused(product: Product, scales: str) -> Node:
    inputs = (product.rows, product.matrix, scales, product.zero_points, product.bias)
    last = product.last
    kind = KIND.rpartition(".")[2]
    return made_node(last.name, kind, inputs, last.outputs, domain=MICROSOFT)


def _check(graph: Graph, node: Node) -> None:
    """Raise `CodlError` for constants of other shapes than a matrix (k, n) goes with."""
    if not is_fusible(graph, node):
        return
    matrix = graph.constants[node.inputs[MATRIX]]
    n = matrix.shape[1]
    for index in (SCALES, ZERO_POINTS, BIAS):
        name = node.inputs[index] if len(node.inputs) > index else ""
        value = graph.constants.get(name)
        if value is None or value.shape == (n,) or (value.size == 1 and index != BIAS):
            continue
        raise CodlError(
            f"The node {node.name!r} ({node.type}): {name!r} must be {(n,)}, got {value.shape}: "
            f"{node.inputs[MATRIX]!r} is {matrix.shape}."
        )


def producer(graph: Graph, name: str, kind: str) -> Node | None:
    """The node of some type that makes a tensor, if it does."""
    node = graph.makers.get(name)
    return node if node is not None and node.type == kind else None
