"""Converters of convolution, transposed convolution and pooling, over 1 or 2 spatial axes.

A single axis becomes rows, with one column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np

from codl.errors import CodlError
from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    converts,
    has_input,
    input_shape,
    unsupported,
)
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Pad
from codl.ir.ops.convolution import Conv2d, ConvTranspose2d
from codl.ir.ops.nd import Sizes
from codl.ir.ops.window import Pool2d, Size2
from codl.ir.region import as_nchw


@dataclass(frozen=True)
class OnnxWindow:
    """A sliding window by spatial axis; `after` exceeds `declared` padding in rounded-up sizes."""

    sizes: Sizes
    to: Sizes
    kernel: Sizes
    stride: Sizes
    dilation: Sizes
    before: Sizes
    after: Sizes
    declared: Sizes

    @classmethod
    def of(cls, graph: Graph, node: Node, kernel: Sizes) -> OnnxWindow:
        sizes = tuple(graph.shapes[node.inputs[0]][2:])
        to = tuple(graph.shapes[node.outputs[0]][2:])
        rank = len(sizes)
        _check_rank(node, rank)
        stride = _ints(node, "strides", (1,) * rank)
        dilation = _ints(node, "dilations", (1,) * rank)
        extent = tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True))
        axes = zip(to, stride, extent, sizes, strict=True)
        needed = [(out - 1) * step + e - n for out, step, e, n in axes]
        before, declared = _pads(node, [max(total, 0) for total in needed])
        after = declared
        if attribute(node, "ceil_mode", 0):
            after = tuple(max(total - b, 0) for total, b in zip(needed, before, strict=True))
        reach = tuple(map(sum, zip(sizes, before, after, strict=True)))
        if any(n < e for n, e in zip(reach, extent, strict=True)):
            raise unsupported(node, f"a window of {extent} is larger than all of {reach}.")
        return cls(sizes, to, kernel, stride, dilation, before, after, declared)

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of a two-dimensional op."""
        (top, left), (bottom, right) = _pair(self.before, 0), _pair(self.after, 0)
        return {
            "kernel": Size2(*_pair(self.kernel, 1)),
            "stride": Size2(*_pair(self.stride, 1)),
            "dilation": Size2(*_pair(self.dilation, 1)),
            "pad": Pad(top, left, bottom, right),
        }

    @property
    def misses(self) -> bool:
        """Whether a window lies in padding alone."""
        for axis, size in enumerate(self.sizes):
            starts = np.arange(self.to[axis]) * self.stride[axis] - self.before[axis]
            taps = starts[:, None] + np.arange(self.kernel[axis]) * self.dilation[axis]
            if not ((taps >= 0) & (taps < size)).any(1).all():
                return True
        return False


def _check_rank(node: Node, rank: int) -> None:
    if rank not in (1, 2):
        raise unsupported(node, f"1 or 2 spatial axes are known, got {rank}.")


def _pair(values: Sizes, missing: int) -> tuple[int, int]:
    first, second = (*values, missing)[:2]
    return first, second


def _ints(node: Node, name: str, default: Sizes) -> Sizes:
    return tuple(int(value) for value in attribute(node, name, None) or default)


def _pads(node: Node, needed: Sequence[int]) -> tuple[Sizes, Sizes]:
    """Padding in front and behind; `needed` are the totals that a SAME output needs."""
    auto, rank = attribute(node, "auto_pad", "NOTSET"), len(needed)
    if auto.startswith("SAME"):
        small = tuple(total // 2 for total in needed)
        large = tuple(total - total // 2 for total in needed)
        return (large, small) if auto == "SAME_LOWER" else (small, large)
    none = (0,) * (2 * rank)
    pads = _ints(node, "pads", none) if auto == "NOTSET" else none
    return pads[:rank], pads[rank:]


@converts("Conv", parameters=(1, 2))
def _conv(graph: Graph, node: Node) -> list[ConvertedOp]:
    weight = graph.constant(node.inputs[1])
    oc = weight.shape[0]
    bias = graph.constant(node.inputs[2]) if has_input(node, 2) else np.zeros(oc, np.float32)
    window = OnnxWindow.of(graph, node, tuple(weight.shape[2:]))
    groups = int(attribute(node, "group", 1))
    _check_channels(graph, node, weight.shape[1] * groups)
    shape = input_shape(graph, node)
    op = Conv2d(inputs=(shape,), out_channels=oc, groups=groups, **window.fields)
    weights = {"weight": weight.reshape(*weight.shape[:2], *op.kernel), "bias": bias}
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0], weights)]


def _check_channels(graph: Graph, node: Node, wanted: int) -> None:
    channels = graph.shapes[node.inputs[0]][1]
    if channels != wanted:
        raise CodlError(
            f"The node {node.name!r} ({node.type}): its weights are for {wanted} input channels, "
            f"its input has {channels}."
        )


@converts("ConvTranspose", parameters=(1, 2))
def _conv_transpose(graph: Graph, node: Node) -> list[ConvertedOp]:
    """Transposed convolution; ONNX's weights have input channels first."""
    weight = graph.constant(node.inputs[1])
    rank, shape = weight.ndim - 2, input_shape(graph, node)
    _check_rank(node, rank)
    groups, kernel = int(attribute(node, "group", 1)), tuple(weight.shape[2:])
    _check_channels(graph, node, weight.shape[0])
    oc = weight.shape[1] * groups
    bias = graph.constant(node.inputs[2]) if has_input(node, 2) else np.zeros(oc, np.float32)
    grouped = weight.reshape(groups, shape.c // groups, -1, *kernel).swapaxes(1, 2)
    size = as_nchw(tuple(graph.shapes[node.outputs[0]]))
    op = ConvTranspose2d(
        inputs=(shape,),
        out_channels=oc,
        groups=groups,
        size=Size2(size.h, size.w),
        kernel=Size2(*_pair(kernel, 1)),
        stride=Size2(*_pair(_ints(node, "strides", (1,) * rank), 1)),
        dilation=Size2(*_pair(_ints(node, "dilations", (1,) * rank), 1)),
        crop=Size2(*_pair(_crop(graph, node, kernel), 0)),
    )
    filters = np.ascontiguousarray(grouped).reshape(oc, shape.c // groups, *op.kernel)
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0], {"weight": filters, "bias": bias})]


def _crop(graph: Graph, node: Node, kernel: Sizes) -> Sizes:
    """Rows and columns of the full result before the output.

    An output of a given size lies in the middle; an odd remainder is cropped in front with
    SAME_LOWER, else behind. The excess of a larger output lies behind, as in ONNX Runtime.
    """
    rank = len(kernel)
    stride, dilation = _ints(node, "strides", (1,) * rank), _ints(node, "dilations", (1,) * rank)
    more = _ints(node, "output_padding", (0,) * rank)
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID") and not attribute(node, "output_shape", None):
        return _pads(node, [0] * rank)[0]
    sizes, to = graph.shapes[node.inputs[0]][2:], graph.shapes[node.outputs[0]][2:]
    axes = zip(sizes, to, kernel, stride, dilation, more, strict=True)
    totals = [max(s * (n - 1) + m + (k - 1) * d + 1 - out, 0) for n, out, k, s, d, m in axes]
    if auto == "SAME_UPPER":
        return tuple(total // 2 for total in totals)
    return tuple(total - total // 2 for total in totals)


#: Modes by the end of a pooling's type.
MODES: Mapping[str, Literal["max", "avg"]] = {"AveragePool": "avg", "MaxPool": "max"}


@converts(*MODES)
def _pool(graph: Graph, node: Node) -> list[ConvertedOp]:
    window = OnnxWindow.of(graph, node, _ints(node, "kernel_shape", ()))
    mode = MODES[node.type]
    count_pad = mode == "avg" and bool(attribute(node, "count_include_pad", 0))
    if window.misses and not count_pad:
        raise unsupported(node, "a window lies in padding alone: its value is undefined.")
    if count_pad and any(a > d for a, d in zip(window.after, window.declared, strict=True)):
        raise unsupported(node, "an average counts padding that only rounding up has added.")
    shape = input_shape(graph, node)
    op = Pool2d(inputs=(shape,), mode=mode, count_pad=count_pad, **window.fields)
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]


@converts("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(graph: Graph, node: Node) -> list[ConvertedOp]:
    sizes = tuple(graph.shapes[node.inputs[0]])
    shape = as_nchw(sizes if len(sizes) <= 4 else (*sizes[:2], 1, prod(sizes[2:])))
    mode = MODES[node.type.removeprefix("Global")]
    op = Pool2d(inputs=(shape,), mode=mode, kernel=Size2(shape.h, shape.w))
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]
