"""Patterns of nodes, and fusion of spelled-out activations, norms and attention to one node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import pi, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.frontend.graph.graph import Graph, Rewrite
from codl.frontend.graph.passes import RESHAPES
from codl.ir.onnx_node import Node
from codl.ir.ops.matmul import Attention
from codl.ir.ops.nd import Sizes

#: Bindings of a pattern's names to tensors, and to numbers.
Bound: TypeAlias = dict[str, Any]
Where: TypeAlias = Callable[[Graph, Node], bool]
COMMUTATIVE = ("Add", "Mul")
#: Relative tolerance of constants in patterns, which exporters round.
NEAR = 2e-4


@dataclass(frozen=True)
class Pattern:
    """A node of one of `kinds`, with patterns of its first inputs, and a condition `where`.

    `name` binds its tensor. With `once`, the tensor has no other reader.
    """

    kinds: tuple[str, ...]
    inputs: tuple[Part, ...]
    where: Where | None = None
    name: str = ""
    once: bool = False


@dataclass(frozen=True)
class Number:
    """A constant of one element, near `value` or any, bound to `name`."""

    value: float | None = None
    name: str = ""


#: A pattern, alternatives, a bound tensor (always the same one), or an exact number.
Part: TypeAlias = "Pattern | tuple[Part, ...] | str | Number | float"


def op(kinds: str, *inputs: Part, where: Where | None = None, name: str = "",
       once: bool = False) -> Pattern:  # fmt: skip
    """The pattern of a node whose type is one of `kinds`, separated by bars."""
    return Pattern(tuple(kinds.split("|")), inputs, where, name, once)


def product(a: Part, b: Part, c: Part) -> Part:
    """A product of three factors in any order."""
    orders = ((a, b, c), (a, c, b), (b, c, a))
    return tuple(op("Mul", op("Mul", first, second), third) for first, second, third in orders)


def matches(graph: Graph, node: Node, pattern: Part) -> Iterator[Bound]:
    """Bindings of all ways in which `node` ends a pattern."""
    return _matched(graph, node.outputs[0], pattern, {}, None)


def scalar(graph: Graph, name: str) -> float | None:
    """The value of a constant of one element."""
    value = graph.constants.get(name)
    return float(value.item()) if value is not None and value.size == 1 else None


def _matched(
    graph: Graph, tensor: str, part: Part, bound: Bound, reader: Node | None
) -> Iterator[Bound]:
    """Extensions of `bound` with which a tensor matches a part of a pattern."""
    if isinstance(part, tuple):
        for other in part:
            yield from _matched(graph, tensor, other, bound, reader)
    elif isinstance(part, str):
        if bound.get(part, tensor) == tensor:
            yield {**bound, part: tensor}
    elif isinstance(part, Pattern):
        node = graph.makers.get(tensor)
        if (
            node is None
            or node.type not in part.kinds
            or (part.where and not part.where(graph, node))
        ):
            return
        if part.once and (reader is None or not graph.is_read_once(tensor, reader)):
            return
        yield from _inputs_matched(graph, node, part, {**bound, part.name: tensor})
    else:
        number, value = part if isinstance(part, Number) else Number(part), scalar(graph, tensor)
        wanted = number.value
        slack = NEAR * abs(wanted) if wanted and isinstance(part, Number) else 0
        if value is not None and (wanted is None or abs(value - wanted) <= slack):
            yield {**bound, number.name: value}


def _inputs_matched(graph: Graph, node: Node, pattern: Pattern, bound: Bound) -> Iterator[Bound]:
    orders = [node.inputs]
    if node.type in COMMUTATIVE:
        orders = [node.inputs, node.inputs[::-1]] if len(node.inputs) == 2 else []
    for inputs in orders:
        if len(inputs) < len(pattern.inputs):
            continue
        ways = [bound]
        for tensor, part in zip(inputs, pattern.inputs, strict=False):
            ways = [new for way in ways for new in _matched(graph, tensor, part, way, node)]
        yield from ways


def _is_hard_swish(graph: Graph, node: Node) -> bool:
    slope, shift = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
    return bool(abs(slope - 1 / 6) < 1e-6 and shift == 0.5)


CUBE = (op("Pow", "x", 3), op("Mul", op("Mul", "x", "x"), "x"))
ERF = op("Erf", (op("Mul", "x", Number(sqrt(0.5))), op("Div", "x", Number(sqrt(2)))))
BENT = op("Add", "x", op("Mul", CUBE, Number(0.044715)))
TANH = op("Tanh", op("Mul", BENT, Number(sqrt(2 / pi))))
#: Patterns of an activation of x, its type, and its attributes.
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


def activation(graph: Graph, node: Node) -> Rewrite | None:
    """Fusion of SiLU, QuickGELU, hard swish and both forms of GELU, which end in `node`."""
    for pattern, kind, attributes in ACTIVATIONS:
        for bound in matches(graph, node, pattern):
            parameters = attributes(bound)
            if parameters.get("alpha", 1):
                made = replace(node, type=kind, inputs=(bound["x"],), attributes=parameters)
                return Rewrite(node, [made])
    return None


def _is_along_last(graph: Graph, node: Node) -> bool:
    """Whether a mean is over the last axis, with `keepdims`."""
    second = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    axes = node.attributes.get("axes", ()) if second is None else second.reshape(-1).tolist()
    rank = len(graph.shapes.get(node.inputs[0], ()))
    is_last = bool(rank) and [int(axis) % rank for axis in axes] == [rank - 1]
    return is_last and bool(node.attributes.get("keepdims", 1))


def _mean(part: Part) -> Part:
    return op("ReduceMean", part, where=_is_along_last)


SQUARE = (op("Pow", "x", 2), op("Mul", "x", "x"))
ROOT = op("Sqrt", op("Add", _mean(SQUARE), Number(name="epsilon")))
#: An RMS norm: x over its root mean square. If x is centered, a layer norm.
NORM = (op("Div", "x", ROOT), op("Mul", "x", (op("Reciprocal", ROOT), op("Div", 1, ROOT))))
CENTERED = op("Sub", "whole", _mean("whole"))


def norm(graph: Graph, node: Node) -> Rewrite | None:
    """Fusion of a norm over the last axis, with scale and bias for each of its elements."""
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
    """A node's only reader and its constant along the last axis; else the node and None."""
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


def group_norm(graph: Graph, node: Node) -> Rewrite | None:
    """Fusion of a group norm: an instance norm between reshapes, scale and bias per channel."""
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
    """The constant per channel of a tensor of these sizes; None for others."""
    value = graph.constants.get(name)
    if value is None or len(sizes) < 3 or value.ndim > len(sizes):
        return None
    shape = (1,) * (len(sizes) - value.ndim) + value.shape
    if shape != (1, sizes[1], *[1] * (len(sizes) - 2)):
        return None
    return np.ascontiguousarray(value, np.float32).reshape(-1)


#: Attribute of nodes made here, unknown to ONNX: queries that see no key give NaN, not 0.
SPELLED_OUT = "spelled_out"
#: Permutation that transposes matrices of four axes.
TURN = (0, 1, 3, 2)
#: Most features of a key and a value together, so that some of each fit in local memory.
MOST_FEATURES = 320


def attention_op(
    *shapes: Sizes, scale: float, causal: bool = False, zeros: bool = False
) -> Attention | None:
    """The op for q, k, v and a bias of these shapes; None if it does not support them."""
    op = Attention(shapes=shapes, scale=float(np.float32(scale)), causal=causal, zeros=zeros)
    is_small = op.problem is None and shapes[0][3] + shapes[2][3] <= MOST_FEATURES
    return op if is_small else None


def _is_plain(graph: Graph, node: Node) -> bool:
    """Whether a product has no bias and no factor 0, which attention reads as its default."""
    return len(node.inputs) == 2 and bool(node.attributes.get("alpha", 1.0))


def _is_of_keys(graph: Graph, softmax: Node) -> bool:
    usual = -1 if graph.opset >= 13 else 1
    rank = len(graph.shapes.get(softmax.outputs[0], ()))
    return rank == 4 and int(softmax.attributes.get("axis", usual)) % 4 == 3


SCORES = op("MatMul", "q", "turned", where=_is_plain, name="scores", once=True)
MASKED = op("Add", SCORES, "mask", once=True)
ODDS = op("Softmax", (SCORES, MASKED), where=_is_of_keys, once=True)
ATTENTION = op("MatMul", ODDS, "v", where=_is_plain)


def attention(graph: Graph, last: Node) -> Rewrite | None:
    """Attention in place of two products around a softmax, with or without a mask.

    `last` is the second product; keys are those before their transpose.
    """
    if last.attributes.get("alpha", 1.0) != 1:
        return None
    for bound in matches(graph, last, ATTENTION):
        names = [bound[name] for name in ("q", "turned", "v", "mask") if name in bound]
        q, turned, v, *mask = (tuple(graph.shapes.get(name, ())) for name in names)
        transpose = graph.makers.get(bound["turned"])
        if any(len(sizes) != 4 for sizes in (q, turned, v)) or bound["q"] in graph.constants:
            continue
        if transpose is None or transpose.type != "Transpose":
            continue
        n, heads, features, tokens = turned
        scale = float(graph.makers[bound["scores"]].attributes.get("alpha", 1.0))
        wide = [(1,) * (4 - len(sizes)) + sizes for sizes in mask]
        if attention_op(q, (n, heads, tokens, features), v, *wide, scale=scale) is None:
            continue
        (keys,), perm = transpose.inputs, tuple(transpose.attributes.get("perm", ()))
        nodes: list[Node] = []
        shapes: dict[str, Sizes] = {}
        if perm == (0, 2, 3, 1):
            node, tensor = (
                make(last.outputs[0], "keys") for make in (graph.names.node, graph.names.tensor)
            )
            nodes = [Node(node, "Transpose", (keys,), (tensor,), {"perm": (0, 2, 1, 3)})]
            keys, shapes = tensor, {tensor: (n, heads, tokens, features)}
        elif perm != TURN or keys in graph.constants:
            continue
        inputs = (names[0], keys, *names[2:])
        attributes = {"scale": scale, SPELLED_OUT: 1}
        made = Node(last.name, "Attention", inputs, last.outputs, attributes)
        return Rewrite(last, [*nodes, made], shapes=shapes)
    return None
