"""Rewrites of the graph that leave its outputs as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from codl.graph.graph import Graph, Node

#: Nodes that hand their first input on: Dropout at inference, Cast to a float (all is float32).
ALIASES = ("Identity", "Dropout", "Cast")
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
#: Nodes that only rename the axes of a contiguous tensor.
RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
#: What accepts a flattened input as it is.
FLAT_CONSUMERS = ("Gemm", "MatMul")


def simplify(graph: Graph) -> Graph:
    """Drop what computes nothing."""
    return drop_reshapes(drop_aliases(graph))


def drop_aliases(graph: Graph) -> Graph:
    gone = {n.outputs[0]: n.inputs[0] for n in graph.nodes if is_alias(graph, n)}
    return _rename(graph, gone)


def is_alias(graph: Graph, node: Node) -> bool:
    """Whether a node's output is its first input, and no other output is wanted."""
    if node.type == "Cast":
        return node.attributes["to"] in FLOATS
    if node.type == "Dropout" and len(node.inputs) > 2:
        training = graph.constants.get(node.inputs[2], np.ones(1))
        if training.any():
            return False
    return node.type in ALIASES and not any(graph.is_read(name) for name in node.outputs[1:])


def drop_reshapes(graph: Graph) -> Graph:
    """Drop reshapes in front of fully connected layers and of the graph's outputs.

    Both read a contiguous nchw tensor, whatever its axes are called. What is dropped at an output
    is put back by whoever hands the output out, from the shape that the graph declares for it.
    """
    gone = {}
    for node in graph.nodes:
        readers = graph.consumers(node.outputs[0])
        flat = all(reader.type in FLAT_CONSUMERS for reader in readers)
        if node.type in RESHAPES and flat:
            gone[node.outputs[0]] = node.inputs[0]
    return _rename(graph, gone)


def _rename(graph: Graph, gone: Mapping[str, str]) -> Graph:
    """Remove the nodes that make the keys of `gone`; readers get the values instead."""

    def source(tensor: str) -> str:
        while tensor in gone:
            tensor = gone[tensor]
        return tensor

    kept = [n for n in graph.nodes if n.outputs[0] not in gone]
    nodes = tuple(replace(n, inputs=tuple(source(i) for i in n.inputs)) for n in kept)
    return replace(graph, nodes=nodes, aliases={**graph.aliases, **{k: source(k) for k in gone}})
