"""Attention and rotary position embeddings that models spell out become one node each.

Where queries of some heads share keys and values, models repeat those for every head: attention
reads them once, and in products that are no attention the rows of all heads that share a matrix
are rows of one product with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.frontend.graph.graph import Graph
from codl.frontend.graph.passes import RESHAPES
from codl.frontend.graph.patterns import pairs, producer, scalar, without_unread
from codl.ir.onnx_node import Node
from codl.ir.ops.nd import Sizes


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


class Tensor(NamedTuple):
    """Keys or values, and the node that makes them, where it is not there yet."""

    name: str
    sizes: Sizes
    node: Node | None = None


class Scores(NamedTuple):
    """The product of queries and turned keys, what is added to it, and what both make."""

    product: Node
    tensors: tuple[str, ...]
    mask: str = ""


def fuse_attention(graph: Graph) -> Graph:
    """Replace the last node of every such pattern; what only it read goes."""
    for softmax in [node for node in graph.nodes if node.type == "Softmax"]:
        graph = _fused(graph, softmax) or graph
    return without_unread(graph)


def _fused(graph: Graph, softmax: Node) -> Graph | None:
    odds = softmax.outputs[0]
    last = next((n for n in graph.consumers(odds) if n.type == "MatMul"), None)
    scores = _scores(graph, softmax)
    if last is None or scores is None or last.inputs[:1] != (odds,):
        return None
    rank = len(graph.shapes.get(odds, ()))
    usual = -1 if graph.opset >= 13 else 1
    along = int(softmax.attributes.get("axis", usual)) % 4 == 3
    if rank != 4 or not along or len(last.inputs) != 2 or last.attributes.get("alpha", 1.0) != 1:
        return None
    if not graph.is_read_once(odds, last):
        return None
    return _written(graph, scores, last)


def _scores(graph: Graph, softmax: Node) -> Scores | None:
    """What a softmax reads, where nothing else does."""
    name = softmax.inputs[0]
    product = producer(graph, name, "MatMul")
    if product is not None:
        return Scores(product, (name,)) if graph.is_read_once(name, softmax) else None
    sum_ = producer(graph, name, "Add")
    for scores, mask in pairs(sum_, "Add"):
        product = producer(graph, scores, "MatMul")
        known = graph.shapes.get(mask)
        if sum_ is None or product is None or known is None or len(known) > 4:
            continue
        if graph.is_read_once(scores, sum_) and graph.is_read_once(name, softmax):
            return Scores(product, (scores, name), mask)
    return None


def _written(graph: Graph, scores: Scores, last: Node) -> Graph | None:
    """With the node in the place of the last product, and keys as they were before turning."""
    scale = float(scores.product.attributes.get("alpha", 1.0))
    if len(scores.product.inputs) != 2 or not scale:  # of the node, 0 is the usual one
        return None
    (q, turned), (_, v), output = scores.product.inputs, last.inputs, last.outputs[0]
    if any(len(graph.shapes.get(name, ())) != 4 for name in (q, turned, v, output)):
        return None
    keys, values = _keys(graph, turned, f"{output}.keys"), _values(graph, v, f"{output}.values")
    if (
        keys is None
        or q in graph.constants
        or not _fit(tuple(graph.shapes[q]), keys.sizes, values.sizes)
    ):
        return None
    # A node's mask has to have all keys; a sum may stretch one.
    if scores.mask and graph.shapes[scores.mask][-1:] != (keys.sizes[2],):
        return None
    names = (q, keys.name, values.name, *([scores.mask] if scores.mask else []))
    made = Node(last.name, "Attention", names, last.outputs, {"scale": scale})
    gone = {*scores.tensors, last.inputs[0]}
    if not gone.isdisjoint(graph.handed_out):
        return None
    added = [tensor for tensor in (keys, values) if tensor.node is not None]
    new = [*(tensor.node for tensor in added if tensor.node is not None), made]
    kept = [each for own in graph.nodes for each in (new if own is last else (own,))]
    shapes = {tensor.name: tensor.sizes for tensor in added}
    aliases = {name: held for name, held in graph.aliases.items() if held not in gone}
    return replace(graph, nodes=tuple(kept), shapes={**graph.shapes, **shapes}, aliases=aliases)


def _fit(q: Sizes, k: Sizes, v: Sizes) -> bool:
    """Whether as many heads of q as there are for each of k share it."""
    return k[:3] == v[:3] and q[0] == k[0] and q[3] == k[3] and q[1] % k[1] == 0


def _keys(graph: Graph, turned: str, name: str) -> Tensor | None:
    """(images, heads, keys, features) before they were turned, once for heads that share them."""
    found = repeated(graph, turned)
    if found is not None:
        return _once(graph, found, name) if found.turned else None
    transpose = producer(graph, turned, "Transpose")
    if transpose is None:
        return None
    (source,), perm = transpose.inputs, tuple(transpose.attributes.get("perm", ()))
    n, heads, features, keys = graph.shapes[turned]
    sizes = (n, heads, keys, features)
    if perm == (0, 1, 3, 2):
        return None if source in graph.constants else Tensor(source, sizes)
    if perm != (0, 2, 3, 1):
        return None
    made = Node(name, "Transpose", (source,), (name,), {"perm": (0, 2, 1, 3)})
    return Tensor(name, sizes, made)


def _values(graph: Graph, v: str, name: str) -> Tensor:
    found = repeated(graph, v)
    if found is None or found.turned:
        return Tensor(v, tuple(graph.shapes[v]))
    return _once(graph, found, name)


def _once(graph: Graph, found: Repeated, name: str) -> Tensor:
    """A tensor before it was repeated, with an axis of heads."""
    if tuple(graph.shapes[found.source]) == found.sizes:
        return Tensor(found.source, found.sizes)
    return Tensor(name, found.sizes, Node(name, "Reshape", (found.source,), (name,)))


#: Functions of every element, through which halves that are alike stay so.
FUNCTIONS = ("Cos", "Sin")


def fuse_rotaries(graph: Graph) -> Graph:
    """Replace the last node of every such pattern; what only it read goes."""
    for name in [node.name for node in graph.nodes if node.type == "Add"]:
        node = next(node for node in graph.nodes if node.name == name)
        graph = _rotary(graph, node) or graph
    return without_unread(graph)


def _rotary(graph: Graph, node: Node) -> Graph | None:
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
