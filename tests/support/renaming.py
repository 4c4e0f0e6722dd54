"""Models whose tensors, and those of graphs inside of nodes, have other names."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

import onnx


def renamed(proto: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    """A model with other names for some tensors."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    _rename(copy.graph, names)
    return copy


def renamed_node(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A node that reads and makes tensors of other names."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    _rename_of_node(copy, names)
    return copy


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    sparse = (item.values for item in graph.sparse_initializer)
    infos = (graph.input, graph.output, graph.value_info, graph.initializer, sparse)
    for item in chain(*infos):
        item.name = names.get(item.name, item.name)
    for node in graph.node:
        _rename_of_node(node, names)


def _rename_of_node(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    for field in (node.input, node.output):
        field[:] = [names.get(name, name) for name in field]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            _rename(graph, names)
