"""Norms along the last axis that models spell out in some nodes become one each.

x over the root of the mean of its squares is an RMS norm; where x is one less its mean, a layer
norm. A scale, and then a bias, for each element of the axis belong to it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from codl.frontend.graph.graph import Graph
from codl.frontend.graph.patterns import pairs, producer, scalar, without_unread
from codl.ir.onnx_node import Node


def fuse_norms(graph: Graph) -> Graph:
    """Replace the last node of every such pattern; what only it read goes."""
    for name in [node.name for node in graph.nodes if node.type in ("Div", "Mul")]:
        node = next((node for node in graph.nodes if node.name == name), None)
        found = _normalized(graph, node) if node is not None else None
        if node is not None and found is not None:
            graph = _fused(graph, node, *found)
    return without_unread(graph)


def _normalized(graph: Graph, node: Node) -> tuple[str, float] | None:
    """What a node divides by the root of the mean of its squares, and the epsilon in the root."""
    for x, other in [tuple(node.inputs)] if node.type == "Div" else pairs(node, "Mul"):
        root = producer(graph, other, "Sqrt") if node.type == "Div" else _inverse(graph, other)
        if root is None:
            continue
        for mean, small in pairs(producer(graph, root.inputs[0], "Add"), "Add"):
            epsilon, averaged = scalar(graph, small), _averaged(graph, mean)
            if epsilon is not None and averaged is not None and _is_square(graph, averaged, x):
                return x, epsilon
    return None


def _inverse(graph: Graph, name: str) -> Node | None:
    """The root that a tensor is 1 over."""
    inverse, quotient = producer(graph, name, "Reciprocal"), producer(graph, name, "Div")
    if inverse is not None:
        return producer(graph, inverse.inputs[0], "Sqrt")
    if quotient is not None and scalar(graph, quotient.inputs[0]) == 1:
        return producer(graph, quotient.inputs[1], "Sqrt")
    return None


def _averaged(graph: Graph, name: str) -> str | None:
    """What a tensor is the mean of, along the last axis, which stays."""
    mean = producer(graph, name, "ReduceMean")
    if mean is None or not mean.attributes.get("keepdims", 1):
        return None
    given = graph.constants.get(mean.inputs[1]) if len(mean.inputs) > 1 else None
    axes = mean.attributes.get("axes", ()) if given is None else given.reshape(-1).tolist()
    rank = len(graph.shapes.get(mean.inputs[0], ()))
    return mean.inputs[0] if rank and [int(axis) % rank for axis in axes] == [rank - 1] else None


def _is_square(graph: Graph, name: str, x: str) -> bool:
    power, product = producer(graph, name, "Pow"), producer(graph, name, "Mul")
    if power is not None:
        return power.inputs[0] == x and scalar(graph, power.inputs[1]) == 2
    return product is not None and set(product.inputs) == {x}


def _fused(graph: Graph, node: Node, x: str, epsilon: float) -> Graph:
    """The norm in the place of the last node of the pattern."""
    apart, size = producer(graph, x, "Sub"), graph.shapes[x][-1]
    centered = apart is not None and _averaged(graph, apart.inputs[1]) == apart.inputs[0]
    last, scale = _with_next(graph, node, "Mul", size)
    bias = None
    if apart is not None and centered:
        x = apart.inputs[0]
        last, bias = _with_next(graph, last, "Add", size)
    name = last.outputs[0]
    values = {f"{name}.scale": np.ones(size, np.float32) if scale is None else scale}
    if bias is not None:
        values[f"{name}.bias"] = bias
    kind = "LayerNormalization" if centered else "SimplifiedLayerNormalization"
    attributes = {"axis": -1, "epsilon": epsilon}
    made = Node(last.name, kind, (x, *values), last.outputs, attributes)
    return replace(
        graph,
        nodes=tuple(made if n is last else n for n in graph.nodes),
        constants={**graph.constants, **values},
        shapes={**graph.shapes, **{key: value.shape for key, value in values.items()}},
    )


def _with_next(
    graph: Graph, node: Node, kind: str, size: int
) -> tuple[Node, NDArray[np.float32] | None]:
    """The node that alone reads another and combines it with a constant of the last axis, and that;
    the other itself where there is none.
    """
    for reader in graph.consumers(node.outputs[0]):
        for x, name in pairs(reader, kind):
            value = graph.constants.get(name)
            if x != node.outputs[0] or value is None or not graph.is_read_once(x, reader):
                continue
            fits = value.size == size and value.shape[-1:] == (size,)
            if fits and len(value.shape) <= len(graph.shapes.get(x, ())):
                return reader, np.ascontiguousarray(value, np.float32).reshape(size)
    return node, None
