"""Graph passes that keep outputs: removal of aliases and reshapes, wider products."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from codl.frontend.graph.graph import Draft, Graph, GraphView, Rewrite
from codl.ir.onnx_node import Node

#: Nodes that return their first input: Dropout at inference, Cast to a float (all are float32).
ALIASES = ("Identity", "Dropout", "Cast")
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
#: Nodes that only change the axes of a contiguous tensor.
RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
#: Nodes that accept an unflattened input.
FLAT_CONSUMERS = ("Gemm", "MatMul")


def drop_aliases(graph: Graph) -> Graph:
    """Drop nodes that return their first input."""
    return _without(graph, [node for node in graph.nodes if is_alias(graph, node)])


def _without(graph: Graph, nodes: Iterable[Node]) -> Graph:
    """The graph without some nodes; readers get the nodes' inputs instead."""
    draft = Draft(graph)
    for node in nodes:
        tensor = node.outputs[0]
        draft.drop(tensor, draft.makers[tensor].inputs[0])
    return draft.graph


def is_alias(graph: Graph, node: Node) -> bool:
    """Whether a node's output is its first input, and no other output is read."""
    if node.type == "Cast":
        return node.attributes["to"] in FLOATS
    if node.type == "Dropout" and len(node.inputs) > 2:
        training = graph.constants.get(node.inputs[2], np.ones(1))
        if training.any():
            return False
    return node.type in ALIASES and not any(graph.is_read(name) for name in node.outputs[1:])


def drop_reshapes(graph: Graph) -> Graph:
    """Drop reshapes to one row per image before fully connected layers and outputs.

    Both read contiguous nchw tensors with any axes. Outputs get the graph's declared shape when
    they are returned.
    """
    gone = [
        node
        for node in graph.nodes
        if node.type in RESHAPES
        and all(_reads_one_row(graph, each, node) for each in graph.consumers(node.outputs[0]))
    ]
    return _without(graph, gone)


def _reads_one_row(graph: Graph, reader: Node, reshape: Node) -> bool:
    """Whether a node multiplies a reshape's result, one row per image, by a constant."""
    tensor, before = reshape.outputs[0], graph.shapes.get(reshape.inputs[0], ())
    sizes = graph.shapes.get(tensor, ())
    images = graph.rows_of_images(sizes, sizes[-1]) if sizes else 0
    return (
        reader.type in FLAT_CONSUMERS
        and reader.inputs[1] in graph.constants
        and tensor not in reader.inputs[1:]
        and not reader.attributes.get("transA", 0)
        and len(sizes) > 1
        and (images == 1 or (images > 1 and before[0] == images))
    )


def widen_products(graph: Graph) -> Graph:
    """Replace Gemm nodes between reshapes by MatMul nodes with more axes.

    ONNX Runtime writes a product of tokens and its bias so. MatMul nodes may have a bias here.
    """
    draft = Draft(graph)
    for output in [node.outputs[0] for node in graph.nodes if node.type == "Gemm"]:
        _widen(draft, draft.makers[output])
    return draft.graph


def _widen(draft: Draft, gemm: Node) -> None:
    before, output = draft.makers.get(gemm.inputs[0]), gemm.outputs[0]
    readers = draft.consumers(output)
    if before is None or not readers or draft.is_handed_out(output) or not _is_plain(draft, gemm):
        return
    inner, matrix = draft.shapes.get(before.inputs[0], ()), draft.shapes[gemm.inputs[1]]
    outer = draft.shapes.get(readers[0].outputs[0], ())
    if not {before.type, *(reader.type for reader in readers)} <= set(RESHAPES):
        return
    if len(inner) > 2 and inner[-1:] == matrix[:1]:
        _replace_by_product(draft, gemm, before.inputs[0], (*inner[:-1], matrix[1]))
        return
    x = before.outputs[0]
    if draft.reader_of(x) is not None and len(outer) > 2 and outer[-1:] == matrix[1:]:
        draft.shapes[x] = (*outer[:-1], matrix[0])
        _replace_by_product(draft, gemm, x, outer)


def _replace_by_product(draft: Draft, gemm: Node, x: str, sizes: tuple[int, ...]) -> None:
    """Write the product of x under its own sizes; drop reshapes without effect."""
    output = gemm.outputs[0]
    made = Node(gemm.name, "MatMul", (x, *gemm.inputs[1:]), gemm.outputs)
    draft.rewrite(Rewrite(gemm, [made], shapes={output: sizes}))
    for reader in draft.consumers(output):
        if draft.shapes[reader.outputs[0]] == sizes:
            draft.drop(reader.outputs[0], output)


def _is_plain(graph: GraphView, gemm: Node) -> bool:
    """Whether a Gemm multiplies by a constant and adds a bias, without transposes and factors."""
    turned = any(gemm.attributes.get(name, 0) for name in ("transA", "transB"))
    scaled = any(gemm.attributes.get(name, 1.0) != 1 for name in ("alpha", "beta"))
    if turned or scaled or any(name not in graph.constants for name in gemm.inputs[1:]):
        return False
    columns = graph.shapes[gemm.inputs[1]][1]
    return all(graph.shapes[name] == (columns,) for name in gemm.inputs[2:])


def merge_reshapes(graph: Graph) -> Graph:
    """Merge reshapes into neighbouring transposes, as in channel shuffles and attention heads.

    A merged transpose views its input under its attribute `axes`; its output may have any sizes.
    """
    draft = Draft(graph)
    for node in [node for node in graph.nodes if node.type == "Transpose"]:
        after = draft.reader_of(node.outputs[0])
        if after is not None and after.type in RESHAPES:
            merged = replace(node, outputs=after.outputs)
            draft.rewrite(Rewrite(node), Rewrite(after, [merged]))
            node = merged
        before = draft.makers.get(node.inputs[0])
        if before is None or before.type not in RESHAPES or before.inputs[0] in draft.constants:
            continue
        has_shape = before.outputs[0] in draft.shapes
        if has_shape and draft.reader_of(before.outputs[0]) is node:
            seen = {**node.attributes, "axes": draft.shapes[before.outputs[0]]}
            merged = replace(node, inputs=before.inputs[:1], attributes=seen)
            draft.rewrite(Rewrite(before), Rewrite(node, [merged]))
    return draft.graph
