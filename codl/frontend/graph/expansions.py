"""Nodes that stand for a few simpler ones, which the passes and converters behind know.

What ONNX Runtime's own tools fuse, an addition and what follows it, is taken apart again: additions
then become part of a product before them, or of a chain. Such nodes are written out when a model is
read, so that each is also an ONNX node which ONNX Runtime could run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto, helper

from codl.frontend.graph.graph import Graph, Rewrite
from codl.ir.onnx_node import Node, type_of

Write: TypeAlias = Callable[[Graph, Node], "Rewrite | None"]

PRODUCTS = ("Gemm", "MatMul")
MICROSOFT = "com.microsoft"


def expand(graph: Graph) -> Graph:
    """Write such nodes out; what is made in between are sums, of the type of the first output."""
    rewrites, shapes, types = [], dict(graph.shapes), dict(graph.types)
    for node in graph.nodes:
        write = EXPANSIONS.get(node.type)
        has_shapes = all(name in shapes for name in (*node.inputs, node.outputs[0]) if name)
        made = write(graph, node) if write and has_shapes else None
        if made is None:
            continue
        rewrites.append(made)
        shapes |= {name: value.shape for name, value in made.constants.items()}
        for each in made.nodes:
            output = each.outputs[0]
            if output not in shapes:
                shapes[output] = np.broadcast_shapes(*(shapes[name] for name in each.inputs))
                types[output] = graph.types.get(node.outputs[0], TensorProto.FLOAT)
    return replace(graph.rewritten(*rewrites), shapes=shapes, types=types)


def _falling(graph: Graph, node: Node) -> Rewrite | None:
    """A HardSigmoid that falls: ncnn's compares with its bounds as if it rose."""
    slope = np.float32(node.attributes.get("alpha", 0.2))
    if slope >= 0:
        return None
    start = np.float32(node.attributes.get("beta", 0.5))
    words = ("scaled", "moved", "slope", "start", "low", "high")
    scaled, moved, *names = (graph.names.tensor(node.outputs[0], word) for word in words)
    nodes = (
        Node(graph.names.node(node.name, "mul"), "Mul", (node.inputs[0], names[0]), (scaled,)),
        Node(graph.names.node(node.name, "add"), "Add", (scaled, names[1]), (moved,)),
        Node(node.name, "Clip", (moved, *names[2:]), node.outputs),
    )
    constants = dict(zip(names, (slope, start, np.float32(0), np.float32(1)), strict=True))
    return Rewrite(node, nodes, {name: np.asarray(value) for name, value in constants.items()})


def _gelu(kind: str) -> Write:
    """The activation of this kind, of a sum."""

    def write(graph: Graph, node: Node) -> Rewrite | None:
        if len(node.inputs) < 2 or not node.inputs[1]:
            return None
        sum_ = graph.names.tensor(node.outputs[0], "sum")
        return Rewrite(
            node,
            [
                made_node(graph.names.node(node.name, "sum"), "Add", node.inputs, [sum_]),
                made_node(node.name, kind, [sum_], node.outputs, domain=MICROSOFT),
            ],
        )

    return write


def _attention(graph: Graph, node: Node) -> Rewrite | None:
    """q, k and v with their own part of a constant bias each."""
    inputs = (*node.inputs, "", "", "", "")
    bias = graph.constants.get(inputs[3])
    widths = [graph.shapes.get(name, ())[-1:] for name in inputs[:3]]
    if bias is None or not all(widths) or (sum(w for (w,) in widths),) != bias.shape:
        return None
    if any(len(graph.shapes[name]) != 3 for name in inputs[:3]):
        return None
    parts = np.split(bias, np.cumsum([w for (w,) in widths])[:-1])
    names = [graph.names.tensor(node.outputs[0], letter) for letter in "qkv"]
    biases = [graph.names.tensor(name, "bias") for name in names]
    sums = [
        made_node(graph.names.node(node.name, letter), "Add", [x, bias], [name])
        for letter, x, bias, name in zip("qkv", inputs, biases, names, strict=False)
    ]
    reads = [*names, "", *node.inputs[4:]]
    kept = made_node(
        node.name, "MultiHeadAttention", reads, node.outputs, domain=MICROSOFT, **node.attributes
    )
    constants = dict(zip(biases, parts, strict=True))
    return Rewrite(node, [*sums, kept], constants)


def _skip_layer_norm(graph: Graph, node: Node) -> Rewrite:
    """Inputs: x, skip, scale, shift, bias; outputs: the norm, its mean and spread, the sum."""
    x, skip, scale, shift, bias = (*node.inputs, "", "", "")[:5]
    y, mean, spread, sum_ = (*node.outputs, "", "", "")[:4]
    nodes, sum_ = _sum(graph, node, (x, skip, bias), sum_ or graph.names.tensor(y, "sum"))
    affine = [scale, shift] if shift else [scale]
    outputs = [y, mean, spread] if mean or spread else [y]
    epsilon = node.attributes.get("epsilon", 1e-5)
    norm = made_node(
        node.name, "LayerNormalization", [sum_, *affine], outputs, axis=-1, epsilon=epsilon
    )
    return Rewrite(node, [*nodes, norm])


def _skip_rms_norm(graph: Graph, node: Node) -> Rewrite | None:
    """The same without a mean and a shift."""
    x, skip, scale, bias = (*node.inputs, "")[:4]
    y, mean, spread, sum_ = (*node.outputs, "", "", "")[:4]
    if mean or spread:
        return None
    nodes, sum_ = _sum(graph, node, (x, skip, bias), sum_ or graph.names.tensor(y, "sum"))
    epsilon = node.attributes.get("epsilon", 1e-5)
    kind = "SimplifiedLayerNormalization"
    norm = made_node(node.name, kind, [sum_, scale], [y], axis=-1, epsilon=epsilon)
    return Rewrite(node, [*nodes, norm])


def _sum(
    graph: Graph, node: Node, terms: tuple[str, str, str], output: str
) -> tuple[list[Node], str]:
    """Nodes that add x, skip and, if there is one, a bias: to what a product has made."""
    x, skip, bias = terms
    sum_ = graph.names.node(node.name, "sum")
    if not bias:
        return [made_node(sum_, "Add", [x, skip], [output])], output
    maker = graph.links.makers.get(skip)
    x, skip = (skip, x) if maker is not None and maker.type in PRODUCTS else (x, skip)
    biased = graph.names.tensor(output, "biased")
    return [
        made_node(graph.names.node(node.name, "biased"), "Add", [x, bias], [biased]),
        made_node(sum_, "Add", [biased, skip], [output]),
    ], output


def made_node(
    name: str,
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    domain: str = "",
    **attributes: Any,
) -> Node:
    """A node of a graph that ONNX Runtime could run, too."""
    proto = helper.make_node(kind, inputs, outputs, name=name, domain=domain, **attributes)
    return Node(name, type_of(proto), tuple(inputs), tuple(outputs), attributes, proto)


#: What writes a node of a type out, or leaves it as it is (None).
EXPANSIONS: Mapping[str, Write] = {
    "HardSigmoid": _falling,
    f"{MICROSOFT}.BiasGelu": _gelu("Gelu"),
    f"{MICROSOFT}.FastGelu": _gelu("FastGelu"),
    f"{MICROSOFT}.MultiHeadAttention": _attention,
    f"{MICROSOFT}.SkipLayerNormalization": _skip_layer_norm,
    f"{MICROSOFT}.SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
