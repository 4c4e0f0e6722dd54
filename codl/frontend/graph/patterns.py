"""Activations that models spell out as several nodes become one each: SiLU, GELU, hard swish."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node


def fuse_activations(graph: Graph) -> Graph:
    """Replace the last node of every pattern by the activation; what only it read goes."""
    for found in (_silu, _hard_swish, _gelu):
        for node in graph.nodes:
            activation = found(graph, node)
            if activation is not None:
                nodes = tuple(activation if n is node else n for n in graph.nodes)
                graph = replace(graph, nodes=nodes)
    return without_unread(graph)


def _silu(graph: Graph, node: Node) -> Node | None:
    """x * Sigmoid(x)."""
    for x, other in _pairs(node, "Mul"):
        gate = producer(graph, other, "Sigmoid")
        if gate is not None and gate.inputs[0] == x:
            return replace(node, type="Silu", inputs=(x,), attributes={})
    return None


def _hard_swish(graph: Graph, node: Node) -> Node | None:
    """x * HardSigmoid(x), with the slope of that function."""
    for x, other in _pairs(node, "Mul"):
        gate = producer(graph, other, "HardSigmoid")
        if gate is None or gate.inputs[0] != x:
            continue
        alpha, beta = (gate.attributes.get(k, v) for k, v in (("alpha", 0.2), ("beta", 0.5)))
        if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
            return replace(node, type="HardSwish", inputs=(x,), attributes={})
    return None


def _gelu(graph: Graph, node: Node) -> Node | None:
    """Products, in any order, of x, 0.5 and 1 + Erf(x / sqrt(2))."""
    factors = list(_factors(graph, node))
    tensors = [name for name in factors if name not in graph.constants]
    scales = [_scalar(graph, name) for name in factors if name in graph.constants]
    if len(tensors) != 2 or scales != [0.5]:
        return None
    for x, other in (tensors, tensors[::-1]):
        for name, one in _pairs(producer(graph, other, "Add"), "Add"):
            erf = producer(graph, name, "Erf")
            if erf is not None and _scalar(graph, one) == 1 and _is_scaled(graph, erf.inputs[0], x):
                return replace(node, type="Gelu", inputs=(x,), attributes={})
    return None


def _is_scaled(graph: Graph, name: str, x: str) -> bool:
    """Whether a tensor is x / sqrt(2)."""
    quotient, product = producer(graph, name, "Div"), producer(graph, name, "Mul")
    if quotient is not None:
        divisor = _scalar(graph, quotient.inputs[1])
        return quotient.inputs[0] == x and divisor is not None and abs(divisor - sqrt(2)) < 1e-4
    factors = [_scalar(graph, factor) for own, factor in _pairs(product, "Mul") if own == x]
    return any(factor is not None and abs(factor - sqrt(0.5)) < 1e-4 for factor in factors)


def _factors(graph: Graph, node: Node) -> Iterator[str]:
    """What is multiplied in a node and in those that make its inputs."""
    if node.type != "Mul":
        return
    for name in node.inputs:
        before = producer(graph, name, "Mul")
        if before is not None:
            yield from before.inputs
        else:
            yield name


def _pairs(node: Node | None, kind: str) -> Iterator[tuple[str, str]]:
    """The two inputs of a node of some type, in both orders."""
    if node is not None and node.type == kind and len(node.inputs) == 2:
        yield node.inputs[0], node.inputs[1]
        yield node.inputs[1], node.inputs[0]


def producer(graph: Graph, name: str, kind: str) -> Node | None:
    """The node of some type that makes a tensor, if it does."""
    return next((n for n in graph.nodes if n.outputs[0] == name and n.type == kind), None)


def _scalar(graph: Graph, name: str) -> float | None:
    """The value of a constant of one element."""
    value = graph.constants.get(name)
    return float(value.item()) if value is not None and value.size == 1 else None


def without_unread(graph: Graph) -> Graph:
    """Without nodes whose outputs are not read."""
    kept: list[Node] = []
    wanted = {*graph.outputs, *graph.aliases.values()}
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.inputs)
    return replace(graph, nodes=tuple(reversed(kept)))
