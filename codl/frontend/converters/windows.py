"""Convolution, transposed convolution and pooling of any number of spatial axes.

One axis is the rows of a tensor of one column. Of three axes, the first is pooled alone and then
the other two; a convolution gets the taps along the first as channels of the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError
from codl.frontend.converters.base import (
    ConvertedOp,
    attribute,
    between,
    converts,
    has_input,
    input_shape,
    unsupported,
)
from codl.frontend.graph.graph import Graph
from codl.ir.onnx_node import Node
from codl.ir.ops.base import Array, Pad
from codl.ir.ops.convolution import Conv2d, ConvTranspose2d
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.movement import PadNd, Transpose, Windows
from codl.ir.ops.nd import Sizes
from codl.ir.ops.pooling import MaxIndices, Pool2d
from codl.ir.ops.window import Size2
from codl.ir.region import Shape, as_nchw


@dataclass(frozen=True)
class OnnxWindow:
    """A sliding window, with one entry for every spatial axis.

    `after` is more than the padding that the node `declared` where sizes are rounded up.
    """

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
        if not 1 <= rank <= 3:
            raise unsupported(node, f"1 to 3 spatial axes are known, got {rank}.")
        stride = _ints(node, "strides", (1,) * rank)
        dilation = _ints(node, "dilations", (1,) * rank)
        pads = _ints(node, "pads", (0,) * (2 * rank))
        before, after = pads[:rank], pads[rank:]
        auto = attribute(node, "auto_pad", "NOTSET")
        if auto.startswith("SAME"):
            before, after = _same(sizes, kernel, stride, dilation, lower=auto == "SAME_LOWER")
        elif auto == "VALID":
            before = after = (0,) * rank
        window = cls(sizes, to, kernel, stride, dilation, before, after, after)
        window = window._rounded_up() if attribute(node, "ceil_mode", 0) else window
        reach = tuple(map(sum, zip(sizes, window.before, window.after, strict=True)))
        if any(n < extent for n, extent in zip(reach, window.extent, strict=True)):
            raise unsupported(node, f"a window of {window.extent} is larger than all of {reach}.")
        return window

    def _rounded_up(self) -> OnnxWindow:
        """With as much padding behind as the output's sizes need."""
        axes = zip(self.to, self.stride, self.extent, self.sizes, self.before, strict=True)
        after = tuple(max((to - 1) * s + e - n - b, 0) for to, s, e, n, b in axes)
        return replace(self, after=after)

    @property
    def extent(self) -> Sizes:
        pairs = zip(self.kernel, self.dilation, strict=True)
        return tuple((kernel - 1) * dilation + 1 for kernel, dilation in pairs)

    def over(self, *axes: int) -> dict[str, Any]:
        """Fields of a two-dimensional op over one axis, or two."""

        def pair(values: Sizes, missing: int) -> tuple[int, int]:
            first, second = (*(values[axis] for axis in axes), missing)[:2]
            return first, second

        (top, left), (bottom, right) = pair(self.before, 0), pair(self.after, 0)
        return {
            "kernel": Size2(*pair(self.kernel, 1)),
            "stride": Size2(*pair(self.stride, 1)),
            "dilation": Size2(*pair(self.dilation, 1)),
            "pad": Pad(top, left, bottom, right),
        }

    def counted(self, axis: int) -> Array:
        """Taps of every window along an axis that lie in the input or its declared padding."""
        inside = self._taps(axis) < self.sizes[axis] + self.declared[axis]
        return np.asarray(inside.sum(1), np.float32)

    @property
    def misses(self) -> bool:
        """Whether every tap of some window lies in padding."""
        spatial = enumerate(self.sizes)
        inside = [((taps := self._taps(axis)) >= 0) & (taps < size) for axis, size in spatial]
        return not all(taps.any(1).all() for taps in inside)

    def _taps(self, axis: int) -> NDArray[np.signedinteger[Any]]:
        """Positions along an axis, by window and tap."""
        starts = np.arange(self.to[axis]) * self.stride[axis] - self.before[axis]
        return starts[:, None] + np.arange(self.kernel[axis]) * self.dilation[axis]


def _ints(node: Node, name: str, default: Sizes) -> Sizes:
    return tuple(int(value) for value in attribute(node, name, None) or default)


def _same(
    sizes: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes, *, lower: bool
) -> tuple[Sizes, Sizes]:
    """Padding that makes an output of a stride's share of the input's size."""
    totals = [
        max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)
    ]
    small = tuple(total // 2 for total in totals)
    large = tuple(total - total // 2 for total in totals)
    return (large, small) if lower else (small, large)


@converts("Conv", parameters=(1, 2))
def _conv(graph: Graph, node: Node) -> list[ConvertedOp]:
    weight = graph.constant(node.inputs[1])
    oc = weight.shape[0]
    bias = graph.constant(node.inputs[2]) if has_input(node, 2) else np.zeros(oc, np.float32)
    window = OnnxWindow.of(graph, node, tuple(weight.shape[2:]))
    groups = int(attribute(node, "group", 1))
    _check_channels(graph, node, weight.shape[1] * groups)
    if weight.ndim == 5:
        return _conv3d(graph, node, window, {"weight": weight, "bias": bias}, groups)
    shape = input_shape(graph, node)
    op = Conv2d(
        inputs=(shape,), out_channels=oc, groups=groups, **window.over(*range(weight.ndim - 2))
    )
    weights = {"weight": weight.reshape(*weight.shape[:2], *op.kernel), "bias": bias}
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0], weights)]


def _check_channels(graph: Graph, node: Node, wanted: int) -> None:
    channels = graph.shapes[node.inputs[0]][1]
    if channels != wanted:
        raise CodlError(
            f"The node {node.name!r} ({node.type}): its weights are for {wanted} input channels, "
            f"its input has {channels}."
        )


def _conv3d(
    graph: Graph, node: Node, window: OnnxWindow, weights: dict[str, Array], groups: int
) -> list[ConvertedOp]:
    """Taps along the depth become channels, slices of the depth images of a batch."""
    n, c, depth, h, w = graph.shapes[node.inputs[0]]
    oc, source, steps = weights["weight"].shape[0], node.inputs[0], []
    if window.before[0] or window.after[0]:
        pads = [(0, 0, side[0], 0, 0) for side in (window.before, window.after)]
        padded = PadNd(shapes=((n, c, depth, h, w),), before=pads[0], after=pads[1])
        steps.append(ConvertedOp(padded, (source,), between(graph, node, "padded")))
        source, depth = steps[-1].output, padded.out_sizes[2]
    taps = Windows(
        shapes=((n, c, depth, h * w),),
        count=window.to[0],
        kernel=window.kernel[0],
        stride=window.stride[0],
        dilation=window.dilation[0],
    )
    steps.append(ConvertedOp(taps, (source,), between(graph, node, "taps")))
    images = n * window.to[0]
    conv = Conv2d(
        inputs=(Shape(images, c * window.kernel[0], h, w),),
        out_channels=oc,
        groups=groups,
        **window.over(1, 2),
    )
    weight = weights["weight"].reshape(oc, -1, *window.kernel[1:])
    filters = {"weight": weight, "bias": weights["bias"]}
    images_made = between(graph, node, "images")
    steps.append(ConvertedOp(conv, (steps[-1].output,), images_made, filters))
    area = prod(window.to[1:])
    back = Transpose(
        shapes=(tuple(conv.output),),
        perm=(0, 2, 1, 3),
        axes=(n, window.to[0], oc, area),
        to=tuple(graph.shapes[node.outputs[0]]),
    )
    return [*steps, ConvertedOp(back, (steps[-1].output,), node.outputs[0])]


@converts("ConvTranspose", parameters=(1, 2))
def _conv_transpose(graph: Graph, node: Node) -> list[ConvertedOp]:
    """ONNX's weights have the input channels first."""
    weight = graph.constant(node.inputs[1])
    rank, shape = weight.ndim - 2, input_shape(graph, node)
    if rank > 2:
        raise unsupported(node, f"1 or 2 spatial axes are known, got {rank}.")
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
        kernel=Size2(*(*kernel, 1)[:2]),
        stride=Size2(*(*_ints(node, "strides", (1,) * rank), 1)[:2]),
        dilation=Size2(*(*_ints(node, "dilations", (1,) * rank), 1)[:2]),
        crop=Size2(*(*_crop(graph, node, kernel), 0)[:2]),
    )
    filters = np.ascontiguousarray(grouped).reshape(oc, shape.c // groups, *op.kernel)
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0], {"weight": filters, "bias": bias})]


def _crop(graph: Graph, node: Node, kernel: Sizes) -> Sizes:
    """What of the whole result lies before the output.

    An output whose size is given lies in the middle; with SAME_LOWER what is left over is cut off
    in front, otherwise behind. Of one that is larger, as ONNX Runtime has it, what is more lies
    behind.
    """
    rank = len(kernel)
    stride, dilation = _ints(node, "strides", (1,) * rank), _ints(node, "dilations", (1,) * rank)
    more = _ints(node, "output_padding", (0,) * rank)
    auto = attribute(node, "auto_pad", "NOTSET")
    if auto in ("NOTSET", "VALID") and not attribute(node, "output_shape", None):
        return _ints(node, "pads", (0,) * (2 * rank))[:rank] if auto == "NOTSET" else (0,) * rank
    sizes, to = graph.shapes[node.inputs[0]][2:], graph.shapes[node.outputs[0]][2:]
    axes = zip(sizes, to, kernel, stride, dilation, more, strict=True)
    totals = [max(s * (n - 1) + m + (k - 1) * d + 1 - out, 0) for n, out, k, s, d, m in axes]
    if auto == "SAME_UPPER":
        return tuple(total // 2 for total in totals)
    return tuple(total - total // 2 for total in totals)


#: By the end of a pooling's type.
MODES: Mapping[str, Literal["max", "avg"]] = {"AveragePool": "avg", "MaxPool": "max"}


@converts(*MODES)
def _pool(graph: Graph, node: Node) -> list[ConvertedOp]:
    window = OnnxWindow.of(graph, node, _ints(node, "kernel_shape", ()))
    mode = MODES[node.type]
    count_pad = mode == "avg" and bool(attribute(node, "count_include_pad", 0))
    if window.misses and not count_pad:
        raise unsupported(node, "a window lies in padding alone: its value is undefined.")
    rank = len(window.sizes)
    passes = [(0,), (1, 2)] if rank == 3 else [tuple(range(rank))]
    steps: list[ConvertedOp] = []
    n, c = graph.shapes[node.inputs[0]][:2]
    source = node.inputs[0]
    for axes in passes:
        done, left = prod(window.to[: axes[0]]), prod(window.sizes[axes[-1] + 1 :])
        height, width = (*(window.sizes[axis] for axis in axes), left)[:2]
        shape = Shape(n, c * done, height, width)
        op = Pool2d(inputs=(shape,), mode=mode, count_pad=count_pad, **window.over(*axes))
        is_last = axes == passes[-1]
        output = node.outputs[0] if is_last else between(graph, node, str(axes[0]))
        factors = _recounted(window, axes, op) if count_pad else None
        if factors is None:
            steps.append(ConvertedOp(op, (source,), output))
        else:
            names = graph.names.tensor(output, "whole"), graph.names.tensor(output, "factors")
            scale = Eltwise(inputs=(op.output, Shape(*factors.shape)), mode="mul")
            steps.append(ConvertedOp(op, (source,), names[0]))
            steps.append(ConvertedOp(scale, names, output, constants={names[1]: factors}))
        source = output
    if len(node.outputs) > 1 and node.outputs[1]:
        steps.append(_indices(graph, node, window))
    return steps


def _indices(graph: Graph, node: Node, window: OnnxWindow) -> ConvertedOp:
    """Where the maxima are, as an op of its own."""
    rank = len(window.sizes)
    if rank > 2:
        raise unsupported(node, "indices are known of 1 or 2 spatial axes, got 3.")
    op = MaxIndices(
        shapes=(tuple(graph.shapes[node.inputs[0]]),),
        by_columns=bool(attribute(node, "storage_order", 0)),
        **window.over(*range(rank)),
    )
    return ConvertedOp(op, node.inputs[:1], node.outputs[1])


def _recounted(window: OnnxWindow, axes: tuple[int, ...], op: Pool2d) -> Array | None:
    """What averages must be multiplied by for windows that reach beyond the declared padding."""
    shares = [window.kernel[axis] / window.counted(axis) for axis in axes]
    whole = np.multiply.outer(*shares) if len(shares) == 2 else shares[0][:, None]
    factors = np.broadcast_to(whole, (op.output.h, op.output.w)).astype(np.float32)
    return None if (factors == 1).all() else factors[None, None]


@converts("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(graph: Graph, node: Node) -> list[ConvertedOp]:
    sizes = tuple(graph.shapes[node.inputs[0]])
    shape = as_nchw(sizes if len(sizes) <= 4 else (*sizes[:2], 1, prod(sizes[2:])))
    mode = MODES[node.type.removeprefix("Global")]
    op = Pool2d(inputs=(shape,), mode=mode, kernel=Size2(shape.h, shape.w))
    return [ConvertedOp(op, node.inputs[:1], node.outputs[0])]
