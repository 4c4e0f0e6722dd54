"""Activations and norms that models spell out as several nodes become one each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray

from codl.frontend.graph.graph import Graph
from codl.frontend.graph.passes import RESHAPES
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


def fuse_group_norms(graph: Graph) -> Graph:
    """Replace the last node of every such pattern; what only it read goes."""
    for node in graph.nodes:
        graph = _group_norm(graph, node) or graph
    return without_unread(graph)


def _group_norm(graph: Graph, node: Node) -> Graph | None:
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
