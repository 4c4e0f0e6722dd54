"""Rewrites of the graph that leave its outputs as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from codl.graph.graph import Graph

#: Nodes that hand their first input on; Dropout is one at inference.
ALIASES = ("Identity", "Dropout")
#: Nodes that only rename the axes of a contiguous tensor.
RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
#: What accepts a flattened input as it is.
FLAT_CONSUMERS = ("Gemm", "MatMul")


def simplify(graph: Graph) -> Graph:
    """Drop what computes nothing."""
    return drop_reshapes(drop_aliases(graph))


def drop_aliases(graph: Graph) -> Graph:
    gone = {n.outputs[0]: n.inputs[0] for n in graph.nodes if n.type in ALIASES}
    return _rename(graph, gone)


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
