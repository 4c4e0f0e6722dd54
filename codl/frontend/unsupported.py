"""Parts of a graph that codl has no operators for become nodes of their own, each a whole model.

Such a part is a convex group of nodes: it can run once all its inputs are there. Between it and
the rest of the network pass float32 tensors of known sizes only, so that they may lie on either
processor. Tensors of integers and booleans, and those whose sizes depend on data, stay inside: the
group grows until they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from math import prod

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from codl.errors import CodlError, UnsupportedError
from codl.frontend.converters.base import CONVERTERS, ConvertedOp
from codl.frontend.graph.constant_nodes import fold_constants, model_of
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
    names = {node.name for node in nodes}
    read = {name for node in graph.nodes if node.name not in names for name in node.reads}
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
            type_name = TensorProto.DataType.Name(kind).lower()
            raise UnsupportedError(
                f"The tensor {name!r} is of type {type_name}; codl knows numbers only."
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
    made = Model(model_of(graph, content), {})
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
    made = [enclosing_node(graph, [graph.nodes[at] for at in group]) for group in groups]
    taken = {at for group in groups for at in group}
    left = [node for at, node in enumerate(graph.nodes) if at not in taken] + made
    types = {**graph.types}
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
    has_shape = tensor in graph.shapes and tensor not in graph.unknown
    return has_shape and graph.types.get(tensor, TensorProto.FLOAT) in FLOATS


class _Groups:
    """Disjoint sets of nodes, by their numbers in a topological order: sets are bits of integers.

    `links` are pairs of a node and one behind it.
    """

    def __init__(self, count: int, links: Sequence[tuple[int, int]], single: Iterable[int]) -> None:
        self._groups = [1 << at for at in single]
        #: All nodes behind each, and all before it.
        self._behind, self._before = [0] * count, [0] * count
        for first, second in sorted(links, key=lambda link: -link[0]):
            self._behind[first] |= 1 << second | self._behind[second]
        for first, second in sorted(links, key=lambda link: link[1]):
            self._before[second] |= 1 << first | self._before[first]

    @property
    def members(self) -> list[list[int]]:
        """The nodes of every group, in order; the groups by their first nodes."""
        return sorted(_numbers(group) for group in self._groups)

    def join(self, nodes: Iterable[int]) -> None:
        """Make some nodes one group, with all between them and the groups of those."""
        group, before = sum(1 << at for at in nodes), 0
        while group != before:
            before = group
            for other in self._groups:
                group |= other if other & group else 0
            group = self._filled(group)
        self._groups = [other for other in self._groups if not other & group] + [group]

    def merge(self, maker: int, reader: int) -> None:
        """Unite the groups of two nodes, where nothing outside lies between."""
        of_maker, of_reader = (
            next((group for group in self._groups if group >> at & 1), 0) for at in (maker, reader)
        )
        both = of_maker | of_reader
        if of_maker and of_reader and of_maker != of_reader and self._filled(both) == both:
            self._groups = [group for group in self._groups if not group & both] + [both]

    def _filled(self, group: int) -> int:
        """With the nodes on paths from some to some."""
        return group | (self._reached(group, self._behind) & self._reached(group, self._before))

    def _reached(self, group: int, steps: Sequence[int]) -> int:
        """What paths from a group lead to; a group that a path enters is passed as a whole."""
        reached, sources = 0, group
        while sources:
            for at in _numbers(sources):
                reached |= steps[at]
            entered = sum(other for other in self._groups if other & reached and other & ~reached)
            sources = entered & ~reached
            reached |= entered
        return reached


def _numbers(bits: int) -> list[int]:
    return [at for at, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]
