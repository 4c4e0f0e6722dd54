"""From graph nodes to operators: what each ONNX node means, and activations fused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from codl.errors import UnsupportedError
from codl.graph import Graph, Node
from codl.ops.base import Activation, Op, Pad, Weights
from codl.ops.concat import Concat
from codl.ops.conv2d import Conv2d
from codl.ops.fully_connected import FullyConnected
from codl.ops.network import Layer, Network, as_nchw
from codl.ops.pool2d import Pool2d
from codl.ops.region import Shape
from codl.ops.window import Size2

Lowered = tuple[Op, Weights]


def lower(graph: Graph) -> Network:
    """Make a network of a graph; raises `UnsupportedError` with the node that has no operator."""
    layers: dict[str, Layer] = {}
    fused: dict[str, str] = {}
    for node in graph.nodes:
        inputs = tuple(fused.get(i, i) for i in node.inputs if i and i not in graph.constants)
        output = node.outputs[0]
        if node.type in ACTIVATIONS:
            producer = _fusible(graph, node, layers.get(inputs[0]))
            op = producer.op.with_activation(ACTIVATIONS[node.type](graph, node))
            layers[producer.output] = replace(producer, op=op)
            fused[output] = producer.output
            continue
        if node.type not in LOWERINGS:
            raise _unsupported(node, f"codl has no operator for it (known: {_known()}).")
        _check_batch(graph, node)
        op, weights = LOWERINGS[node.type](graph, node)
        layers[output] = Layer(node.name, op, inputs, output, weights)
    return _network(graph, tuple(layers.values()), fused)


def _network(graph: Graph, layers: tuple[Layer, ...], fused: dict[str, str]) -> Network:
    inputs = {name: as_nchw(graph.shapes[name]) for name in graph.inputs}
    outputs = {}
    for name in graph.outputs:
        held = graph.aliases.get(name, name)
        outputs[name] = (fused.get(held, held), graph.shapes[name])
    return Network(graph.name, layers, inputs, outputs)


def _fusible(graph: Graph, node: Node, producer: Layer | None) -> Layer:
    before = node.inputs[0]
    shared = len(graph.consumers(before)) > 1 or before in graph.outputs
    if producer is None or shared or producer.op.activation.kind != "none":
        raise _unsupported(
            node, "an activation must directly follow one operator, its only reader."
        )
    return producer


def _conv(graph: Graph, node: Node) -> Lowered:
    weight = graph.constant(node.inputs[1])
    oc = weight.shape[0]
    if weight.ndim != 4:
        raise _unsupported(node, f"only 2-D convolution is known; the weight is {weight.shape}.")
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(oc, np.float32)
    op = Conv2d(
        inputs=(_input(graph, node),),
        out_channels=oc,
        groups=int(node.attributes.get("group", 1)),
        **_window(graph, node, Size2(*weight.shape[2:])),
    )
    return op, {"weight": weight, "bias": bias}


def _pool(mode: str) -> Callable[[Graph, Node], Lowered]:
    def lowering(graph: Graph, node: Node) -> Lowered:
        window = _window(graph, node, Size2(*node.attributes["kernel_shape"]))
        count_pad = bool(node.attributes.get("count_include_pad", 0))
        op = Pool2d(inputs=(_input(graph, node),), mode=mode, count_pad=count_pad, **window)  # type: ignore[arg-type]
        if node.attributes.get("ceil_mode", 0):
            op = _round_up(graph, node, op)
        return op, {}

    return lowering


def _round_up(graph: Graph, node: Node, op: Pool2d) -> Pool2d:
    """Write `ceil_mode` as padding at the bottom and right."""
    if op.mode == "avg" and op.count_pad:
        raise _unsupported(node, "ceil_mode together with count_include_pad is not known.")
    wanted = as_nchw(graph.shapes[node.outputs[0]])
    missing_h = (wanted.h - 1) * op.stride.h + op.extent.h - op.input.h - op.pad.top
    missing_w = (wanted.w - 1) * op.stride.w + op.extent.w - op.input.w - op.pad.left
    bottom, right = max(missing_h, op.pad.bottom), max(missing_w, op.pad.right)
    return replace(op, pad=op.pad._replace(bottom=bottom, right=right))


def _global_pool(mode: str) -> Callable[[Graph, Node], Lowered]:
    def lowering(graph: Graph, node: Node) -> Lowered:
        shape = _input(graph, node)
        return Pool2d(inputs=(shape,), mode=mode, kernel=Size2(shape.h, shape.w)), {}  # type: ignore[arg-type]

    return lowering


def _gemm(graph: Graph, node: Node) -> Lowered:
    wanted = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    for key, value in wanted.items():
        if node.attributes.get(key, value) != value:
            raise _unsupported(node, f"{key} must be {value:g}, got {node.attributes[key]}.")
    if node.inputs[1] not in graph.constants:
        raise _unsupported(node, "the second matrix must be a constant.")
    matrix = graph.constant(node.inputs[1])
    weight = matrix if node.attributes.get("transB", 0) else matrix.T
    oc = weight.shape[0]
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(oc, np.float32)
    weights = {
        "weight": np.ascontiguousarray(weight),
        "bias": np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), (oc,))),
    }
    return FullyConnected(inputs=(_input(graph, node),), out_channels=oc), weights


def _concat(graph: Graph, node: Node) -> Lowered:
    shapes = tuple(as_nchw(graph.shapes[name]) for name in node.inputs)
    axis = int(node.attributes["axis"])
    rank = len(graph.shapes[node.inputs[0]])
    if axis % rank != 1 or any(name in graph.constants for name in node.inputs):
        raise _unsupported(node, f"only tensors, and along the channels (axis 1), got axis {axis}.")
    return Concat(inputs=shapes), {}


def _window(graph: Graph, node: Node, kernel: Size2) -> dict[str, Any]:
    """Kernel, stride, dilation and explicit padding of a convolution or pooling node."""
    stride = Size2(*node.attributes.get("strides", (1, 1)))
    dilation = Size2(*node.attributes.get("dilations", (1, 1)))
    pads = node.attributes.get("pads", (0, 0, 0, 0))
    auto = node.attributes.get("auto_pad", b"NOTSET").decode()
    if auto.startswith("SAME"):
        shape = _input(graph, node)
        pads = _same_pads(Size2(shape.h, shape.w), kernel, stride, dilation, auto == "SAME_LOWER")
    return {"kernel": kernel, "stride": stride, "dilation": dilation, "pad": Pad(*pads)}


def _same_pads(
    size: Size2, kernel: Size2, stride: Size2, dilation: Size2, lower: bool
) -> tuple[int, int, int, int]:
    totals = [
        max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, k, s, d in zip(size, kernel, stride, dilation, strict=True)
    ]
    small = [t // 2 for t in totals]
    large = [t - t // 2 for t in totals]
    first, last = (large, small) if lower else (small, large)
    return first[0], first[1], last[0], last[1]


def _input(graph: Graph, node: Node) -> Shape:
    return as_nchw(graph.shapes[node.inputs[0]])


def _leaky(graph: Graph, node: Node) -> Activation:
    return Activation("leaky_relu", round(float(node.attributes.get("alpha", 0.01)), 7))


def _clip(graph: Graph, node: Node) -> Activation:
    """Bounds are attributes up to opset 6 and inputs after it."""
    bounds = [node.attributes.get("min", -np.inf), node.attributes.get("max", np.inf)]
    for index, name in enumerate(node.inputs[1:3]):
        if name:
            bounds[index] = graph.constant(name).item()
    limit = float(np.finfo(np.float32).max)
    low, high = (float(np.clip(bound, -limit, limit)) for bound in bounds)
    return Activation("clip", low, high)


def _check_batch(graph: Graph, node: Node) -> None:
    batch = as_nchw(graph.shapes[node.outputs[0]]).n
    if batch != 1:
        raise _unsupported(node, f"the batch must be 1, got {batch}.")


def _unsupported(node: Node, reason: str) -> UnsupportedError:
    return UnsupportedError(f"The node {node.name!r} ({node.type}): {reason}")


def _known() -> str:
    return ", ".join(sorted([*LOWERINGS, *ACTIVATIONS]))


LOWERINGS: dict[str, Callable[[Graph, Node], Lowered]] = {
    "AveragePool": _pool("avg"),
    "Concat": _concat,
    "Conv": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_pool("avg"),
    "GlobalMaxPool": _global_pool("max"),
    "MatMul": _gemm,
    "MaxPool": _pool("max"),
}
ACTIVATIONS: dict[str, Callable[[Graph, Node], Activation]] = {
    "Clip": _clip,
    "LeakyRelu": _leaky,
    "Relu": lambda graph, node: Activation("relu"),
}
