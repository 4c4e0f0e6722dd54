"""Convolution on the CPU: ncnn's direct kernels, its matrix products, and ONNX Runtime.

A layer parameter selects ncnn's algorithm, and net options restrict Winograd's tiles; otherwise
ncnn would choose by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest, round_up
from codl.ir.ops.base import Array, Pad, Weights
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.ops.window import Size2
from codl.ir.records.soc import Soc
from codl.ir.region import Shape
from codl.kernels import cpu
from codl.kernels.cpu import NO_WINOGRAD, CpuKernel, NcnnLayer, OrtPlan, of_onnx, window_layer
from codl.kernels.tiling import FIRST_LEVEL, beyond, by_level, halvings, packed_vectors

#: With at most this many channels on both sides, ncnn always uses its direct kernels.
SMALL = 16
#: Output channels of one block of a matrix product.
MOST_ROWS = 64
#: Channels are packed in blocks as wide as the CPU's vectors.
PACKED: Mapping[str, bool] = {"use_packing_layout": True}


def ncnn_layer(
    op: Conv2d, switched_off: int = 0, options: Mapping[str, bool] = PACKED
) -> NcnnLayer:
    """An ncnn convolution without the algorithms that `switched_off` names as bits."""
    pads = {4: op.pad.left, 15: op.pad.right, 14: op.pad.top, 16: op.pad.bottom}
    # Without the hint, ncnn chooses a Winograd tile by channels alone.
    more: dict[int, cpu.NcnnValue] = {cpu.SHAPE_HINT: (3, op.output.w, op.output.h, op.output.c)}
    if switched_off:
        more[31] = switched_off
    # Without packing, ncnn assumes its own channel stride when it splits groups.
    copies_input = op.groups > 1 and (not op.is_depthwise or op.input.c % 4 > 0)
    return window_layer(op, "Convolution", pads, more, copies_input=copies_input, options=options)


# Matrix products of M = output channels, K = window x input channels, N = output pixels.


def _refuse_gemm(op: Conv2d) -> str | None:
    if op.groups > 1:
        return f"groups must be 1, got {op.groups}"
    if op.input.c <= SMALL and op.out_channels <= SMALL and op.kernel != (1, 1):
        return f"ncnn uses GEMM from more than {SMALL} input or output channels"
    return None


def _count_gemm(ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """Features of a matrix product whose panels of both factors fit the cache.

    A block has up to 64 of M, all of K, and as much of N as fits. Its micro-kernel computes a
    vector of M by 8 of N, and fewer of N at the end.
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

#: Time of a step narrower than a vector, relative to a full one; loads bound both.
NARROW = 0.7
#: The same for depthwise windows: half or quarter vectors, and single channels.
NARROW_DEPTHWISE, SINGLE_DEPTHWISE = 0.5, 0.35
#: Time of a strided step of the kernels for single input channels, relative to stride 1.
STRIDED = 1.1
#: Relative delay of the dependent sums of the last input channels. It grows with the taps beyond
#: `TAPS`, because fewer windows fit in the core's reorder buffer.
WAITING, TAPS, MORE_TAPS = 2.0, 9, 40


def _refuse_direct(op: Conv2d) -> str | None:
    if op.kernel == (1, 1) and op.groups == 1:
        return "ncnn runs every 1x1 convolution as a matrix product"
    return None


def _count_direct(ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """Features of ncnn's direct kernels on x86.

    Channels are packed by 16, 8 or 4, whichever divides them, or lie one by one. Dense 3x3 windows
    have kernels that loop over pixels for one input channel at a time: from packs of 8 to 8, from
    single channels to 8 or 4 (`planar`), and from packs of 16 or 8 to single channels. Depthwise
    convolutions have kernels of their own. The general kernel computes one output pixel after
    another, a vector of channels at a time, over chunks of 16 input channels and halves of that for
    the rest. Four or more channels give four independent sums, fewer give dependent ones. Each
    pixel reads the panel of weights of a vector of outputs again.
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


# Winograd: 3x3 windows, and larger windows as sums of 3x3 windows. A 7x7 window, padded to 9x9 with
# zeros, is the sum of nine 3x3 windows over shifted inputs. With the shifted inputs concatenated as
# channels, one 3x3 convolution of nine times as many channels computes the sum. By itself ncnn runs
# windows above 3x3 as matrix products. (Cf. Huang et al., "DWM: A Decomposable Winograd Method for
# Convolution Acceleration", AAAI 2020.)


#: Outputs per side of a tile, F(2x2, 3x3) and so on, and the transform cost of a point of each,
#: relative to F(4x4).
TILES, EFFORTS = (2, 4, 6), (0.5, 1.0, 1.4)
#: ncnn chooses among all tiles by the shape.
OPTIONS = {**PACKED, **{f"use_winograd{tile}3_convolution": True for tile in TILES}}

#: The side of the summed windows.
SIDE = 3


def is_sum(op: Conv2d) -> bool:
    """True for a window above 3x3 in both directions, which is a sum of 3x3 windows."""
    return min(op.kernel) > SIDE


def inner(op: Conv2d) -> Conv2d:
    """The 3x3 convolution over concatenated shifted inputs; a 3x3 op itself."""
    if not is_sum(op):
        return op
    channels = op.input.c * ceil_div(op.kernel.h, SIDE) * ceil_div(op.kernel.w, SIDE)
    shape = Shape(op.input.n, channels, op.output.h + SIDE - 1, op.output.w + SIDE - 1)
    return replace(op, inputs=(shape,), kernel=Size2(SIDE, SIDE), pad=Pad(0, 0, 0, 0))


def summed(layer: NcnnLayer, op: Conv2d) -> NcnnLayer:
    """`layer` for `inner(op)`, with the shifts that make its input from the op's."""
    down, across = ceil_div(op.kernel.h, SIDE), ceil_div(op.kernel.w, SIDE)
    size = {3: op.output.w + SIDE - 1, 4: op.output.h + SIDE - 1, 5: op.input.c}
    padding = {
        0: op.pad.top,
        1: op.pad.bottom + SIDE * down - op.kernel.h,
        2: op.pad.left,
        3: op.pad.right + SIDE * across - op.kernel.w,
    }
    crops = tuple(
        {0: SIDE * x, 1: SIDE * y, 2: 0, **size} for y in range(down) for x in range(across)
    )
    return replace(layer, shifts=cpu.Shifts(padding, crops), arrange=_arranged)


def inner_columns(ops: ConvColumns) -> ConvColumns:
    """Columns of the 3x3 convolutions over concatenated shifted inputs (`inner`)."""
    larger = np.minimum(ops.kh, ops.kw) > SIDE
    of_sum = {
        "ic": ops.ic * _windows(ops),
        "ih": ops.oh + SIDE - 1,
        "iw": ops.ow + SIDE - 1,
        **dict.fromkeys(("kh", "kw"), np.full_like(ops.ic, SIDE)),
        **dict.fromkeys(("top", "left", "bottom", "right"), np.zeros_like(ops.ic)),
    }
    columns = {name: np.where(larger, new, getattr(ops, name)) for name, new in of_sum.items()}
    return replace(ops, **columns)


def copied(ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """Features of copying shifted inputs; 0 for 3x3 windows."""
    windows = _windows(ops)
    pixels = (ops.oh + SIDE - 1) * (ops.ow + SIDE - 1) * windows * (windows > 1)
    return {
        "copied_vectors": pixels * packed_vectors(ops.ic, soc.cpu.simd_floats),
        **by_level("copied", 4.0 * ops.ic * pixels, soc.cpu.l2_cache_bytes),
    }


def _windows(ops: ConvColumns) -> Column:
    return ceil_div(ops.kh, SIDE) * ceil_div(ops.kw, SIDE)


def _arranged(weights: Weights) -> Mapping[str, Array]:
    """Weights of the 3x3 windows, concatenated as input channels."""
    weight = weights["weight"]
    oc, ic, height, width = weight.shape
    down, across = ceil_div(height, SIDE), ceil_div(width, SIDE)
    full = np.zeros((oc, ic, SIDE * down, SIDE * across), np.float32)
    full[:, :, :height, :width] = weight
    cut = full.reshape(oc, ic, down, SIDE, across, SIDE).transpose(0, 2, 4, 1, 3, 5)
    return {**weights, "weight": cut.reshape(oc, down * across * ic, SIDE, SIDE)}


def _refuse(op: Conv2d) -> str | None:
    apart = op.stride != (1, 1) or op.dilation != (1, 1) or op.groups != 1
    if apart or not (op.kernel == (3, 3) or is_sum(op)):
        return (
            "Winograd needs a kernel of 3x3, or above it both ways, and stride=1 dilation=1 "
            f"groups=1, got kernel={op.kernel} stride={op.stride} dilation={op.dilation} "
            f"groups={op.groups}"
        )
    if inner(op).input.c <= SMALL and op.out_channels <= SMALL:
        return f"ncnn uses Winograd from more than {SMALL} input or output channels"
    return None


def _layer(op: Conv2d) -> NcnnLayer:
    layer = ncnn_layer(inner(op), options=OPTIONS)
    return summed(layer, op) if is_sum(op) else layer


def _count(ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """Features of the transforms into points, of a product per point, and of the transforms back.

    The points of all tiles are computed first; each block of output channels reads them again.
    """
    lanes, cache = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes
    copies, ops = copied(ops, soc), inner_columns(ops)
    tile = usual_tile(ops)
    points = (tile + 2) ** 2
    tiles = ceil_div(ops.oh, tile) * ceil_div(ops.ow, tile)
    blocks_m, steps_n, waited_n = _point_blocks(ops.oc, tiles, ops.ic, soc)
    effort = np.select([tile == 2, tile == 4], EFFORTS[:2], EFFORTS[2]) * points * tiles
    products = points * halvings(ops.oc, lanes) * ops.ic
    point_bytes, weight_bytes = (4.0 * points * ops.ic * size for size in (tiles, ops.oc))
    output_bytes = 4.0 * ops.oc * ops.pixels
    padded_bytes = 4.0 * ops.ic * ops.padded_h * ops.padded_w
    moved = 2 * (padded_bytes + point_bytes) + weight_bytes + output_bytes
    return {
        "padded_macs": products * lanes * tiles,
        "waiting_macs": products * lanes * waited_n,
        "kernel_steps": products * steps_n,
        "input_transforms": effort * packed_vectors(ops.ic, lanes),
        "output_transforms": effort * packed_vectors(ops.oc, lanes),
        "points_again": beyond(point_bytes, cache) * (blocks_m - 1),
        "output_bytes": output_bytes,
        "output_far": by_level("output", output_bytes, cache)["output_far"],
        **by_level("weight", weight_bytes, cache),
        **by_level("moved", moved, cache),
        **copies,
    }


def _point_blocks(m: Column, n: Column, k: Column, soc: Soc) -> tuple[Column, Column, Column]:
    """Blocks of M, steps of N and waited N: M x K, K x N and M x N of products share the cache.

    A third of the cache limits M, the rest beside M limits K, and both limit N. A micro-kernel
    computes a vector of M by 12 of N, and fewer of N at the end, in the steps of N. They take as
    long as the waited N, because fewer than 4 sums wait for each other.
    """
    lanes, floats = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes / 4
    most = max(lanes, np.floor(np.sqrt(floats / 3) / lanes) * lanes)
    block_m = _even(m, np.full_like(m, most), lanes)
    left = np.floor(np.sqrt(floats) - block_m)
    block_k = _even(k, np.maximum(lanes, np.floor(left / lanes) * lanes), lanes)
    room = np.floor((floats - block_m * block_k) / (block_m + block_k))
    block_n = _even(n, np.maximum(4, np.floor(room / 4) * 4), 4)
    whole = ceil_div(n, block_n) - 1
    last = n - whole * block_n
    steps = whole * _twelves(block_n) + _twelves(last)
    return ceil_div(m, block_m), steps, whole * _waited(block_n) + _waited(last)


def _even(size: Column, most: Column, unit: int) -> Column:
    """The size of nearly equal blocks: a multiple of `unit`, at most `most`."""
    result: Column = np.minimum(most, round_up(ceil_div(size, ceil_div(size, most)), unit))
    return result


def _twelves(size: Column) -> Column:
    """Steps of 12, then of 8, 4, 2 and 1 for the rest."""
    result: Column = np.floor(size / 12) + halvings(rest(size, 12), 8)
    return result


def _waited(size: Column) -> Column:
    """Elements, with a step of 2 or 1 counted as 4."""
    few = rest(rest(size, 12), 4)
    result: Column = size - few + 4 * halvings(few, 2)
    return result


# The tile that ncnn chooses by itself: facts about ncnn 1.0.20261020 on x86, which a test confirms
# bit by bit. Elsewhere ncnn chooses by other sizes, and predictors correct the guess.

#: Channels at which the next row of the tables begins; below the first it is F(4x4).
LEVELS = (8, 16, 32, 64, 128, 256, 512)
#: Larger sizes have the tile of this size.
LARGEST = 213


def _all_tiles() -> NDArray[np.float64]:
    """The tile, indexed by level of input channels, level of output channels, and size.

    It is F(4x4) except for the sizes in `winograd_tiles.csv`, of which a later row counts.
    """
    tiles = np.full((len(LEVELS) + 1, len(LEVELS) + 1, LARGEST + 1), 4.0)
    table = resources.files(__package__).joinpath("winograd_tiles.csv").read_text()
    for tile, ic, oc, first, last in np.loadtxt(table.splitlines()[1:], int, delimiter=","):
        tiles[LEVELS.index(ic) + 1, LEVELS.index(oc) + 1, first : last + 1] = tile
    tiles.flags.writeable = False
    return tiles


_TILES = _all_tiles()


def usual_tile(ops: ConvColumns) -> Column:
    """Outputs per side of ncnn's tile, by channels and the shorter padded input side."""
    size = np.minimum(np.minimum(ops.oh, ops.ow) + 2, LARGEST).astype(np.intp)
    ic, oc = (np.searchsorted(LEVELS, channels, side="right") for channels in (ops.ic, ops.oc))
    result: Column = _TILES[ic, oc, size]
    return result


def _growth(ops: ConvColumns) -> Column:
    """Stored points per element of the original window."""
    points = (usual_tile(inner_columns(ops)) + 2) ** 2
    result: Column = points * _windows(ops) / (ops.kh * ops.kw)
    return result


WINOGRAD = CpuKernel(
    "conv2d", _layer, _count, ConvColumns, _refuse, name="cpu_winograd", growth=_growth
)


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
    lambda op: ncnn_layer(op, cpu.NO_GEMM | NO_WINOGRAD),
    _count_direct,
    ConvColumns,
    _refuse_direct,
    name="cpu_direct",
)


def _onnx(op: Conv2d) -> OrtPlan:
    names = ("x0", "weight", "bias")
    conv = cpu.node("Conv", names, **cpu.window_attributes(op), group=op.groups)
    return OrtPlan((conv,), op.inputs, op.output)


def _count_onnx(ops: ConvColumns, soc: Soc) -> FeatureColumns:
    """Features of ONNX Runtime, whose channels are blocked by vectors.

    Fewer channels than a vector are read as planar input. Groups are computed one by one, unless
    they are single channels.
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


ONNX = of_onnx("conv2d", _onnx, _count_onnx, ConvColumns)
