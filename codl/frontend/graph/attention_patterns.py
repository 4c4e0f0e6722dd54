"""Attention that models spell out becomes one node: a softmax between two products."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from codl.frontend.graph.graph import Graph
from codl.frontend.graph.patterns import pairs, producer, without_unread
from codl.frontend.graph.shared_heads import Repeated, repeated
from codl.ir.onnx_node import Node
from codl.ir.ops.nd import Sizes


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
