"""Attention that models spell out becomes one node.

Where queries of some heads share keys and values, models repeat those for every head: attention
reads them once, and in products that are no attention the rows of all heads that share a matrix
are rows of one product with it.
"""

from __future__ import annotations

from typing import NamedTuple

from codl.frontend.graph.graph import Graph, Rewrite, fuse
from codl.frontend.graph.matching import matches, op
from codl.frontend.graph.passes import RESHAPES
from codl.ir.onnx_node import Node
from codl.ir.ops.nd import Sizes

RESHAPE = "|".join(RESHAPES)
#: No attribute of ONNX's: of a node made of products and a softmax, which gives NaN where a query
#: sees no key, and not zeros.
SPELLED_OUT = "spelled_out"
#: Columns read as rows, of four axes.
TURN = (0, 1, 3, 2)


class Repeated(NamedTuple):
    """A tensor (images, groups, rows, columns), and whether columns are then read as rows."""

    source: str
    sizes: Sizes
    turned: bool = False


class AttentionInput(NamedTuple):
    """Keys or values, and the node that makes them, where it is not there yet."""

    name: str
    sizes: Sizes
    nodes: tuple[Node, ...] = ()


def repeated(graph: Graph, name: str) -> Repeated | None:
    """What a tensor repeats: (n, groups, 1, ...) expanded to (n, groups, heads / groups, ...)."""
    last, turned = graph.makers.get(name), False
    while last and last.type == "Transpose" and tuple(last.attributes.get("perm", ())) == TURN:
        name, turned = last.inputs[0], not turned
        last = graph.makers.get(name)
    if last is None:
        return None
    bound = next(matches(graph, last, op(RESHAPE, op("Expand", "narrow", name="wide"))), None)
    if bound is None:
        return None
    narrow, full, joined = (_sizes(graph, each) for each in (bound["narrow"], bound["wide"], name))
    if len(narrow) != 5 or len(full) != 5 or narrow[2] != 1:
        return None
    n, groups, _, rows, columns = narrow
    heads = groups * full[2]
    if full != (n, groups, full[2], rows, columns) or joined != (n, heads, rows, columns):
        return None
    apart, sizes = graph.makers.get(bound["narrow"]), (n, groups, rows, columns)
    if apart is not None and apart.type in RESHAPES and _sizes(graph, apart.inputs[0]) == sizes:
        return Repeated(apart.inputs[0], sizes, turned)
    return Repeated(bound["narrow"], sizes, turned)


def _sizes(graph: Graph, name: str) -> Sizes:
    return tuple(graph.shapes.get(name, ()))


def share_heads(graph: Graph) -> Graph:
    """Multiply with each repeated matrix once; copies that nothing else reads go."""
    return fuse(graph, _shared)


def _shared(graph: Graph, node: Node) -> Rewrite | None:
    """Reshape the left side, multiply, and reshape back."""
    if node.type != "MatMul" or len(node.inputs) != 2 or node.outputs[0] not in graph.shapes:
        return None
    whole, left = repeated(graph, node.inputs[1]), _sizes(graph, node.inputs[0])
    if whole is None or len(left) != 4:
        return None
    output, right, names = node.outputs[0], whole.source, graph.names
    (n, heads, rows, inner), columns = left, graph.shapes[output][3]
    groups = whole.sizes[1]
    nodes: list[Node] = []
    shapes: dict[str, Sizes] = {}

    def add(word: str, kind: str, source: str, sizes: Sizes) -> str:
        name, perm = names.tensor(output, word), {"perm": TURN} if kind == "Transpose" else {}
        nodes.append(Node(names.node(node.name, word), kind, (source,), (name,), perm))
        shapes[name] = sizes
        return name

    together = heads // groups * rows
    x = add("rows", "Reshape", node.inputs[0], (n, groups, together, inner))
    if _sizes(graph, right) != whole.sizes:
        right = add("once", "Reshape", right, whole.sizes)
    if whole.turned:
        right = add("turned", "Transpose", right, (n, groups, inner, columns))
    product = names.tensor(output, "together")
    shapes[product] = (n, groups, together, columns)
    nodes.append(Node(node.name, "MatMul", (x, right), (product,), node.attributes))
    nodes.append(Node(names.node(node.name, "apart"), "Reshape", (product,), (output,)))
    return Rewrite(node, nodes, shapes=shapes)


def _is_plain(graph: Graph, node: Node) -> bool:
    """Whether a product has no bias, nor a factor that is 0: of attention, 0 is the usual one."""
    return len(node.inputs) == 2 and bool(node.attributes.get("alpha", 1.0))


def _is_of_keys(graph: Graph, softmax: Node) -> bool:
    usual = -1 if graph.opset >= 13 else 1
    rank = len(_sizes(graph, softmax.outputs[0]))
    return rank == 4 and int(softmax.attributes.get("axis", usual)) % 4 == 3


SCORES = op("MatMul", "queries", "turned keys", where=_is_plain, name="scores", once=True)
MASKED = op("Add", SCORES, "mask", once=True)
ODDS = op("Softmax", (SCORES, MASKED), where=_is_of_keys, once=True)
ATTENTION = op("MatMul", ODDS, "values", where=_is_plain)


def fuse_attention(graph: Graph) -> Graph:
    """A softmax between two products, perhaps with a mask."""
    return fuse(graph, _attention)


def _attention(graph: Graph, last: Node) -> Rewrite | None:
    """The node in the place of the last product, and keys as they were before turning."""
    if last.attributes.get("alpha", 1.0) != 1:
        return None
    output = last.outputs[0]
    for bound in matches(graph, last, ATTENTION):
        q, turned, v, mask = (bound.get(n, "") for n in
                              ("queries", "turned keys", "values", "mask"))  # fmt: skip
        if any(len(_sizes(graph, name)) != 4 for name in (q, turned, v, output)):
            continue
        keys, values = _keys(graph, turned, output), _values(graph, v, output)
        if keys is None or q in graph.constants:
            continue
        sizes, k = _sizes(graph, q), keys.sizes  # as many heads of q share each of k
        if k[:3] != values.sizes[:3] or (k[0], k[3]) != (sizes[0], sizes[3]) or sizes[1] % k[1]:
            continue
        # A node's mask has to have all keys; a sum may stretch one.
        if mask and (len(_sizes(graph, mask)) > 4 or _sizes(graph, mask)[-1:] != (k[2],)):
            continue
        scale = float(graph.makers[bound["scores"]].attributes.get("alpha", 1.0))
        names = (q, keys.name, values.name, *([mask] if mask else []))
        attributes = {"scale": scale, SPELLED_OUT: 1}
        made = Node(last.name, "Attention", names, last.outputs, attributes)
        shapes = {tensor.name: tensor.sizes for tensor in (keys, values) if tensor.nodes}
        return Rewrite(last, [*keys.nodes, *values.nodes, made], shapes=shapes)
    return None


def _keys(graph: Graph, turned: str, output: str) -> AttentionInput | None:
    """(images, heads, keys, features) before they were turned, once for heads that share them."""
    whole = repeated(graph, turned)
    if whole is not None:
        return _once(graph, whole, output, "keys") if whole.turned else None
    transpose = graph.makers.get(turned)
    if transpose is None or transpose.type != "Transpose":
        return None
    (source,), perm = transpose.inputs, tuple(transpose.attributes.get("perm", ()))
    n, heads, features, keys = graph.shapes[turned]
    sizes = (n, heads, keys, features)
    if perm == TURN:
        return None if source in graph.constants else AttentionInput(source, sizes)
    if perm != (0, 2, 3, 1):
        return None
    names = graph.names.node(output, "keys"), graph.names.tensor(output, "keys")
    node = Node(names[0], "Transpose", (source,), names[1:], {"perm": (0, 2, 1, 3)})
    return AttentionInput(names[1], sizes, (node,))


def _values(graph: Graph, v: str, output: str) -> AttentionInput:
    whole = repeated(graph, v)
    if whole is None or whole.turned:
        return AttentionInput(v, _sizes(graph, v))
    return _once(graph, whole, output, "values")


def _once(graph: Graph, whole: Repeated, output: str, word: str) -> AttentionInput:
    """A tensor before it was repeated, with an axis of heads."""
    if _sizes(graph, whole.source) == whole.sizes:
        return AttentionInput(whole.source, whole.sizes)
    names = graph.names.node(output, word), graph.names.tensor(output, word)
    node = Node(names[0], "Reshape", (whole.source,), names[1:])
    return AttentionInput(names[1], whole.sizes, (node,))
