"""Nodes that stand for a few simpler ones, which the passes and converters behind know.

What ONNX Runtime's own tools fuse, an addition and what follows it, is taken apart again: additions
then become part of a product before them, or of a chain. Such nodes are written out when a model is
read, so that each is also an ONNX node which ONNX Runtime could run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnx import helper

from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node, type_of

PRODUCTS = ("Gemm", "MatMul")
MICROSOFT = "com.microsoft"


def expand(graph: Graph) -> Graph:
    """Write such nodes out; what they make in between has the shape of their first output."""
    nodes: list[Node] = []
    shapes, types = dict(graph.shapes), dict(graph.types)
    for node in graph.nodes:
        write = EXPANSIONS.get(node.type)
        made = write(graph, node) if write and node.outputs[0] in graph.shapes else None
        for each in made or ():
            shapes.setdefault(each.outputs[0], graph.shapes[node.outputs[0]])
            if node.outputs[0] in graph.types:
                types.setdefault(each.outputs[0], graph.types[node.outputs[0]])
        nodes += made or [node]
    return replace(graph, nodes=tuple(nodes), shapes=shapes, types=types)


def _bias_gelu(graph: Graph, node: Node) -> list[Node]:
    sum_ = f"{node.outputs[0]}.sum"
    return [
        _made(f"{node.name}.sum", "Add", node.inputs, [sum_]),
        _made(node.name, "Gelu", [sum_], node.outputs, domain=MICROSOFT),
    ]


def _fast_gelu(graph: Graph, node: Node) -> list[Node] | None:
    if len(node.inputs) < 2 or not node.inputs[1]:
        return None
    sum_ = f"{node.outputs[0]}.sum"
    return [
        _made(f"{node.name}.sum", "Add", node.inputs, [sum_]),
        _made(node.name, "FastGelu", [sum_], node.outputs, domain=MICROSOFT),
    ]


def _skip_layer_norm(graph: Graph, node: Node) -> list[Node]:
    """Inputs: x, skip, scale, shift, bias; outputs: the norm, its mean and spread, the sum."""
    x, skip, scale, shift, bias = (*node.inputs, "", "", "")[:5]
    y, mean, spread, sum_ = (*node.outputs, "", "", "")[:4]
    nodes, sum_ = _sum(graph, node, (x, skip, bias), sum_ or f"{y}.sum")
    affine = [scale, shift] if shift else [scale]
    outputs = [y, mean, spread] if mean or spread else [y]
    epsilon = node.attributes.get("epsilon", 1e-5)
    norm = _made(
        node.name, "LayerNormalization", [sum_, *affine], outputs, axis=-1, epsilon=epsilon
    )
    return [*nodes, norm]


def _skip_rms_norm(graph: Graph, node: Node) -> list[Node] | None:
    """The same without a mean and a shift."""
    x, skip, scale, bias = (*node.inputs, "")[:4]
    y, mean, spread, sum_ = (*node.outputs, "", "", "")[:4]
    if mean or spread:
        return None
    nodes, sum_ = _sum(graph, node, (x, skip, bias), sum_ or f"{y}.sum")
    epsilon = node.attributes.get("epsilon", 1e-5)
    kind = "SimplifiedLayerNormalization"
    return [*nodes, _made(node.name, kind, [sum_, scale], [y], axis=-1, epsilon=epsilon)]


def _sum(
    graph: Graph, node: Node, given: tuple[str, str, str], output: str
) -> tuple[list[Node], str]:
    """Nodes that add x, skip and, if there is one, a bias: to what a product has made."""
    x, skip, bias = given
    if not bias:
        return [_made(f"{node.name}.sum", "Add", [x, skip], [output])], output
    makers = {name: maker.type for maker in graph.nodes for name in maker.outputs}
    x, skip = (skip, x) if makers.get(skip) in PRODUCTS else (x, skip)
    biased = f"{output}.biased"
    return [
        _made(f"{node.name}.biased", "Add", [x, bias], [biased]),
        _made(f"{node.name}.sum", "Add", [biased, skip], [output]),
    ], output


def _made(
    name: str,
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    domain: str = "",
    **attributes: Any,
) -> Node:
    proto = helper.make_node(kind, inputs, outputs, name=name, domain=domain, **attributes)
    return Node(name, type_of(proto), tuple(inputs), tuple(outputs), attributes, proto)


Write = Callable[[Graph, Node], "list[Node] | None"]
#: What writes a node of a type out, or leaves it as it is (None).
EXPANSIONS: Mapping[str, Write] = {
    f"{MICROSOFT}.BiasGelu": _bias_gelu,
    f"{MICROSOFT}.FastGelu": _fast_gelu,
    f"{MICROSOFT}.SkipLayerNormalization": _skip_layer_norm,
    f"{MICROSOFT}.SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
