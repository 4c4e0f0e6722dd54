"""Parts of a graph that codl has no operators for become nodes of their own, each a whole model.

Such a part is a convex group of nodes: it can run once all its inputs are there. Between it and
the rest of the network pass float32 tensors of known sizes only, so that they may lie on either
processor. Tensors of integers and booleans, and those whose sizes depend on data, stay inside: the
group grows until they do.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from itertools import chain
from math import prod
from typing import Any, cast

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.errors import CodlError, UnsupportedError
from codl.frontend.converters.base import CONVERTERS, ConvertedOp
from codl.frontend.graph.graph import Graph, in_order
from codl.frontend.graph.integer_products import reference_session, with_own_constants
from codl.frontend.graph.passes import FLOATS, is_alias
from codl.frontend.graph.plain_form import LEAST_IR_VERSION, all_graphs
from codl.frontend.graph.weights import CHANCE, Model, graphs_of, refill
from codl.ir.onnx_node import Node
from codl.ir.ops.movement import SliceNd
from codl.ir.ops.onnx_model import INPUT, OUTPUT, OnnxModel

#: The type of a node that is a group of others: `model` is its model, `nodes` their types, `exact`
#: whether an output is one that no float16 may hold: outputs are one tensor first.
ENCLOSED = "codl.Enclosed"
#: Integers that float16 does not hold.
WIDE_INTEGERS = (
    *(TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
)
#: Types that a caller may give or get, and that float32 stands for in between.
NUMBERS = (
    *FLOATS,
    *(TensorProto.BOOL, TensorProto.INT8, TensorProto.UINT8),
    *WIDE_INTEGERS,
)


#: How tensors of a group's model begin that are none of the user's, and one with the size -1.
OWN, FLAT = "codl.", f"{OUTPUT}.flat"


def enclosing_node(graph: Graph, nodes: Sequence[Node], start: int = 0) -> Node:
    """One node in the place of a convex group, from its model's inputs to its outputs.

    Its model's first node has the number `start`. Raises `UnsupportedError` for a tensor between
    the group and the rest that cannot be one.
    """
    inside = {name for node in nodes for name in node.outputs}
    reads = dict.fromkeys(name for node in nodes for name in node.reads)
    inputs = [name for name in reads if name not in inside and name not in graph.constants]
    names = {node.name for node in nodes}
    outputs = [
        name
        for node in nodes
        for name in filter(None, node.outputs)
        if graph.is_handed_out(name)
        or any(reader.name not in names for reader in graph.consumers(name))
    ]
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
    if not inputs:  # an op reads something
        inputs = [graph.names.tensor(outputs[0], "nothing")]
    kinds = "+".join(dict.fromkeys(node.type for node in nodes))
    exact = any(graph.types.get(name) in WIDE_INTEGERS for name in outputs)
    attributes = {"model": model.SerializeToString(), "nodes": kinds, "exact": exact}
    return Node(nodes[0].name, ENCLOSED, tuple(inputs), tuple(outputs), attributes)


def _model(
    graph: Graph, nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str], start: int
) -> onnx.ModelProto:
    """Casts at the borders; several outputs lie one after the other in one."""
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
    """What a user's tensor is called in a group's model."""
    return f"{OWN}of.{name}" if name.startswith(OWN) else name


def _inside(node: onnx.NodeProto) -> onnx.NodeProto:
    """A node as it is in a group's model."""
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
    """The group as one op and, where it has several outputs, a slice of its output for each."""
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


#: Constants of more elements are not looked at to see whether a node can be converted.
LARGE = 1 << 16
#: Inputs that may be integers which the caller gives, by the node's type: they are held as floats.
INDICES: Mapping[str, int] = {"Gather": 1}


def enclose(graph: Graph) -> Graph:
    """The graph with every group of nodes that codl cannot convert as one node."""
    graph = fold_constants(graph.without_unread)  # a group makes something of something
    foreign = [at for at, node in enumerate(graph.nodes) if not _is_known(graph, node)]
    makers = {name: at for at, node in enumerate(graph.nodes) for name in node.outputs if name}
    inner = [name for name in makers if not _may_cross(graph, name)]
    if not foreign and not inner:
        return graph
    links = [
        (makers[name], at)
        for at, node in enumerate(graph.nodes)
        for name in node.reads
        if name in makers
    ]
    groups = _Groups(len(graph.nodes), links, foreign)
    number = {node.name: at for at, node in enumerate(graph.nodes)}
    for tensor in inner:  # stays inside one group, with all that make and read it
        groups.join({makers[tensor], *(number[reader.name] for reader in graph.consumers(tensor))})
    for maker, reader in sorted(links, key=lambda link: link[1]):
        groups.merge(maker, reader)
    return _with_groups(graph, groups.members)


def _with_groups(graph: Graph, groups: Sequence[Sequence[int]]) -> Graph:
    """The graph with a node for every group, in a topological order."""
    made, start = [], 0
    for group in groups:
        nodes = [graph.nodes[at] for at in group]
        draws = any(node.type in CHANCE for node in nodes)
        made.append(enclosing_node(graph, nodes, start if draws else 0))
        # ONNX Runtime seeds by a node's number in its model, so no two groups have the same ones.
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


def _is_known(graph: Graph, node: Node) -> bool:
    """Whether a node has a converter, and floats to compute with."""
    for index, name in enumerate(node.inputs):
        is_input = name in graph.inputs and INDICES.get(node.type) == index
        is_input |= name in graph.inputs and node.type == "Cast"
        if name and name not in graph.constants and not is_input and not _may_cross(graph, name):
            return False
    if any(name and not _may_cross(graph, name) for name in node.outputs):
        return False
    if is_alias(graph, node):
        return True
    converter = CONVERTERS.get(node.type)
    if converter is None:
        return False
    try:
        made = {step.output for step in converter.convert(_light(graph, node), node)}
    except Exception as error:
        # Operands that do not fit, of which ONNX checks few, trip a converter anywhere: ONNX
        # Runtime says what is wrong with them.
        if isinstance(error, CodlError) and not isinstance(error, UnsupportedError):
            raise
        return False
    return made.issuperset(name for name in node.outputs if graph.is_read(name))


def _light(graph: Graph, node: Node) -> Graph:
    """The graph with small constants in the place of a node's large ones: only sizes matter."""
    large = {
        name: np.zeros(graph.shapes[name], graph.constants[name].dtype)  # not touched, so free
        for name in node.inputs
        if name in graph.constants and graph.constants[name].size > LARGE
    }
    if not large:
        return graph
    return replace(graph, constants=ChainMap(large, cast(dict[str, NDArray[Any]], graph.constants)))


def _may_cross(graph: Graph, tensor: str) -> bool:
    """Whether a tensor may pass between a group and the rest."""
    has_shape = tensor in graph.shapes and tensor not in graph.unknown
    return has_shape and graph.types.get(tensor, TensorProto.FLOAT) in FLOATS


class _Groups:
    """Nodes as a graph, by their numbers, in which those of a group become one node, a group's.

    Every node has a rank above those before it. An edge against the ranks renumbers only what lies
    between its ends, as Pearce and Kelly do it (doi:10.1145/1187436.1210590), so that groups of
    neighbours cost as much as they are large. `links` are pairs of a node and one behind it.
    """

    def __init__(self, count: int, links: Iterable[tuple[int, int]], single: Iterable[int]) -> None:
        self._behind: list[set[int]] = [set() for _ in range(count)]
        self._before: list[set[int]] = [set() for _ in range(count)]
        for first, second in links:
            self._behind[first].add(second)
            self._before[second].add(first)
        self._rank = list(range(count))
        #: The node that now stands for each one, and the nodes of each group by the one for it.
        self._stands = list(range(count))
        self._groups = {at: [at] for at in single}

    @property
    def members(self) -> list[list[int]]:
        """The nodes of every group, in order; the groups by their first nodes."""
        return sorted(map(sorted, self._groups.values()))

    def join(self, nodes: Iterable[int]) -> None:
        """Make some nodes one group, with all between them and the groups of those."""
        group = {self._standing(at) for at in nodes}
        ranks = [self._rank[at] for at in group]
        if len(group) > 1:
            behind = self._reached(group, self._behind, lambda rank: rank <= max(ranks))
            group |= behind & self._reached(group, self._before, lambda rank: rank >= min(ranks))
        self._unite(group)

    def merge(self, maker: int, reader: int) -> None:
        """Unite the groups of two nodes, where nothing outside lies between."""
        first, last = self._standing(maker), self._standing(reader)
        if first == last or first not in self._groups or last not in self._groups:
            return
        if not self._is_linked_through(first, last):
            self._unite({first, last})

    def _weight(self, at: int) -> int:
        """How much there is to move where another node stands for one."""
        edges = len(self._behind[at]) + len(self._before[at])
        return edges + len(self._groups.get(at, ()))

    def _is_linked_through(self, first: int, last: int) -> bool:
        """Whether a path leads from one node to another through others."""
        lowest, left = self._rank[first], list(self._before[last] - {first})
        seen = set(left)
        while left:
            at = left.pop()
            if first in self._before[at]:
                return True
            new = {n for n in self._before[at] - seen if self._rank[n] > lowest}
            seen |= new
            left.extend(new)
        return False

    def _unite(self, nodes: set[int]) -> None:
        """Let one node stand for some, between which no others lie."""
        kept = max(nodes, key=self._weight)
        members = self._groups.pop(kept, [kept])
        edges: list[tuple[int, int]] = []
        for at in nodes - {kept}:
            members += self._groups.pop(at, [at])
            self._stands[at] = kept
            edges += [(kept, other) for other in self._behind[at] - nodes]
            edges += [(other, kept) for other in self._before[at] - nodes]
            for other in self._behind[at]:
                self._before[other].discard(at)
            for other in self._before[at]:
                self._behind[other].discard(at)
            self._behind[at], self._before[at] = set(), set()
        self._groups[kept] = members
        for first, second in edges:
            self._behind[first].add(second)
            self._before[second].add(first)
            if self._rank[first] > self._rank[second]:
                self._rerank(first, second)

    def _rerank(self, first: int, second: int) -> None:
        """Give what leads to `first` lower ranks than what `second` leads to."""
        low, high = self._rank[second], self._rank[first]
        before = self._reached({first}, self._before, lambda rank: rank >= low)
        behind = self._reached({second}, self._behind, lambda rank: rank <= high)
        ordered = [*sorted(before, key=self._rank.__getitem__)]
        ordered += sorted(behind, key=self._rank.__getitem__)
        ranks = sorted(self._rank[at] for at in ordered)
        for at, rank in zip(ordered, ranks, strict=True):
            self._rank[at] = rank

    def _reached(
        self, nodes: set[int], steps: Sequence[set[int]], counts: Callable[[int], bool]
    ) -> set[int]:
        """Nodes, and all that steps from them lead to, through ranks that count."""
        reached, left = set(nodes), list(nodes)
        while left:
            new = {n for n in steps[left.pop()] - reached if counts(self._rank[n])}
            reached |= new
            left.extend(new)
        return reached

    def _standing(self, at: int) -> int:
        """The node that stands for one now."""
        while (stands := self._stands[at]) != at:
            self._stands[at] = self._stands[stands]
            at = stands
        return at


def fold_constants(graph: Graph) -> Graph:
    """The graph with constants in the place of nodes that compute constants of constants.

    ONNX Runtime computes them here. It does not fold nodes that dequantise, have graphs, or make
    tensors that have no size before a run.
    """
    values: dict[str, NDArray[Any]] = {}
    types: dict[str, int] = {}
    gone: set[str] = set()
    for nodes in _groups(graph):
        names = {node.name for node in nodes}
        wanted = [
            name
            for node in nodes
            for name in filter(None, node.outputs)
            if graph.is_handed_out(name) or any(n.name not in names for n in graph.consumers(name))
        ]
        try:
            made = dict(zip(wanted, _computed(graph, nodes, wanted), strict=True))
            types |= {k: helper.np_dtype_to_tensor_dtype(v.dtype) for k, v in made.items()}
        except Exception:  # ONNX Runtime's exceptions share no base class
            continue
        if any(value.dtype == object for value in made.values()):  # texts are no tensors here
            continue
        values |= made
        gone |= names
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
    """Nodes that read constants, and what others of their group make of constants."""
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
    """Whether what a node computes may depend on chance, or is not known."""
    if node.proto is None:
        return True
    graphs = all_graphs(onnx.GraphProto(node=[node.proto]))
    return any(inner.op_type in CHANCE for graph in graphs for inner in graph.node)


def _computed(graph: Graph, nodes: Sequence[Node], wanted: Sequence[str]) -> list[NDArray[Any]]:
    """What nodes make, by ONNX Runtime."""
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
    """A model of some nodes of a graph."""
    domains = {"": graph.opset, **graph.domains}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    least = helper.find_min_ir_version_for(opsets[:1], ignore_unknown=True)
    return helper.make_model(content, opset_imports=opsets, ir_version=max(LEAST_IR_VERSION, least))
