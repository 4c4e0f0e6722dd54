"""Rotary position embeddings that models spell out become one node each.

x * cos + (its second half negated in front of its first) * sin, where cos and sin repeat themselves
in their second half: in a constant, or because they are computed from a tensor joined to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.frontend.graph.graph import Graph
from codl.frontend.graph.passes import RESHAPES
from codl.frontend.graph.patterns import pairs, producer, scalar, without_unread
from codl.ir.onnx_node import Node

#: Functions of every element, through which halves that are alike stay so.
FUNCTIONS = ("Cos", "Sin")


def fuse_rotaries(graph: Graph) -> Graph:
    """Replace the last node of every such pattern; what only it read goes."""
    for name in [node.name for node in graph.nodes if node.type == "Add"]:
        node = next(node for node in graph.nodes if node.name == name)
        graph = _fused(graph, node) or graph
    return without_unread(graph)


def _fused(graph: Graph, node: Node) -> Graph | None:
    for left, right in pairs(node, "Add"):
        for x, cos in pairs(producer(graph, left, "Mul"), "Mul"):
            for exchanged, sin in pairs(producer(graph, right, "Mul"), "Mul"):
                axis = _axis_of_tokens(graph, x, cos, sin)
                if axis and _is_exchanged(graph, exchanged, x):
                    return _with_node(graph, node, (x, cos, sin), axis)
    return None


def _axis_of_tokens(graph: Graph, x: str, cos: str, sin: str) -> int:
    """Which axis of x the angles depend on; 0 where they are not those of tokens."""
    sizes, own = graph.shapes.get(x, ()), graph.shapes.get(cos, ())
    if len(sizes) != 4 or not 2 <= len(own) <= 4 or graph.shapes.get(sin) != own or sizes[3] % 2:
        return 0
    own = (1,) * (4 - len(own)) + own
    if own[0] not in (1, sizes[0]) or own[3] != sizes[3]:
        return 0
    if not (_repeats(graph, cos) and _repeats(graph, sin)):
        return 0
    return 2 if own[1:3] == (1, sizes[2]) else 1 if own[1:3] == (sizes[1], 1) else 0


def _repeats(graph: Graph, name: str, axis: int = -1) -> bool:
    """Whether a tensor has the same twice along an axis, counted from the end."""
    value, maker = graph.constants.get(name), graph.makers.get(name)
    if value is not None:
        first, second = np.split(value, 2, axis=axis)
        return bool(np.array_equal(first, second))
    if maker is None or not maker.inputs or name not in graph.shapes:
        return False
    rank, source = len(graph.shapes[name]), maker.inputs[0]
    if maker.type == "Concat" and (int(maker.attributes["axis"]) - axis) % rank == 0:
        return len(maker.inputs) == 2 and source == maker.inputs[1]
    if maker.type == "Transpose":
        order = maker.attributes.get("perm", range(rank)[::-1])
        return _repeats(graph, source, int(order[axis]) - rank)
    if maker.type in RESHAPES:
        same = graph.shapes.get(source, ())[-1:] == graph.shapes[name][-1:]
        return same and axis == -1 and _repeats(graph, source)
    if maker.type == "Mul":
        scaled = [x for x, factor in pairs(maker, "Mul") if scalar(graph, factor) is not None]
        return bool(scaled) and _repeats(graph, scaled[0], axis)
    return maker.type in FUNCTIONS and _repeats(graph, source, axis)


def _is_exchanged(graph: Graph, name: str, x: str) -> bool:
    """Whether a tensor is the second half of x, negated, in front of the first."""
    joined, half = producer(graph, name, "Concat"), graph.shapes[x][3] // 2
    if joined is None or len(joined.inputs) != 2 or int(joined.attributes["axis"]) % 4 != 3:
        return False
    negated = producer(graph, joined.inputs[0], "Neg")
    if negated is None:
        return False
    second, first = (_part(graph, part, x) for part in (negated.inputs[0], joined.inputs[1]))
    return first == (0, half) and second == (half, 2 * half)


def _part(graph: Graph, name: str, x: str) -> tuple[int, int] | None:
    """From where to where along its last axis a tensor is a part of x."""
    size = graph.shapes[x][3]
    node = next((n for n in graph.nodes if name in n.outputs), None)
    if node is None or node.inputs[:1] != (x,):
        return None
    if node.type == "Split" and int(node.attributes.get("axis", 0)) % 4 == 3:
        widths = [graph.shapes[output][3] for output in node.outputs]
        first = sum(widths[: node.outputs.index(name)])
        return first, first + graph.shapes[name][3]
    if node.type != "Slice" or not all(n in graph.constants for n in node.inputs[1:]):
        return None
    given = [graph.constants[n].reshape(-1).tolist() for n in node.inputs[1:]]
    start, stop, axis, step = [*given, *([[3], [1]][len(given) - 2 :])][:4]
    if len(axis) != 1 or axis[0] % 4 != 3 or step != [1]:
        return None
    place = range(size)[slice(start[0], stop[0])]
    return place.start, place.stop


def _with_node(graph: Graph, node: Node, given: tuple[str, str, str], axis: int) -> Graph:
    """The embedding in the place of a node; the tables are halved, once for all that read them."""
    x, *tables = given
    for name in tables:
        if f"{name}.half" not in graph.shapes:
            graph = _halved(graph, node, name, axis)
    names = (x, *(f"{name}.half" for name in tables))
    made = Node(node.name, "RotaryEmbedding", names, node.outputs, {"axis": axis})
    return replace(graph, nodes=tuple(made if n is node else n for n in graph.nodes))


def _halved(graph: Graph, node: Node, name: str, axis: int) -> Graph:
    """With the first half of a table, as (images or 1, tokens, pairs), in front of a node."""
    half, full = f"{name}.half", graph.shapes[name]
    own = (1,) * (4 - len(full)) + full
    shape, cut = (own[0], own[axis], own[3] // 2), (*full[:-1], own[3] // 2)
    if name in graph.constants:
        value = np.ascontiguousarray(graph.constants[name][..., : shape[2]], np.float32)
        return _with_tensors(graph, {half: value.reshape(shape)}, {half: shape})
    bounds = {"starts": 0, "ends": shape[2], "axes": len(full) - 1}
    constants = {f"{half}.{key}": np.array([value]) for key, value in bounds.items()}
    shapes: dict[str, tuple[int, ...]] = {f"{half}.cut": cut, half: shape}
    shapes |= {key: value.shape for key, value in constants.items()}
    nodes = (
        Node(f"{half}.cut", "Slice", (name, *constants), (f"{half}.cut",)),
        Node(half, "Reshape", (f"{half}.cut",), (half,)),
    )
    at = graph.nodes.index(node)
    graph = replace(graph, nodes=(*graph.nodes[:at], *nodes, *graph.nodes[at:]))
    return _with_tensors(graph, constants, shapes)


def _with_tensors(
    graph: Graph, constants: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]
) -> Graph:
    return replace(
        graph, constants={**graph.constants, **constants}, shapes={**graph.shapes, **shapes}
    )
