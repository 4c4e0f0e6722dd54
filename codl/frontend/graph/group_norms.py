"""Group norms that models spell out as an instance norm between reshapes become one node each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from codl.frontend.graph.graph import Graph
from codl.frontend.graph.passes import RESHAPES
from codl.frontend.graph.patterns import producer, without_unread
from codl.ir.onnx_node import Node


def fuse_group_norms(graph: Graph) -> Graph:
    """Replace the last node of every such pattern; what only it read goes."""
    for node in graph.nodes:
        graph = _fused(graph, node) or graph
    return without_unread(graph)


def _fused(graph: Graph, node: Node) -> Graph | None:
    """(groups normalized, and reshaped back) * scale + bias, both for each channel."""
    shifted = _by_channel(graph, node, "Add")
    scaled = _by_channel(graph, producer(graph, shifted[0], "Mul"), "Mul") if shifted else None
    back = _reshape(graph, scaled[0]) if scaled else None
    norm = producer(graph, back.inputs[0], "InstanceNormalization") if back else None
    if shifted is None or scaled is None or norm is None:
        return None
    plain = [graph.constants.get(name) for name in norm.inputs[1:]]
    even = [
        value is not None and (value == i).all() for value, i in zip(plain, (1, 0), strict=True)
    ]
    into = _reshape(graph, norm.inputs[0])
    if not all(even) or into is None:
        return None
    x, groups = into.inputs[0], graph.shapes.get(into.outputs[0], ())
    if graph.shapes.get(x, ()) != graph.shapes.get(node.outputs[0]) or len(groups) != 3:
        return None
    if groups[0] != graph.shapes[x][0]:
        return None
    names = (f"{node.outputs[0]}.scale", f"{node.outputs[0]}.bias")
    values = dict(zip(names, (scaled[1], shifted[1]), strict=True))
    attributes = {"num_groups": groups[1], "epsilon": norm.attributes.get("epsilon", 1e-5)}
    made = Node(node.name, "GroupNormalization", (x, *names), node.outputs, attributes)
    return replace(
        graph,
        nodes=tuple(made if n.name == node.name else n for n in graph.nodes),
        constants={**graph.constants, **values},
        shapes={**graph.shapes, **{name: value.shape for name, value in values.items()}},
    )


def _by_channel(
    graph: Graph, node: Node | None, kind: str
) -> tuple[str, NDArray[np.float32]] | None:
    """A tensor, and the constant for each of its channels that it is combined with."""
    if node is None or node.type != kind:
        return None
    for x, name in (node.inputs, node.inputs[::-1]):
        sizes, value = graph.shapes.get(x, ()), graph.constants.get(name)
        if value is None or len(sizes) < 3:
            continue
        own = (1,) * (len(sizes) - value.ndim) + value.shape
        if own == (1, sizes[1], *[1] * (len(sizes) - 2)):
            return x, np.ascontiguousarray(value, np.float32).reshape(-1)
    return None


def _reshape(graph: Graph, name: str) -> Node | None:
    """The reshape that makes a tensor, if one does."""
    made = (producer(graph, name, kind) for kind in RESHAPES)
    return next((node for node in made if node is not None), None)
