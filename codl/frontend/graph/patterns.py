"""Activations that models spell out as several nodes become one each: SiLU, GELU, hard swish."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import pi, sqrt

from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node


def fuse_activations(graph: Graph) -> Graph:
    """Replace the last node of every pattern by the activation; what only it read goes."""
    for found in (_silu, _quick_gelu, _hard_swish, _gelu, _tanh_gelu):
        for node in graph.nodes:
            activation = found(graph, node)
            if activation is not None:
                nodes = tuple(activation if n is node else n for n in graph.nodes)
                graph = replace(graph, nodes=nodes)
    return without_unread(graph)


def _silu(graph: Graph, node: Node) -> Node | None:
    """x * Sigmoid(x)."""
    for x, other in pairs(node, "Mul"):
        gate = producer(graph, other, "Sigmoid")
        if gate is not None and gate.inputs[0] == x:
            return replace(node, type="Silu", inputs=(x,), attributes={})
    return None


def _quick_gelu(graph: Graph, node: Node) -> Node | None:
    """x * Sigmoid(alpha * x)."""
    for x, other in pairs(node, "Mul"):
        gate = producer(graph, other, "Sigmoid")
        alpha = _factor_of(graph, gate.inputs[0], x) if gate is not None else None
        if alpha:
            return replace(node, type="Swish", inputs=(x,), attributes={"alpha": alpha})
    return None


def _hard_swish(graph: Graph, node: Node) -> Node | None:
    """x * HardSigmoid(x), with the slope of that function."""
    for x, other in pairs(node, "Mul"):
        gate = producer(graph, other, "HardSigmoid")
        if gate is None or gate.inputs[0] != x:
            continue
        alpha, beta = (gate.attributes.get(k, v) for k, v in (("alpha", 0.2), ("beta", 0.5)))
        if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
            return replace(node, type="HardSwish", inputs=(x,), attributes={})
    return None


def _tanh_gelu(graph: Graph, node: Node) -> Node | None:
    """Products, in any order, of x, 0.5 and 1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))."""
    for x, other in _halved(graph, node):
        for name, one in pairs(producer(graph, other, "Add"), "Add"):
            tanh = producer(graph, name, "Tanh")
            if tanh is None or scalar(graph, one) != 1:
                continue
            if _is_bent(graph, producer(graph, tanh.inputs[0], "Mul"), x):
                attributes = {"approximate": "tanh"}
                return replace(node, type="Gelu", inputs=(x,), attributes=attributes)
    return None


def _is_bent(graph: Graph, product: Node | None, x: str) -> bool:
    """Whether a product is sqrt(2 / pi) * (x + 0.044715 * x^3)."""
    for sum_, name in pairs(product, "Mul"):
        factor = scalar(graph, name)
        if factor is None or abs(factor - sqrt(2 / pi)) > 1e-4:
            continue
        for own, term in pairs(producer(graph, sum_, "Add"), "Add"):
            for cube, small in pairs(producer(graph, term, "Mul"), "Mul"):
                least = scalar(graph, small)
                near = least is not None and abs(least - 0.044715) < 1e-5
                if own == x and near and _is_cube(graph, cube, x):
                    return True
    return False


def _is_cube(graph: Graph, name: str, x: str) -> bool:
    power = producer(graph, name, "Pow")
    if power is not None:
        return power.inputs[0] == x and scalar(graph, power.inputs[1]) == 3
    for square, own in pairs(producer(graph, name, "Mul"), "Mul"):
        product = producer(graph, square, "Mul")
        if own == x and product is not None and set(product.inputs) == {x}:
            return True
    return False


def _halved(graph: Graph, node: Node) -> Iterator[tuple[str, str]]:
    """The two tensors, in both orders, that a node multiplies with each other and with 0.5."""
    factors = list(_factors(graph, node))
    tensors = [name for name in factors if name not in graph.constants]
    scales = [scalar(graph, name) for name in factors if name in graph.constants]
    if len(tensors) == 2 and scales == [0.5]:
        yield tensors[0], tensors[1]
        yield tensors[1], tensors[0]


def _gelu(graph: Graph, node: Node) -> Node | None:
    """Products, in any order, of x, 0.5 and 1 + Erf(x / sqrt(2))."""
    for x, other in _halved(graph, node):
        for name, one in pairs(producer(graph, other, "Add"), "Add"):
            erf = producer(graph, name, "Erf")
            if erf is not None and scalar(graph, one) == 1 and _is_scaled(graph, erf.inputs[0], x):
                return replace(node, type="Gelu", inputs=(x,), attributes={})
    return None


def _is_scaled(graph: Graph, name: str, x: str) -> bool:
    """Whether a tensor is x / sqrt(2)."""
    factor = _factor_of(graph, name, x)
    return factor is not None and abs(factor - sqrt(0.5)) < 1e-4


def _factor_of(graph: Graph, name: str, x: str) -> float | None:
    """What x is multiplied by, where a tensor is a multiple of it."""
    quotient = producer(graph, name, "Div")
    if quotient is not None:
        divisor = scalar(graph, quotient.inputs[1])
        return 1 / divisor if quotient.inputs[0] == x and divisor else None
    factors = [
        scalar(graph, f) for own, f in pairs(producer(graph, name, "Mul"), "Mul") if own == x
    ]
    return next((factor for factor in factors if factor is not None), None)


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


def pairs(node: Node | None, kind: str) -> Iterator[tuple[str, str]]:
    """The two inputs of a node of some type, in both orders."""
    if node is not None and node.type == kind and len(node.inputs) == 2:
        yield node.inputs[0], node.inputs[1]
        yield node.inputs[1], node.inputs[0]


def producer(graph: Graph, name: str, kind: str) -> Node | None:
    """The node of some type that makes a tensor, if it does."""
    node = graph.makers.get(name)
    return node if node is not None and node.type == kind else None


def scalar(graph: Graph, name: str) -> float | None:
    """The value of a constant of one element."""
    value = graph.constants.get(name)
    return float(value.item()) if value is not None and value.size == 1 else None


def without_unread(graph: Graph) -> Graph:
    """Without nodes whose outputs are not read; the same graph where all are."""
    kept: list[Node] = []
    wanted = set(graph.handed_out)
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            kept.append(node)
            wanted.update(node.reads)
    is_whole = len(kept) == len(graph.nodes)
    return graph if is_whole else replace(graph, nodes=tuple(reversed(kept)))
