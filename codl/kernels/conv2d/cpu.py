"""Convolution on the CPU: ncnn's direct kernels and its matrix products, and ONNX Runtime.

ncnn would pick the algorithm and the tile of Winograd by itself. Here the algorithm is a layer's
parameter; what may be picked from is said by options of the net that holds the layer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest, round_up
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels.feature_columns import FIRST_LEVEL, beyond, by_level, halvings, packed_vectors
from codl.kernels.kernel import CpuKernel
from codl.kernels.ncnn import (
    NO_GEMM,
    NO_WINOGRAD,
    SHAPE_HINT,
    NcnnLayer,
    NcnnValue,
    fused_activation,
    left_over,
)
from codl.kernels.ort import CpuOrt, OrtPlan, node
from codl.records.soc import Soc

#: Up to this many channels on both sides ncnn keeps to its direct kernels, whatever is asked.
SMALL = 16
#: Output channels of one block of a matrix product.
MOST_ROWS = 64
#: Channels lie in blocks as wide as the CPU's vectors.
PACKED: Mapping[str, bool] = {"use_packing_layout": True}


def ncnn_layer(
    op: Conv2d, switched_off: int = 0, options: Mapping[str, bool] = PACKED
) -> NcnnLayer:
    """A convolution without the algorithms that are switched off."""
    parameters: dict[int, NcnnValue] = {
        0: op.out_channels,
        1: op.kernel.w,
        11: op.kernel.h,
        2: op.dilation.w,
        12: op.dilation.h,
        3: op.stride.w,
        13: op.stride.h,
        4: op.pad.left,
        15: op.pad.right,
        14: op.pad.top,
        16: op.pad.bottom,
        5: 1,
        6: op.out_channels * (op.input.c // op.groups) * op.kernel.h * op.kernel.w,
        **fused_activation(op.activation),
        # Without it ncnn picks a tile of Winograd by the channels alone.
        SHAPE_HINT: (3, op.output.w, op.output.h, op.output.c),
    }
    kind, copies_input = "Convolution", False
    if switched_off:
        parameters[31] = switched_off
    if op.groups > 1:
        # ncnn cuts groups out of the input by its own channel step, unless it packs channels.
        kind, copies_input = "ConvolutionDepthWise", not op.is_depthwise or op.input.c % 4 > 0
        parameters[7] = op.groups
    after = left_over(op.activation)
    return NcnnLayer(kind, parameters, ("weight", "bias"), after, copies_input, options)


# Matrix products of M = output channels, K = window x input channels, N = output pixels.


def _refuse_gemm(op: Conv2d) -> str | None:
    if op.groups > 1:
        return f"groups must be 1, got {op.groups}"
    if op.input.c <= SMALL and op.out_channels <= SMALL and op.kernel != (1, 1):
        return f"ncnn uses GEMM from more than {SMALL} input or output channels"
    return None


def _count_gemm(ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """A panel of either factor fits the cache.

    Blocks are of up to 64 of the M, of all K, and of as many of the N as there is room for; within
    one a micro-kernel takes a vector of the M and 8 of the N, fewer at the end.
    """
    lanes, cache = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes
    m, n, k = ops.oc, ops.pixels, ops.ic * ops.window
    block_m = round_up(ceil_div(m, ceil_div(m, MOST_ROWS)), lanes)
    block_n = np.maximum(4, np.floor((cache / 4 - block_m * k) / k / 4) * 4)
    block_n = np.minimum(block_n, round_up(ceil_div(n, ceil_div(n, block_n)), 4))
    blocks_m, blocks_n = ceil_div(m, block_m), ceil_div(n, block_n)
    whole = (blocks_n - 1) * halvings(block_n, 8)
    last = halvings(n - (blocks_n - 1) * block_n, 8)
    copies = n * ops.window * packed_vectors(ops.ic, lanes)
    return {
        "padded_macs": round_up(m, lanes) * k * n,
        "kernel_steps": halvings(m, lanes) * (whole + last) * k,
        "input_vectors": copies,
        "window_vectors": copies * (ops.window > 1),
        "scalar_inputs": n * k * (rest(ops.ic, 4) > 0),
        "output_vectors": n * packed_vectors(m, lanes),
        "scalar_outputs": n * m * (rest(m, 4) > 0),
        "weights_streamed": beyond(4.0 * m * k, cache) * blocks_n,
        "packed_streamed": beyond(4.0 * n * k, cache) * blocks_m,
        "blocks": blocks_m * blocks_n,
        **by_level("weight", 4.0 * m * k, cache),
        **by_level("packed", 4.0 * n * k, cache),
        "input_bytes": 4.0 * ops.ic * ops.ih * ops.iw,
        "padded_bytes": 4.0 * ops.ic * ops.padded_h * ops.padded_w * ops.is_padded,
        "output_bytes": 4.0 * m * n,
    }


# Direct convolution: a sliding window over packed channels, also for grouped convolutions.

#: A step of less than a whole vector beside one of a whole: loads are what it waits for, and two
#: narrow ones take less than a wide one.
NARROW = 0.7
#: The same for depthwise windows, of half a vector (or of a quarter) and of a single channel.
NARROW_DEPTHWISE, SINGLE_DEPTHWISE = 0.5, 0.35
#: A strided step of the kernels for single input channels beside one that is not.
STRIDED = 1.1
#: Sums over the last few input channels wait for themselves, the longer the more taps a window has
#: beyond `TAPS`: fewer windows fit in what the core looks ahead.
WAITING, TAPS, MORE_TAPS = 2.0, 9, 40


def _refuse_direct(op: Conv2d) -> str | None:
    if op.kernel == (1, 1) and op.groups == 1:
        return "ncnn runs every 1x1 convolution as a matrix product"
    return None


def _count_direct(ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """By which of ncnn's kernels an op gets.

    On x86 channels lie in packs of 16, 8 or 4, whichever divides them, or one by one. For 3x3
    windows without gaps and some pairs of packs there are kernels that take all pixels of one input
    channel after the other: from packs of 8 to 8, from single channels to 8 or 4 (`planar`), and
    from 16 or 8 to single ones. Depthwise convolutions have theirs. All else runs in one that makes
    a pixel of the output after the other, a vector of its channels at a time, over chunks of input
    channels: of 16, or of a half of that and so on for the rest. With four channels or more there
    are four sums at a time, with fewer the next waits for the last. The weights of a vector of
    outputs, its panel, are read again for every pixel.
    """
    lanes, cache = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes
    vectors_in, vectors_out = packed_vectors(ops.ic, lanes), packed_vectors(ops.oc, lanes)
    before, after = ops.ic / vectors_in, ops.oc / vectors_out
    small = (ops.kh == 3) & (ops.kw == 3) & (ops.dh == 1) & (ops.dw == 1) & ~ops.is_depthwise
    eight = small & (ops.sh == 1) & (before == 8) & (after == 8)
    planar = small & (ops.sh <= 2) & (before == 1) & ((after == 8) | (after == 4))
    single = small & (ops.sh == 1) & (before >= 8) & (after == 1)
    general = ~(ops.is_depthwise | eight | planar | single)

    inputs, whole = ops.group_ic, np.floor(ops.oc / lanes)
    narrow = halvings(ops.oc - whole * lanes, lanes // 2)
    vectors = ops.pixels * (whole + NARROW * narrow) * general
    left = rest(inputs, 4)
    waits = (left >= 2) + rest(left, 2)
    longer = 1 + WAITING * np.clip((ops.window - TAPS) / MORE_TAPS, 0, 1)
    panel = 4.0 * lanes * inputs * ops.window

    def streamed(level_bytes: float) -> Column:
        panels = whole * beyond(panel, level_bytes) + narrow * beyond(panel / 2, level_bytes)
        streams: Column = ops.pixels * panels * general
        return streams

    windows = ops.pixels * ops.window
    steps = windows * ops.ic * np.ceil(ops.oc / 8)
    planar_steps = steps * np.where(ops.sh > 1, STRIDED, 1.0) * planar
    efforts = [SINGLE_DEPTHWISE, 1.0]
    effort = np.select([after == 1, after == lanes], efforts, NARROW_DEPTHWISE)
    depthwise = windows * vectors_out * effort * ops.is_depthwise
    padded_bytes = 4.0 * ops.ic * ops.padded_h * ops.padded_w
    moved = by_level("moved", padded_bytes + 4.0 * ops.oc * ops.pixels, cache)
    return {
        "sum_steps": vectors * ops.window * (inputs - left),
        "waiting_steps": vectors * ops.window * waits * longer,
        "chunks": vectors * halvings(inputs, 16),
        "panels_streamed": streamed(FIRST_LEVEL),
        "panels_far": streamed(cache),
        "output_vectors": ops.pixels * vectors_out,
        "eight_steps": steps * eight,
        "planar_steps": planar_steps + windows * ops.oc * vectors_in * single,
        "depthwise_steps": depthwise * (ops.sh == 1),
        "depthwise_strided_steps": depthwise * (ops.sh > 1),
        "padded_bytes": padded_bytes,
        "moved_beyond": moved["moved_beyond"],
        "moved_far": moved["moved_far"],
        "weight_bytes": 4.0 * ops.oc * inputs * ops.window,
    }


GEMM = CpuKernel(
    "conv2d",
    lambda op: ncnn_layer(op, NO_WINOGRAD),
    _count_gemm,
    ConvColumns,
    _refuse_gemm,
    name="cpu_gemm",
)
DIRECT = CpuKernel(
    "conv2d",
    lambda op: ncnn_layer(op, NO_GEMM | NO_WINOGRAD),
    _count_direct,
    ConvColumns,
    _refuse_direct,
    name="cpu_direct",
)


def _onnx_plan(op: Conv2d) -> OrtPlan:
    conv = node(
        "Conv",
        ("x0", "weight", "bias"),
        kernel_shape=list(op.kernel),
        strides=list(op.stride),
        dilations=list(op.dilation),
        pads=[op.pad.top, op.pad.left, op.pad.bottom, op.pad.right],
        group=op.groups,
    )
    return OrtPlan((conv,), op.inputs, op.output)


def _count_blocks(ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """Channels lie in blocks of a vector; of fewer than one the planar input is read.

    Other groups than single channels are computed one by one.
    """
    lanes, cache = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes
    group_oc = np.floor(ops.oc / ops.groups)
    is_dense = ~ops.is_depthwise
    steps = ops.pixels * ops.window * ceil_div(ops.oc, lanes)
    weights = 4.0 * ops.oc * ops.group_ic * ops.window
    moved = 4.0 * (ops.ic * ops.ih * ops.iw + ops.oc * ops.pixels)
    padded = ops.groups * round_up(group_oc, lanes) * ops.group_ic
    pointwise = ops.window == 1
    return {
        "padded_macs": padded * ops.pixels * ops.window * is_dense,
        "pointwise_macs": padded * ops.pixels * (is_dense & pointwise),
        "strided_macs": padded * ops.pixels * ops.window * (is_dense & (ops.sw > 1)),
        "planar_macs": padded * ops.pixels * ops.window * (is_dense & (ops.ic < lanes)),
        "grouped_macs": padded * ops.pixels * ops.window * (is_dense & (ops.groups > 1)),
        "depthwise_steps": steps * ops.is_depthwise,
        "strided_steps": steps * (ops.is_depthwise & (ops.sw > 1)),
        "output_vectors": ops.pixels * ceil_div(ops.oc, lanes),
        "rows": ops.oh * ceil_div(ops.oc, lanes),
        **by_level("weight", weights, cache),
        **by_level("moved", moved, cache),
    }


ORT = CpuOrt("conv2d", _onnx_plan, _count_blocks, ConvColumns)
