"""Enclosing of unsupported nodes in groups that run whole, as ONNX models.

A group is convex: it can run once all its inputs exist. Only float32 tensors of known sizes pass
its borders, so they may lie on either processor. Integers, booleans and tensors of data-dependent
size stay inside, for which groups grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from math import prod
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.errors import UnsupportedError
from codl.frontend.converters.base import ENCLOSED, ConvertedOp
from codl.frontend.graph.graph import Graph, in_order
from codl.frontend.graph.integer_products import reference_session, with_own_constants
from codl.frontend.graph.passes import FLOATS
from codl.frontend.graph.weights import (
    CHANCE,
    LEAST_IR_VERSION,
    Model,
    all_graphs,
    refill,
)
from codl.ir.onnx_node import Node, graphs_of
from codl.ir.ops.movement import SliceNd
from codl.ir.ops.onnx_model import INPUT, OUTPUT, OnnxModel

#: Integer types beyond float16's exact range.
WIDE_INTEGERS = (
    *(TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
)
#: Types of the caller's tensors, held as float32 in the network.
NUMBERS = (*FLOATS, *(TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8), *WIDE_INTEGERS)


#: A node's number, and that of a reader.
Link: TypeAlias = tuple[int, int]
#: Prefix of a group's own tensors, and the tensor with the size -1.
OWN, FLAT = "codl.", f"{OUTPUT}.flat"


def enclosing_node(graph: Graph, nodes: Sequence[Node], start: int = 0) -> Node:
    """One node in the place of a convex group.

    `start` numbers its model's first node. Raises `UnsupportedError` for a border tensor of unknown
    size or of a type without numbers.
    """
    inside = {name for node in nodes for name in node.outputs}
    reads = dict.fromkeys(name for node in nodes for name in node.reads)
    inputs = [name for name in reads if name not in inside and name not in graph.constants]
    outputs = _results(graph, nodes)
    for node in nodes:
        for name in outputs:
            if name in node.outputs and name in graph.unknown:
                raise UnsupportedError(
                    f"The node {node.name!r} ({node.type}): {graph.unknown[name]}"
                )
    for name in (*inputs, *outputs):
        kind = graph.types.get(name, TensorProto.FLOAT)
        if kind not in NUMBERS:
            type_name = TensorProto.DataType.Name(kind).lower()
            raise UnsupportedError(
                f"The tensor {name!r} is of type {type_name}; codl knows numbers only."
            )
    model = _model(graph, nodes, inputs, outputs, start)
    if not inputs:  # an op needs an input
        inputs = [graph.names.tensor(outputs[0], "nothing")]
    kinds = "+".join(dict.fromkeys(node.type for node in nodes))
    exact = any(graph.types.get(name) in WIDE_INTEGERS for name in outputs)
    attributes = {"model": model.SerializeToString(), "nodes": kinds, "exact": exact}
    return Node(nodes[0].name, ENCLOSED, tuple(inputs), tuple(outputs), attributes)


def _results(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """Tensors of a group that other nodes or the caller read."""
    names = {node.name for node in nodes}
    return [
        name
        for node in nodes
        for name in filter(None, node.outputs)
        if graph.is_handed_out(name)
        or any(reader.name not in names for reader in graph.consumers(name))
    ]


def _model(
    graph: Graph, nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str], start: int
) -> onnx.ModelProto:
    """The group's ONNX model, with casts at its borders; several outputs are concatenated."""
    before = [
        _converted(f"{INPUT}{i}", _inner(name), graph.types.get(name, TensorProto.FLOAT))
        for i, name in enumerate(inputs)
    ]
    after: list[onnx.NodeProto] = []
    if len(outputs) == 1:
        after.append(_converted(_inner(outputs[0]), OUTPUT, TensorProto.FLOAT))
        to = tuple(graph.shapes[outputs[0]])
    else:
        for i, name in enumerate(outputs):
            after.append(_converted(_inner(name), f"{OUTPUT}.{i}.float", TensorProto.FLOAT))
            flat = [f"{OUTPUT}.{i}.float", FLAT]
            after.append(helper.make_node("Reshape", flat, [f"{OUTPUT}.{i}"]))
        pieces = [f"{OUTPUT}.{i}" for i in range(len(outputs))]
        after.append(helper.make_node("Concat", pieces, [OUTPUT], axis=0))
        to = (sum(prod(graph.shapes[name]) for name in outputs),)
    read = {name for node in nodes for name in node.reads}
    constants = [
        numpy_helper.from_array(np.asarray(graph.constants[name]), _inner(name))
        for name in sorted(read)
        if name in graph.constants
    ]
    constants.append(numpy_helper.from_array(np.array([-1], np.int64), FLAT))
    protos = [_inside(node.proto) for node in nodes if node.proto is not None]
    unread = [helper.make_node("Identity", [FLAT], [f"{OWN}{i}"]) for i in range(start)]
    content = helper.make_graph(
        [*unread, *before, *protos, *after],
        "enclosed",
        [_info(f"{INPUT}{i}", graph.shapes[name]) for i, name in enumerate(inputs)]
        or [_info(f"{INPUT}0", (1,))],
        [_info(OUTPUT, to)],
        constants,
    )
    made = Model(model_of(graph, content), {})
    return with_own_constants(made).proto


def _inner(name: str) -> str:
    return f"{OWN}of.{name}" if name.startswith(OWN) else name


def _inside(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node with its tensors renamed for a group's model."""
    if OWN.encode() not in node.SerializeToString():
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:], copy.output[:] = map(_inner, node.input), map(_inner, node.output)
    for graph in graphs_of(copy):
        items = (graph.input, graph.output, graph.value_info, graph.initializer)
        for item in (*chain(*items), *(each.values for each in graph.sparse_initializer)):
            item.name = _inner(item.name)
        refill(graph.node, [_inside(inner) for inner in graph.node])
    return copy


def _converted(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], to=to)


def _info(name: str, sizes: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(sizes))


def enclosed(graph: Graph, node: Node) -> list[ConvertedOp]:
    """The group as one op and, for several outputs, a slice for each."""
    model = bytes(node.attributes["model"])
    shapes = tuple(tuple(graph.shapes[name]) for name in node.inputs)
    sizes = [tuple(graph.shapes[name]) for name in node.outputs]
    counts = [prod(to) for to in sizes]
    op = OnnxModel(
        shapes=shapes,
        to=sizes[0] if len(sizes) == 1 else (sum(counts),),
        nodes=str(node.attributes["nodes"]),
        digest=sha256(model).hexdigest()[:16],
        model=model,
    )
    if len(sizes) == 1:
        return [ConvertedOp(op, node.inputs, node.outputs[0])]
    whole = graph.names.tensor(node.outputs[0], "all")
    steps, start = [], 0
    exact = bool(node.attributes["exact"])
    for name, count in zip(node.outputs, counts, strict=True):
        piece = SliceNd(
            shapes=((sum(counts),),), starts=(start,), steps=(1,), to=(count,), exact=exact
        )
        steps.append(ConvertedOp(piece, (whole,), name))
        start += count
    return [ConvertedOp(op, node.inputs, whole), *steps]


def with_groups(graph: Graph, foreign: Sequence[int], inner: Sequence[str]) -> Graph:
    """One node for each group of `foreign` nodes; `inner` tensors stay inside with all readers."""
    number = {node.name: at for at, node in enumerate(graph.nodes)}
    makers = {name: at for at, node in enumerate(graph.nodes) for name in node.outputs if name}
    links = [
        (makers[name], at)
        for at, node in enumerate(graph.nodes)
        for name in node.reads
        if name in makers
    ]
    held = [
        (makers[tensor], number[reader.name])
        for tensor in inner
        for reader in graph.consumers(tensor)
    ]
    groups = _grouped(
        len(graph.nodes), links, {*foreign, *(makers[tensor] for tensor in inner)}, held
    )
    made, start = [], 0
    for group in groups:
        nodes = [graph.nodes[at] for at in group]
        draws = any(node.type in CHANCE for node in nodes)
        made.append(enclosing_node(graph, nodes, start if draws else 0))
        # ONNX Runtime seeds random nodes by their number, so each group's numbers differ.
        start += len(nodes) + len(made[-1].inputs) if draws else 0
    taken = {at for group in groups for at in group}
    left = [node for at, node in enumerate(graph.nodes) if at not in taken] + made
    types = {**graph.types}
    alone = {name: np.zeros(1, np.float32) for node in made for name in node.inputs
             if name not in graph.shapes}  # fmt: skip
    graph = replace(
        graph,
        constants={**graph.constants, **alone},
        shapes={**graph.shapes, **dict.fromkeys(alone, (1,))},
    )
    types |= {name: TensorProto.FLOAT for node in made for name in node.outputs}
    order = {name: at for at, node in enumerate(graph.nodes) for name in node.outputs}
    left.sort(key=lambda node: max(order[name] for name in node.outputs if name))
    return replace(graph, nodes=tuple(in_order(left)), types=types)


def _grouped(
    count: int, links: Sequence[Link], foreign: set[int], inner: Iterable[Link]
) -> list[list[int]]:
    """Convex groups of numbered nodes, of `foreign` ones and of those that `inner` links unite.

    `links` are pairs of a node and a later one. A level counts the groups that paths have left
    before a node: linked foreign nodes of one level have no other node in between. Levels are
    counted from the front, then from the back.
    """
    united = [(reader, maker) for maker, reader in inner]
    foreign = foreign.union(*united)
    for step in (1, -1):
        place = _components(count, [*links, *united])
        inside = {place[at] for at in foreign}
        level = [0] * count
        edges = sorted({(place[first], place[second])[::step] for first, second in links})
        for first, second in edges[::step]:
            leaves = first in inside and second not in inside
            level[second] = max(level[second], level[first] + leaves)
        united += [
            (second, first)
            for first, second in links
            if inside.issuperset((place[first], place[second]))
            and level[place[first]] == level[place[second]]
        ]
        foreign |= {at for at in range(count) if place[at] in inside}
    groups: dict[int, list[int]] = {}
    place = _components(count, [*links, *united])
    for at in sorted(foreign):
        groups.setdefault(place[at], []).append(at)
    return list(groups.values())


def _components(count: int, links: Iterable[Link]) -> list[int]:
    """Number of each node's strongly connected component, in topological order (Kosaraju's way)."""
    behind: list[list[int]] = [[] for _ in range(count)]
    before: list[list[int]] = [[] for _ in range(count)]
    for first, second in links:
        behind[first].append(second)
        before[second].append(first)
    seen, finished = set[int](), list[int]()
    left = [*range(count)]
    while left:
        if (at := left.pop()) < 0:  # all behind ~at are seen
            finished.append(~at)
        elif at not in seen:
            seen.add(at)
            left += [~at, *behind[at]]
    place = [-1] * count
    for number, root in enumerate(reversed(finished)):
        left = [root]
        while left:
            if place[at := left.pop()] < 0:
                place[at] = number
                left += before[at]
    return place


def fold_constants(graph: Graph) -> Graph:
    """The graph with constants in place of nodes that compute only from constants.

    ONNX Runtime computes their values. Its own folding leaves out nodes that dequantise, contain
    graphs, or have outputs of unknown size.
    """
    values: dict[str, NDArray[Any]] = {}
    types: dict[str, int] = {}
    gone: set[str] = set()
    for nodes in _groups(graph):
        wanted = _results(graph, nodes)
        try:
            made = dict(zip(wanted, _computed(graph, nodes, wanted), strict=True))
            types |= {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in made.items()}
        except Exception:  # ONNX Runtime's exceptions share no base class
            continue
        if any(value.dtype == object for value in made.values()):  # texts are no tensors here
            continue
        values |= made
        gone |= {node.name for node in nodes}
    if not gone:
        return graph
    return replace(
        graph,
        nodes=tuple(node for node in graph.nodes if node.name not in gone),
        constants={**graph.constants, **values},
        shapes={**graph.shapes, **{name: value.shape for name, value in values.items()}},
        types={**graph.types, **types},
        unknown={k: reason for k, reason in graph.unknown.items() if k not in values},
    )


def _groups(graph: Graph) -> list[list[Node]]:
    """Groups of connected nodes that depend on constants alone."""
    makers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if _draws(node) or not all(x in graph.constants or x in makers for x in node.reads):
            continue
        before = {id(makers[name]): makers[name] for name in node.reads if name in makers}
        group = [*(each for nodes in before.values() for each in nodes), node]
        for each in group:
            makers |= dict.fromkeys(filter(None, each.outputs), group)
    return list({id(group): group for group in makers.values()}.values())


def _draws(node: Node) -> bool:
    """Whether a node is random, or has no proto to check."""
    if node.proto is None:
        return True
    graphs = all_graphs(onnx.GraphProto(node=[node.proto]))
    return any(inner.op_type in CHANCE for graph in graphs for inner in graph.node)


def _computed(graph: Graph, nodes: Sequence[Node], wanted: Sequence[str]) -> list[NDArray[Any]]:
    read = sorted({name for node in nodes for name in node.reads} & graph.constants.keys())
    content = helper.make_graph(
        [node.proto for node in nodes],
        "constants",
        [],
        [onnx.ValueInfoProto(name=name) for name in wanted],
        [numpy_helper.from_array(np.asarray(graph.constants[name]), name) for name in read],
    )
    session = reference_session(Model.of(model_of(graph, content)))
    values: list[NDArray[Any]] = session.run(list(wanted), {})
    return values


def model_of(graph: Graph, content: onnx.GraphProto) -> onnx.ModelProto:
    """An ONNX model of `content`, with the graph's opsets."""
    domains = {"": graph.opset, **graph.domains}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    least = helper.find_min_ir_version_for(opsets[:1], ignore_unknown=True)
    return helper.make_model(content, opset_imports=opsets, ir_version=max(LEAST_IR_VERSION, least))
