"""A group of a graph's nodes as an ONNX model of its own, and as the layer that runs it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from codl.errors import UnsupportedError
from codl.frontend.converters.base import ConvertedOp
from codl.frontend.graph.graph import Graph
from codl.frontend.graph.integer_products import with_own_constants
from codl.frontend.graph.passes import FLOATS
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
