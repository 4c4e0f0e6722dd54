"""Rewrites of the graph that leave its outputs as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from onnx import TensorProto

from codl.frontend.graph.graph import Graph, Rewrite
from codl.ir.onnx_node import Node

#: Nodes that hand their first input on: Dropout at inference, Cast to a float (all is float32).
ALIASES = ("Identity", "Dropout", "Cast")
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
#: Nodes that only rename the axes of a contiguous tensor.
RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
#: What accepts a flattened input as it is.
FLAT_CONSUMERS = ("Gemm", "MatMul")


def drop_aliases(graph: Graph) -> Graph:
    gone = {n.outputs[0]: n.inputs[0] for n in graph.nodes if is_alias(graph, n)}
    return rename(graph, gone)


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
    """Drop reshapes to one row (of each image) in front of fully connected layers, and of outputs.

    Both read a contiguous nchw tensor, whatever its axes are called. What is dropped at an output
    is put back where the output is handed out, from the shape that the graph declares for it.
    """
    gone = {}
    for node in graph.nodes:
        if node.type not in RESHAPES:
            continue
        readers = graph.consumers(node.outputs[0])
        if all(_reads_one_row(graph, reader, node) for reader in readers):
            gone[node.outputs[0]] = node.inputs[0]
    return rename(graph, gone)


def _reads_one_row(graph: Graph, reader: Node, reshape: Node) -> bool:
    """Whether a node multiplies what a reshape makes, one row of each image, with a constant."""
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
    """Let products of rows with a constant see the axes that a reshape hides in front of them.

    ONNX Runtime writes a product of tokens, and its bias, as a Gemm between two reshapes. Such a
    node becomes a MatMul, which has a bias here.
    """
    for gemm in [node for node in graph.nodes if node.type == "Gemm"]:
        before, output = graph.makers.get(gemm.inputs[0]), gemm.outputs[0]
        readers = graph.consumers(output)
        if (
            before is None
            or not readers
            or graph.is_handed_out(output)
            or not _is_plain(graph, gemm)
        ):
            continue
        inner, matrix = graph.shapes.get(before.inputs[0], ()), graph.shapes[gemm.inputs[1]]
        outer = graph.shapes.get(readers[0].outputs[0], ())
        if not {before.type, *(reader.type for reader in readers)} <= set(RESHAPES):
            continue
        if len(inner) > 2 and inner[-1:] == matrix[:1]:
            graph = _widened(graph, gemm, before.inputs[0], (*inner[:-1], matrix[1]))
            continue
        x = before.outputs[0]
        if graph.reader_of(x) is not None and len(outer) > 2 and outer[-1:] == matrix[1:]:
            graph = replace(graph, shapes={**graph.shapes, x: (*outer[:-1], matrix[0])})
            graph = _widened(graph, gemm, x, outer)
    return graph


def _widened(graph: Graph, gemm: Node, x: str, sizes: tuple[int, ...]) -> Graph:
    """The product of x under its own sizes; reshapes that then change nothing go."""
    output = gemm.outputs[0]
    made = Node(gemm.name, "MatMul", (x, *gemm.inputs[1:]), gemm.outputs)
    same = {n.outputs[0] for n in graph.consumers(output) if graph.shapes[n.outputs[0]] == sizes}
    graph = graph.rewritten(Rewrite(gemm, [made], shapes={output: sizes}))
    return rename(graph, dict.fromkeys(same, output))


def _is_plain(graph: Graph, gemm: Node) -> bool:
    """Whether a Gemm is a product with constants, neither turned nor scaled, and a bias."""
    turned = any(gemm.attributes.get(name, 0) for name in ("transA", "transB"))
    scaled = any(gemm.attributes.get(name, 1.0) != 1 for name in ("alpha", "beta"))
    if turned or scaled or any(name not in graph.constants for name in gemm.inputs[1:]):
        return False
    columns = graph.shapes[gemm.inputs[1]][1]
    return all(graph.shapes[name] == (columns,) for name in gemm.inputs[2:])


def merge_reshapes(graph: Graph) -> Graph:
    """Let transposes do the reshapes beside them: channel shuffles, attention heads and the like.

    Such a transpose sees its input under the sizes of its attribute `axes`, and its output may have
    any sizes.
    """
    for node in [node for node in graph.nodes if node.type == "Transpose"]:
        after = graph.reader_of(node.outputs[0])
        if after is not None and after.type in RESHAPES:
            merged = replace(node, outputs=after.outputs)
            graph = graph.rewritten(Rewrite(node), Rewrite(after, [merged]))
            node = merged
        before = graph.makers.get(node.inputs[0])
        if before is None or before.type not in RESHAPES or before.inputs[0] in graph.constants:
            continue
        has_shape = before.outputs[0] in graph.shapes
        if has_shape and graph.reader_of(before.outputs[0]) is node:
            seen = {**node.attributes, "axes": graph.shapes[before.outputs[0]]}
            merged = replace(node, inputs=before.inputs[:1], attributes=seen)
            graph = graph.rewritten(Rewrite(before), Rewrite(node, [merged]))
    return graph


def rename(graph: Graph, gone: Mapping[str, str]) -> Graph:
    """Remove the nodes that make the keys of `gone`; readers get the values instead."""

    def source(tensor: str) -> str:
        while tensor in gone:
            tensor = gone[tensor]
        return tensor

    kept = [n for n in graph.nodes if n.outputs[0] not in gone]
    nodes = tuple(replace(n, inputs=tuple(source(i) for i in n.inputs)) for n in kept)
    # What another pass removed may stand for what is removed now.
    earlier = {name: source(held) for name, held in graph.aliases.items()}
    return replace(graph, nodes=nodes, aliases=earlier | {name: source(name) for name in gone})
