"""Products with matrices that are repeated for several heads become products with each one once.

Where queries of some heads share keys and values, models repeat those for every head. The rows of
all heads that share a matrix are rows of one product with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from codl.frontend.graph.graph import Graph
from codl.frontend.graph.passes import RESHAPES
from codl.frontend.graph.patterns import producer, without_unread
from codl.ir.onnx_node import Node


class Repeated(NamedTuple):
    """A tensor (images, groups, rows, columns), and whether columns are then read as rows."""

    source: str
    sizes: tuple[int, ...]
    turned: bool = False


def share_heads(graph: Graph) -> Graph:
    """Rewrite every such product; copies that nothing else reads go."""
    for node in [node for node in graph.nodes if node.type == "MatMul" and len(node.inputs) == 2]:
        found = repeated(graph, node.inputs[1])
        left = graph.shapes.get(node.inputs[0], ())
        if found is not None and len(left) == 4 and node.outputs[0] in graph.shapes:
            graph = _shared(graph, node, found)
    return without_unread(graph)


def repeated(graph: Graph, name: str) -> Repeated | None:
    """What a tensor repeats: (n, groups, 1, ...) expanded to (n, groups, heads / groups, ...)."""
    transpose = producer(graph, name, "Transpose")
    if transpose is not None and tuple(transpose.attributes.get("perm", ())) == (0, 1, 3, 2):
        found = repeated(graph, transpose.inputs[0])
        return found._replace(turned=not found.turned) if found is not None else None
    joined = graph.makers.get(name)
    wide = producer(graph, joined.inputs[0], "Expand") if joined and joined.inputs else None
    if joined is None or joined.type not in RESHAPES or wide is None:
        return None
    names = (wide.inputs[0], wide.outputs[0], name)
    narrow, full, last = (_sizes(graph, each) for each in names)
    if len(narrow) != 5 or narrow[2] != 1:
        return None
    n, groups, _, rows, columns = narrow
    times = full[2]
    fits = full == (n, groups, times, rows, columns) and last == (n, groups * times, rows, columns)
    apart, sizes, source = graph.makers.get(names[0]), (n, groups, rows, columns), names[0]
    if apart is not None and apart.type in RESHAPES and _sizes(graph, apart.inputs[0]) == sizes:
        source = apart.inputs[0]
    return Repeated(source, sizes) if fits else None


def _sizes(graph: Graph, name: str) -> tuple[int, ...]:
    return tuple(graph.shapes.get(name, ()))


def _shared(graph: Graph, node: Node, found: Repeated) -> Graph:
    """Reshape the left side, multiply, and reshape back."""
    output = node.outputs[0]
    n, heads, rows, inner = graph.shapes[node.inputs[0]]
    groups, columns = found.sizes[1], graph.shapes[output][3]
    together = heads // groups * rows
    names = {key: f"{output}.{key}" for key in ("rows", "once", "turned", "together")}
    nodes = [Node(f"{node.name}.rows", "Reshape", node.inputs[:1], (names["rows"],))]
    shapes: dict[str, tuple[int, ...]] = {names["rows"]: (n, groups, together, inner)}
    right = found.source
    if _sizes(graph, right) != found.sizes:
        nodes.append(Node(f"{node.name}.once", "Reshape", (right,), (names["once"],)))
        right = names["once"]
        shapes[right] = found.sizes
    if found.turned:
        perm = {"perm": (0, 1, 3, 2)}
        nodes.append(Node(f"{node.name}.turned", "Transpose", (right,), (names["turned"],), perm))
        right = names["turned"]
        shapes[right] = (n, groups, inner, columns)
    product = names["together"]
    nodes.append(Node(node.name, "MatMul", (names["rows"], right), (product,), node.attributes))
    shapes[product] = (n, groups, together, columns)
    nodes.append(Node(f"{node.name}.apart", "Reshape", (product,), (output,)))
    kept = [each for own in graph.nodes for each in (nodes if own is node else (own,))]
    return replace(graph, nodes=tuple(kept), shapes={**graph.shapes, **shapes})
