from __future__ import annotations

from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    converts,
    input_shape,
    number,
    unsupported,
)
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node

from .op import Lrn


@converts("LRN")
def lrn(graph: Graph, node: Node) -> list[ConvertedOp]:
    op = Lrn(
        inputs=(input_shape(graph, node),),
        size=int(attribute(node, "size", 1)),
        alpha=number(attribute(node, "alpha", 1e-4)),
        beta=number(attribute(node, "beta", 0.75)),
        bias=number(attribute(node, "bias", 1.0)),
    )
    if op.problem is not None:
        raise unsupported(node, op.problem)
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]
