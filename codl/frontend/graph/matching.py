"""Patterns of nodes, as trees from their last node backwards, and where a graph has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node

#: What the names of a pattern stand for: tensors, and the values of numbers.
Bound: TypeAlias = dict[str, Any]
Where: TypeAlias = Callable[[Graph, Node], bool]
COMMUTATIVE = ("Add", "Mul")
#: How far a number may be from the one that it stands for, as a part of that: exporters round some.
NEAR = 2e-4


@dataclass(frozen=True)
class Pattern:
    """A node of one of some types, what its first inputs must be, and `where` it counts.

    `name` is what the tensor that it makes is called. With `once` nothing else reads that.
    """

    kinds: tuple[str, ...]
    inputs: tuple[Part, ...]
    where: Where | None = None
    name: str = ""
    once: bool = False


@dataclass(frozen=True)
class Number:
    """A constant of one element: near a value, or any, by a name."""

    value: float | None = None
    name: str = ""


#: A pattern, any of several, a tensor by a name (the same one wherever the name is), or a number
#: that is exact.
Part: TypeAlias = "Pattern | tuple[Part, ...] | str | Number | float"


def op(kinds: str, *inputs: Part, where: Where | None = None, name: str = "",
       once: bool = False) -> Pattern:  # fmt: skip
    """The pattern of a node whose type is one of `kinds`, with bars between them."""
    return Pattern(tuple(kinds.split("|")), inputs, where, name, once)


def product(a: Part, b: Part, c: Part) -> Part:
    """A product of three, in any order."""
    orders = ((a, b, c), (a, c, b), (b, c, a))
    return tuple(op("Mul", op("Mul", first, second), third) for first, second, third in orders)


def matches(graph: Graph, node: Node, pattern: Part) -> Iterator[Bound]:
    """All ways in which a node is the last one of a pattern."""
    return _matched(graph, node.outputs[0], pattern, {}, None)


def scalar(graph: Graph, name: str) -> float | None:
    """The value of a constant of one element."""
    value = graph.constants.get(name)
    return float(value.item()) if value is not None and value.size == 1 else None


def _matched(
    graph: Graph, tensor: str, part: Part, bound: Bound, reader: Node | None
) -> Iterator[Bound]:
    """What the names stand for beside those of `bound`, where a tensor is as a part says."""
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
