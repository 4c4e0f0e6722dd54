"""Convolution and pooling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from codl.graph import Graph, Node
from codl.ops.base import Pad
from codl.ops.conv2d import Conv2d
from codl.ops.lowerings.base import Lowering, Step, input_shape, unsupported
from codl.ops.pool2d import Pool2d
from codl.ops.region import as_nchw
from codl.ops.window import Size2


def _conv(graph: Graph, node: Node) -> list[Step]:
    weight = graph.constant(node.inputs[1])
    oc = weight.shape[0]
    if weight.ndim != 4:
        raise unsupported(node, f"only 2-D convolution is known; the weight is {weight.shape}.")
    bias = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else np.zeros(oc, np.float32)
    op = Conv2d(
        inputs=(input_shape(graph, node),),
        out_channels=oc,
        groups=int(node.attributes.get("group", 1)),
        **_window(graph, node, Size2(*weight.shape[2:])),
    )
    return [Step(op, node.inputs[:1], node.outputs[0], {"weight": weight, "bias": bias})]


def _pool(mode: str) -> Lowering:
    def lowering(graph: Graph, node: Node) -> list[Step]:
        window = _window(graph, node, Size2(*node.attributes["kernel_shape"]))
        count_pad = bool(node.attributes.get("count_include_pad", 0))
        op = Pool2d(inputs=(input_shape(graph, node),), mode=mode, count_pad=count_pad, **window)  # type: ignore[arg-type]
        if node.attributes.get("ceil_mode", 0):
            op = _round_up(graph, node, op)
        return [Step(op, node.inputs[:1], node.outputs[0])]

    return lowering


def _round_up(graph: Graph, node: Node, op: Pool2d) -> Pool2d:
    """Write `ceil_mode` as padding at the bottom and right."""
    if op.mode == "avg" and op.count_pad:
        raise unsupported(node, "ceil_mode together with count_include_pad is not known.")
    wanted = as_nchw(graph.shapes[node.outputs[0]])
    missing_h = (wanted.h - 1) * op.stride.h + op.extent.h - op.input.h - op.pad.top
    missing_w = (wanted.w - 1) * op.stride.w + op.extent.w - op.input.w - op.pad.left
    bottom, right = max(missing_h, op.pad.bottom), max(missing_w, op.pad.right)
    return replace(op, pad=op.pad._replace(bottom=bottom, right=right))


def _global_pool(mode: str) -> Lowering:
    def lowering(graph: Graph, node: Node) -> list[Step]:
        shape = input_shape(graph, node)
        op = Pool2d(inputs=(shape,), mode=mode, kernel=Size2(shape.h, shape.w))  # type: ignore[arg-type]
        return [Step(op, node.inputs[:1], node.outputs[0])]

    return lowering


def _window(graph: Graph, node: Node, kernel: Size2) -> dict[str, Any]:
    """Kernel, stride, dilation and explicit padding of a convolution or pooling node."""
    stride = Size2(*node.attributes.get("strides", (1, 1)))
    dilation = Size2(*node.attributes.get("dilations", (1, 1)))
    pads = node.attributes.get("pads", (0, 0, 0, 0))
    auto = node.attributes.get("auto_pad", b"NOTSET").decode()
    if auto.startswith("SAME"):
        shape = input_shape(graph, node)
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


LOWERINGS: Mapping[str, Lowering] = {
    "AveragePool": _pool("avg"),
    "Conv": _conv,
    "GlobalAveragePool": _global_pool("avg"),
    "GlobalMaxPool": _global_pool("max"),
    "MaxPool": _pool("max"),
}

PARAMETERS: Mapping[str, tuple[int, ...]] = {"Conv": (1, 2)}
