"""Nodes that compute constants of constants, and that ONNX Runtime leaves where they are.

It does not fold nodes that dequantise, have graphs, or make tensors that have no size before a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from codl.frontend.graph.graph import Graph
from codl.frontend.graph.integer_products import reference_session
from codl.frontend.graph.plain_form import LEAST_IR_VERSION, all_graphs
from codl.frontend.graph.weights import Model
from codl.ir.onnx_node import Node

#: Types of nodes that draw numbers, some of them in training alone.
CHANCE = frozenset(
    ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
     "RandomUniformLike")
)  # fmt: skip


def fold_constants(graph: Graph) -> Graph:
    """The graph with constants in the place of such nodes, where ONNX Runtime computes them."""
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
