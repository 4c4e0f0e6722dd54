"""Fully connected layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from codl.graph import Graph, Node
from codl.ops.fully_connected import FullyConnected
from codl.ops.lowerings.base import Lowering, Step, input_shape, unsupported


def _gemm(graph: Graph, node: Node) -> list[Step]:
    wanted = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    for key, value in wanted.items():
        if node.attributes.get(key, value) != value:
            raise unsupported(node, f"{key} must be {value:g}, got {node.attributes[key]}.")
    if node.inputs[1] not in graph.constants:
        raise unsupported(node, "the second matrix must be a constant.")
    matrix = graph.constant(node.inputs[1])
    weight = matrix if node.attributes.get("transB", 0) else matrix.T
    oc = weight.shape[0]
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(oc, np.float32)
    weights = {
        "weight": np.ascontiguousarray(weight),
        "bias": np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (oc,))),
    }
    op = FullyConnected(inputs=(input_shape(graph, node),), out_channels=oc)
    return [Step(op, node.inputs[:1], node.outputs[0], weights)]


LOWERINGS: Mapping[str, Lowering] = {
    "Gemm": _gemm,
    "MatMul": _gemm,
}
