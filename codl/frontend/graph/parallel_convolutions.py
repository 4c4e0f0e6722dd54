"""Convolutions of one tensor whose results are added become one convolution.

Networks such as RepVGG and MobileOne are trained with several branches a layer: convolutions with
windows of several sizes, and a batch norm of the input itself. All are linear, and so is their sum:
its window holds the sum of theirs. ONNX Runtime has taken norms behind convolutions into these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.frontend.graph.graph import Graph, Rewrite
from codl.ir.onnx_node import Node

SUMS, TERMS = ("Add", "Sum"), ("Conv", "BatchNormalization")


class _Way(NamedTuple):
    """What convolutions must have in common: their input, and how windows go over it."""

    x: str
    strides: tuple[int, ...]
    groups: int


class _Branch(NamedTuple):
    """Weights, shaped (outputs, inputs of a group, rows, columns), and bias of a convolution.

    `before` and `behind` are rows and columns of zeros in front of the first ones and after the
    last.
    """

    weights: NDArray[np.float64]
    bias: NDArray[np.float64]
    before: tuple[int, ...] = (0, 0)
    behind: tuple[int, ...] = (0, 0)


def merge_parallel_convolutions(graph: Graph) -> Graph:
    """Merge them where one convolution is no more work than they are together.

    A sum that is a term of a merged one is part of it, and is not looked at again.
    """
    terms, rewrites, inner = _terms(graph), list[Rewrite](), set[str]()
    for node in reversed(graph.nodes):
        found = terms.get(node.outputs[0], ())
        rewrite = None if node.name in inner else _merged(graph, node, found)
        if rewrite is not None:
            rewrites.append(rewrite)
        if rewrite is not None or node.name in inner:
            makers = (graph.makers.get(name) for name in node.inputs)
            inner.update(maker.name for maker in makers if maker and maker.type in SUMS)
    return graph.rewritten(*rewrites).without_unread if rewrites else graph


def _merged(graph: Graph, node: Node, terms: Sequence[Node]) -> Rewrite | None:
    ways = {way for term in terms if (way := _way(graph, term))}
    if len(terms) < 2 or len(ways) != 1:
        return None
    (way,) = ways
    branches = [_branch(graph, term, way) for term in terms]
    summed = _sum([branch for branch in branches if branch is not None])
    if summed is None or None in branches:
        return None
    values = {
        graph.names.tensor(node.outputs[0], "weights"): summed.weights.astype(np.float32),
        graph.names.tensor(node.outputs[0], "bias"): summed.bias.astype(np.float32),
    }
    attributes = {
        "kernel_shape": list(summed.weights.shape[2:]),
        "strides": list(way.strides),
        "pads": [*summed.before, *summed.behind],
        "group": way.groups,
    }
    return Rewrite(
        node, [Node(node.name, "Conv", (way.x, *values), node.outputs, attributes)], values
    )


def _terms(graph: Graph) -> Mapping[str, tuple[Node, ...]]:
    """By the tensor, the nodes whose results a sum adds, sums in it taken apart.

    Of sums of convolutions and norms that nothing else reads.
    """
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


def _way(graph: Graph, node: Node) -> _Way | None:
    """Of a convolution of pictures by constants, whose windows have no gaps."""
    if node.type != "Conv" or len(graph.shapes.get(node.inputs[0], ())) != 4:
        return None
    attributes, window = node.attributes, graph.shapes.get(node.inputs[1], ())[2:]
    gaps = zip(attributes.get("dilations", (1, 1)), window, strict=True)
    if any(step > 1 and size > 1 for step, size in gaps) or not _is_fixed(graph, node):
        return None
    if attributes.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    strides = tuple(attributes.get("strides", (1, 1)))
    return _Way(node.inputs[0], strides, attributes.get("group", 1))


def _is_fixed(graph: Graph, node: Node) -> bool:
    values = [graph.constants.get(name) for name in node.inputs[1:]]
    return all(value is not None and value.dtype.kind == "f" for value in values)


def _branch(graph: Graph, node: Node, way: _Way) -> _Branch | None:
    """A node that goes this way as a convolution; None where it does not."""
    if node.inputs[0] != way.x or not _is_fixed(graph, node):
        return None
    values = [graph.constants[name].astype(np.float64) for name in node.inputs[1:]]
    if _way(graph, node) == way:
        bias = values[1] if len(values) > 1 else np.zeros(len(values[0]))
        pads = tuple(node.attributes.get("pads", (0, 0, 0, 0)))
        return _Branch(values[0], bias, pads[:2], pads[2:])
    is_norm = node.type == "BatchNormalization" and not node.attributes.get("training_mode", 0)
    if is_norm and way.strides == (1, 1):
        return _norm(node, values, way.groups)
    return None


def _norm(node: Node, values: Sequence[NDArray[np.float64]], groups: int) -> _Branch:
    """A window of one pixel in which each channel is multiplied with a number."""
    scale, bias, mean, variance = values
    factor = scale / np.sqrt(variance + node.attributes.get("epsilon", 1e-5))
    channels, of_group = len(factor), len(factor) // groups
    weights = np.zeros((channels, of_group, 1, 1))
    weights[np.arange(channels), np.arange(channels) % of_group, 0, 0] = factor
    return _Branch(weights, bias - mean * factor)


def _sum(branches: Sequence[_Branch]) -> _Branch | None:
    """The sum of branches with as many outputs; None where its window is more than theirs."""
    first = branches[0] if branches else None
    if first is None or any(b.weights.shape[:2] != first.weights.shape[:2] for b in branches):
        return None
    befores, behinds = (np.array([getattr(b, k) for b in branches]) for k in ("before", "behind"))
    # How far each window reaches behind the first pixel: by rows and by columns, one is furthest.
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
