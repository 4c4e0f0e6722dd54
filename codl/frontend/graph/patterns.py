"""Activations and norms that models spell out as several nodes become one each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.frontend.graph.graph import Graph, Rewrite, fuse
from codl.frontend.graph.matching import Bound, Number, Part, matches, op, product
from codl.frontend.graph.passes import RESHAPES
from codl.ir.onnx_node import Node


def _is_hard_swish(graph: Graph, node: Node) -> bool:
    slope, shift = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    return bool(abs(slope - 1 / 6) < 1e-6 and shift == 0.5)


CUBE = (op("Pow", "x", 3), op("Mul", op("Mul", "x", "x"), "x"))
ERF = op("Erf", (op("Mul", "x", Number(sqrt(0.5))), op("Div", "x", Number(sqrt(2)))))
BENT = op("Add", "x", op("Mul", CUBE, Number(0.044715)))
TANH = op("Tanh", op("Mul", BENT, Number(sqrt(2 / pi))))
#: Patterns of x, the activation that each is, and its attributes.
ACTIVATIONS: tuple[tuple[Part, str, Callable[[Bound], Mapping[str, Any]]], ...] = (
    (op("Mul", "x", op("Sigmoid", "x")), "Silu", lambda bound: {}),
    (
        op("Mul", "x", op("Sigmoid", op("Mul", "x", Number(name="alpha")))),
        "Swish",
        lambda bound: {"alpha": bound["alpha"]},
    ),
    (
        op("Mul", "x", op("Sigmoid", op("Div", "x", Number(name="divisor")))),
        "Swish",
        lambda bound: {"alpha": 1 / bound["divisor"] if bound["divisor"] else 0.0},
    ),
    (op("Mul", "x", op("HardSigmoid", "x", where=_is_hard_swish)), "HardSwish", lambda bound: {}),
    (product("x", op("Add", ERF, 1), 0.5), "Gelu", lambda bound: {}),
    (product("x", op("Add", TANH, 1), 0.5), "Gelu", lambda bound: {"approximate": "tanh"}),
)


def fuse_activations(graph: Graph) -> Graph:
    """SiLU, QuickGELU, hard swish and both forms of GELU."""
    return fuse(graph, _activation)


def _activation(graph: Graph, node: Node) -> Rewrite | None:
    for pattern, kind, attributes in ACTIVATIONS:
        for bound in matches(graph, node, pattern):
            parameters = attributes(bound)
            if parameters.get("alpha", 1):
                made = replace(node, type=kind, inputs=(bound["x"],), attributes=parameters)
                return Rewrite(node, [made])
    return None


def _is_along_last(graph: Graph, node: Node) -> bool:
    """Whether a mean is along the last axis, which stays."""
    second = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = node.attributes.get("axes", ()) if second is None else second.reshape(-1).tolist()
    rank = len(graph.shapes.get(node.inputs[0], ()))
    is_last = bool(rank) and [int(axis) % rank for axis in axes] == [rank - 1]
    return is_last and bool(node.attributes.get("keepdims", 1))


def _mean(part: Part) -> Part:
    return op("ReduceMean", part, where=_is_along_last)


SQUARE = (op("Pow", "x", 2), op("Mul", "x", "x"))
ROOT = op("Sqrt", op("Add", _mean(SQUARE), Number(name="epsilon")))
#: x over the root of the mean of its squares is an RMS norm; where x is one less its mean, a layer
#: norm.
NORM = (op("Div", "x", ROOT), op("Mul", "x", (op("Reciprocal", ROOT), op("Div", 1, ROOT))))
CENTERED = op("Sub", "whole", _mean("whole"))


def fuse_norms(graph: Graph) -> Graph:
    """Norms along the last axis, with a scale, and then a bias, for each of its elements."""
    return fuse(graph, _norm)


def _norm(graph: Graph, node: Node) -> Rewrite | None:
    bound = next(matches(graph, node, NORM), None)
    if bound is None:
        return None
    x, maker = bound["x"], graph.makers.get(bound["x"])
    centered = next(matches(graph, maker, CENTERED), None) if maker else None
    size = graph.shapes[x][-1]
    last, scale = _with_next(graph, node, "Mul", size)
    bias = None
    if centered:
        x = centered["whole"]
        last, bias = _with_next(graph, last, "Add", size)
    name = last.outputs[0]
    whole = np.ones(size, np.float32) if scale is None else scale
    values = {graph.names.tensor(name, "scale"): whole}
    if bias is not None:
        values[graph.names.tensor(name, "bias")] = bias
    kind = "LayerNormalization" if centered else "SimplifiedLayerNormalization"
    attributes = {"axis": -1, "epsilon": bound["epsilon"]}
    made = Node(last.name, kind, (x, *values), last.outputs, attributes)
    return Rewrite(last, [made], values)


def _with_next(
    graph: Graph, node: Node, kind: str, size: int
) -> tuple[Node, NDArray[np.float32] | None]:
    """The node that alone reads another and combines it with a constant of the last axis, and that;
    the other itself where there is none.
    """
    x = node.outputs[0]
    reader = graph.reader_of(x)
    for bound in matches(graph, reader, op(kind, "x", "constant")) if reader else ():
        value = graph.constants.get(bound["constant"])
        if bound["x"] != x or value is None or reader is None:
            continue
        fits = value.size == size and value.shape[-1:] == (size,)
        if fits and value.ndim <= len(graph.shapes.get(x, ())):
            return reader, np.ascontiguousarray(value, np.float32).reshape(size)
    return node, None


RESHAPE = "|".join(RESHAPES)
GROUPS = op("InstanceNormalization", op(RESHAPE, "x", name="groups"), "ones", "zeros", name="norm")
GROUP_NORM = op("Add", op("Mul", op(RESHAPE, GROUPS), "scale"), "bias")


def fuse_group_norms(graph: Graph) -> Graph:
    """Group norms, as an instance norm between reshapes and a scale and a bias of each channel."""
    return fuse(graph, _group_norm)


def _group_norm(graph: Graph, node: Node) -> Rewrite | None:
    """(groups normalized, and reshaped back) * scale + bias, both for each channel."""
    sizes = graph.shapes.get(node.outputs[0], ())
    for bound in matches(graph, node, GROUP_NORM):
        plain = [graph.constants.get(bound[name]) for name in ("zeros", "ones")]
        even = all(value is not None and (value == i).all() for i, value in enumerate(plain))
        groups, x = graph.shapes.get(bound["groups"], ()), bound["x"]
        values = {
            graph.names.tensor(node.outputs[0], key): value
            for key in ("scale", "bias")
            if (value := _by_channel(graph, bound[key], sizes)) is not None
        }
        if not even or len(values) < 2 or graph.shapes.get(x) != sizes or len(groups) != 3:
            continue
        if groups[0] == sizes[0]:
            epsilon = graph.makers[bound["norm"]].attributes.get("epsilon", 1e-5)
            attributes = {"num_groups": groups[1], "epsilon": epsilon}
            made = Node(node.name, "GroupNormalization", (x, *values), node.outputs, attributes)
            return Rewrite(node, [made], values)
    return None


def _by_channel(graph: Graph, name: str, sizes: tuple[int, ...]) -> NDArray[np.float32] | None:
    """The constant for each channel of a tensor of these sizes, if it is one."""
    value = graph.constants.get(name)
    if value is None or len(sizes) < 3 or value.ndim > len(sizes):
        return None
    shape = (1,) * (len(sizes) - value.ndim) + value.shape
    if shape != (1, sizes[1], *[1] * (len(sizes) - 2)):
        return None
    return np.ascontiguousarray(value, np.float32).reshape(-1)
