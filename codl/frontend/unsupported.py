"""Parts of a graph that codl has no operators for become nodes of their own, each a whole model.

Such a part is a convex group of nodes: it can run once all its inputs are there. Between it and
the rest of the network pass float32 tensors of known sizes only, so that they may lie on either
processor. Tensors of integers and booleans, and those whose sizes depend on data, stay inside: the
group grows until they do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import prod

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.errors import CodlError, UnsupportedError
from codl.frontend.converters.base import CONVERTERS, ConvertedOp
from codl.frontend.graph.graph import Graph, in_order
from codl.frontend.graph.integer_products import with_own_constants
from codl.frontend.graph.passes import FLOATS, is_alias
from codl.frontend.graph.weights import Model
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


def enclosing_node(graph: Graph, nodes: Sequence[Node]) -> Node:
    """One node in the place of a convex group, from its model's inputs to its outputs.

    Raises `UnsupportedError` for a tensor between the group and the rest that cannot be one.
    """
    inside = {name for node in nodes for name in node.outputs}
    reads = dict.fromkeys(name for node in nodes for name in node.reads)
    inputs = [name for name in reads if name not in inside and name not in graph.constants]
    own = {node.name for node in nodes}
    read = {name for node in graph.nodes if node.name not in own for name in node.reads}
    outputs = [name for node in nodes for name in node.outputs
               if name and (name in graph.outputs or name in read)]  # fmt: skip
    for node in nodes:
        for name in outputs:
            if name in node.outputs and name in graph.unknown:
                raise UnsupportedError(
                    f"The node {node.name!r} ({node.type}): {graph.unknown[name]}"
                )
    for name in (*inputs, *outputs):
        kind = graph.types.get(name, TensorProto.FLOAT)
        if kind not in NUMBERS:
            given = TensorProto.DataType.Name(kind).lower()
            raise UnsupportedError(
                f"The tensor {name!r} is of type {given}; codl knows numbers only."
            )
    model = _model(graph, nodes, inputs, outputs)
    kinds = "+".join(dict.fromkeys(node.type for node in nodes))
    exact = any(graph.types.get(name) in WIDE_INTEGERS for name in outputs)
    attributes = {"model": model.SerializeToString(), "nodes": kinds, "exact": exact}
    return Node(nodes[0].name, ENCLOSED, tuple(inputs), tuple(outputs), attributes)


def _model(
    graph: Graph, nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str]
) -> onnx.ModelProto:
    """Casts at the borders; several outputs lie one after the other in one."""
    before = [
        _converted(f"{INPUT}{i}", name, graph.types.get(name, TensorProto.FLOAT))
        for i, name in enumerate(inputs)
    ]
    after: list[onnx.NodeProto] = []
    if len(outputs) == 1:
        after.append(_converted(outputs[0], OUTPUT, TensorProto.FLOAT))
        to = tuple(graph.shapes[outputs[0]])
    else:
        for i, name in enumerate(outputs):
            after.append(_converted(name, f"{OUTPUT}.{i}.float", TensorProto.FLOAT))
            flat = [f"{OUTPUT}.{i}.float", f"{OUTPUT}.flat"]
            after.append(helper.make_node("Reshape", flat, [f"{OUTPUT}.{i}"]))
        pieces = [f"{OUTPUT}.{i}" for i in range(len(outputs))]
        after.append(helper.make_node("Concat", pieces, [OUTPUT], axis=0))
        to = (sum(prod(graph.shapes[name]) for name in outputs),)
    read = {name for node in nodes for name in node.reads}
    constants = [
        numpy_helper.from_array(np.asarray(graph.constants[name]), name)
        for name in sorted(read & graph.constants.keys())
    ]
    constants.append(numpy_helper.from_array(np.array([-1], np.int64), f"{OUTPUT}.flat"))
    protos = [node.proto for node in nodes if node.proto is not None]
    content = helper.make_graph(
        [*before, *protos, *after],
        "enclosed",
        [_info(f"{INPUT}{i}", graph.shapes[name]) for i, name in enumerate(inputs)],
        [_info(OUTPUT, to)],
        constants,
    )
    domains = {"": graph.opset, **graph.domains}
    opsets = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    version = helper.find_min_ir_version_for(opsets[:1], ignore_unknown=True)
    made = Model(helper.make_model(content, opset_imports=opsets, ir_version=version), {})
    return with_own_constants(made).proto


def _converted(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], to=to)


def _info(name: str, sizes: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(sizes))


def enclosed(graph: Graph, node: Node) -> list[ConvertedOp]:
    """The group as one op and, where it has several outputs, a slice of its output for each."""
    model = bytes(node.attributes["model"])
    shapes = tuple(tuple(graph.shapes[name]) for name in node.inputs)
    sizes = [tuple(graph.shapes[name]) for name in node.outputs]
    counts = [prod(own) for own in sizes]
    op = OnnxModel(
        shapes=shapes,
        to=sizes[0] if len(sizes) == 1 else (sum(counts),),
        nodes=str(node.attributes["nodes"]),
        digest=sha256(model).hexdigest()[:16],
        model=model,
    )
    if len(sizes) == 1:
        return [ConvertedOp(op, node.inputs, node.outputs[0])]
    whole = f"{node.outputs[0]}.all"
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
INDICES: Mapping[str, int] = {
    "Gather": 1,
    "RotaryEmbedding": 3,
    "com.microsoft.RotaryEmbedding": 1,
}


def enclose(graph: Graph) -> Graph:
    """The graph with every group of nodes that codl cannot convert as one node."""
    graph = graph.without_unread  # a group makes something
    parts = _Parts(graph)
    foreign = {node.name for node in graph.nodes if not _is_known(graph, node)}
    if not foreign and not parts.inner:
        return graph
    parts.add(foreign)
    for tensor in parts.inner:
        parts.join(tensor)
    parts.merge_neighbours()
    return parts.graph_of_groups()


def _is_known(graph: Graph, node: Node) -> bool:
    """Whether a node has a converter, and floats to compute with."""
    for index, name in enumerate(node.inputs):
        given = name in graph.inputs and INDICES.get(node.type) == index
        given |= name in graph.inputs and node.type == "Cast"
        if name and name not in graph.constants and not given and not _may_cross(graph, name):
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
        if graph.states.keys() & set(node.inputs):  # nothing else may write a state
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
    constants: Mapping[str, NDArray[np.generic]] = {**graph.constants, **large}
    return replace(graph, constants=constants) if large else graph


def _may_cross(graph: Graph, tensor: str) -> bool:
    """Whether a tensor may pass between a group and the rest."""
    known = tensor in graph.shapes and tensor not in graph.unknown
    return known and graph.types.get(tensor, TensorProto.FLOAT) in FLOATS


@dataclass
class _Parts:
    """The groups of a graph's nodes: a number for every node that is in one."""

    graph: Graph
    group: dict[str, int] = field(default_factory=dict)

    @cached_property
    def producer(self) -> dict[str, Node]:
        return {name: node for node in self.graph.nodes for name in node.outputs if name}

    @cached_property
    def readers(self) -> dict[str, list[Node]]:
        found: dict[str, list[Node]] = {}
        for node in self.graph.nodes:
            for name in node.reads:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def inner(self) -> list[str]:
        """Tensors that a node makes and that must stay inside a group."""
        return [name for name in self.producer if not _may_cross(self.graph, name)]

    def add(self, names: Iterable[str]) -> None:
        """Give nodes groups of their own."""
        for name in names:
            self.group.setdefault(name, len(self.group))

    def join(self, tensor: str) -> None:
        """Put the nodes that make and read a tensor in one group, with all between them."""
        nodes = [self.producer[tensor], *self.readers.get(tensor, [])]
        self.add(node.name for node in nodes)
        for node in nodes[1:]:
            self._unite(node, nodes[0])
        self._fill(self.group[nodes[0].name])

    def merge_neighbours(self) -> None:
        """Unite groups that hand tensors to each other, where nothing outside lies between."""
        for node in self.graph.nodes:
            for name in node.reads:
                before = self.producer.get(name)
                if before is None or not {node.name, before.name} <= self.group.keys():
                    continue
                mine, theirs = self.group[node.name], self.group[before.name]
                both = {n for n, own in self.group.items() if own in (mine, theirs)}
                if mine != theirs and self._between(both) <= both:
                    self._unite(node, before)

    def _unite(self, one: Node, other: Node) -> None:
        mine, theirs = self.group[one.name], self.group[other.name]
        self.group |= {name: theirs for name, own in self.group.items() if own == mine}

    def _fill(self, number: int) -> None:
        """Take nodes in, and their groups, until no path leaves a group and comes back."""
        while True:
            own = {name for name, group in self.group.items() if group == number}
            missing = self._between(own) - own
            if not missing:
                return
            self.add(missing)
            taken = {self.group[name] for name in missing}
            self.group |= {n: number for n, group in self.group.items() if group in taken}

    def _between(self, names: set[str]) -> set[str]:
        """Nodes on paths from some to some; groups that a path enters are passed as a whole."""
        after = self._reached(names, self._next)
        before = self._reached(names, self._previous)
        return (after & before) | names

    def _reached(self, names: set[str], step: Callable[[str], Iterable[str]]) -> set[str]:
        members: dict[int, list[str]] = {}
        for name, number in self.group.items():
            members.setdefault(number, []).append(name)
        seen: set[str] = set()
        left = [near for name in names for near in step(name)]
        while left:
            name = left.pop()
            if name in seen:
                continue
            seen.add(name)
            own = members.get(self.group[name], []) if name in self.group else []
            left += [near for one in (name, *own) for near in step(one)]
            left += own
        return seen

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.graph.nodes}

    def _next(self, name: str) -> Iterator[str]:
        for tensor in self._by_name[name].outputs:
            yield from (reader.name for reader in self.readers.get(tensor, []))

    def _previous(self, name: str) -> Iterator[str]:
        for tensor in self._by_name[name].reads:
            if tensor in self.producer:
                yield self.producer[tensor].name

    def graph_of_groups(self) -> Graph:
        """The graph with a node for every group, in a topological order."""
        members: dict[int, list[Node]] = {}
        for node in self.graph.nodes:
            if node.name in self.group:
                members.setdefault(self.group[node.name], []).append(node)
        made = {number: enclosing_node(self.graph, nodes) for number, nodes in members.items()}
        left = [node for node in self.graph.nodes if node.name not in self.group]
        left += made.values()
        types = {**self.graph.types}
        types |= {name: TensorProto.FLOAT for node in made.values() for name in node.outputs}
        order = {name: i for i, node in enumerate(self.graph.nodes) for name in node.outputs}
        left.sort(key=lambda node: max(order[name] for name in node.outputs if name))
        return replace(self.graph, nodes=tuple(in_order(left)), types=types)
