"""What a model is made of, in a few numbers; without ONNX, so that results can say it anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

    from codl.frontend.models.builder import ModelBuilder


@dataclass(frozen=True)
class Summary:
    """Inputs and outputs by name, the numbers of weights and of nodes by type, and the work.

    `gflops` counts two for every multiply-add of convolutions and matrix products.
    """

    name: str
    inputs: Mapping[str, tuple[int, ...]]
    outputs: Mapping[str, tuple[int, ...]]
    parameters: int
    gflops: float
    nodes: Mapping[str, int]


def summary(builder: ModelBuilder) -> Summary:
    graph, shapes = builder.build().graph, builder.shapes
    return Summary(
        name=builder.name,
        inputs={name: shapes[name] for name in builder.inputs},
        outputs={info.name: shapes[info.name] for info in graph.output},
        parameters=builder.parameters,
        gflops=sum(_flops(node, shapes) for node in graph.node) / 1e9,
        nodes=dict(Counter(node.op_type for node in graph.node).most_common()),
    )


def _flops(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Two for every multiply-add; 0 for what is neither a convolution nor a product."""
    out = prod(shapes[node.output[0]])
    if node.op_type == "Conv":  # (out, in / groups, rows, columns): what each output sums up
        return 2 * out * prod(shapes[node.input[1]][1:])
    if node.op_type == "ConvTranspose":  # each input goes to (out, rows, columns)
        return 2 * prod(shapes[node.input[0]]) * prod(shapes[node.input[1]][1:])
    if node.op_type in ("Gemm", "MatMul"):
        return 2 * out * shapes[node.input[0]][-1]
    return 0
