"""Winograd convolution on the CPU: ncnn's, of 3x3 windows, and of larger ones as sums of such.

A 7x7 window, with zeros to 9x9, is nine windows of 3x3, each over the input shifted by as much as
it lies from the first. With the shifted inputs one above the other that is one 3x3 convolution of
nine times as many channels, which adds up the nine. ncnn knows windows above 3x3 as matrix products
alone. (Cf. Huang et al., "DWM: A Decomposable Winograd Method for Convolution Acceleration", AAAI
2020.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, FeatureColumns, rest, round_up
from codl.ir.ops.base import Array, Pad, Weights
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.ops.window import Size2
from codl.ir.region import Shape
from codl.kernels.conv2d.cpu import PACKED, SMALL, ncnn_layer
from codl.kernels.feature_columns import beyond, by_level, halvings, packed_vectors
from codl.kernels.kernel import CpuKernel
from codl.kernels.ncnn import NcnnLayer, Shifts
from codl.kernels.tiling import ceil_div
from codl.records.soc import Soc

#: Outputs on a side of a tile, F(2x2, 3x3) and so on, and what a point of such a tile costs either
#: transform, beside one of F(4x4).
TILES, EFFORTS = (2, 4, 6), (0.5, 1.0, 1.4)
#: ncnn picks from all of them, by the shape.
OPTIONS = {**PACKED, **{f"use_winograd{tile}3_convolution": True for tile in TILES}}

#: The window of those that are added up.
SIDE = 3


def is_sum(op: Conv2d) -> bool:
    """Whether an op's window is larger than those that are added up, both ways."""
    return min(op.kernel) > SIDE


def inner(op: Conv2d) -> Conv2d:
    """The 3x3 convolution of the shifted inputs, one above the other; a 3x3 one as it is."""
    if not is_sum(op):
        return op
    channels = op.input.c * ceil_div(op.kernel.h, SIDE) * ceil_div(op.kernel.w, SIDE)
    shape = Shape(op.input.n, channels, op.output.h + SIDE - 1, op.output.w + SIDE - 1)
    return replace(op, inputs=(shape,), kernel=Size2(SIDE, SIDE), pad=Pad(0, 0, 0, 0))


def summed(layer: NcnnLayer, op: Conv2d) -> NcnnLayer:
    """`layer`, which convolves `inner(op)`, with the shifts that make its input of the op's."""
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
    return replace(layer, shifts=Shifts(padding, crops), arrange=_arranged)


def inner_columns(ops: ConvColumns) -> ConvColumns:
    """`inner` of each op."""
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
    """What is copied to shift the inputs: nothing for windows of 3x3."""
    windows = _windows(ops)
    pixels = (ops.oh + SIDE - 1) * (ops.ow + SIDE - 1) * windows * (windows > 1)
    return {
        "copied_vectors": pixels * packed_vectors(ops.ic, soc.cpu.simd_floats),
        **by_level("copied", 4.0 * ops.ic * pixels, soc.cpu.l2_cache_bytes),
    }


def _windows(ops: ConvColumns) -> Column:
    """How many windows are added up."""
    return ceil_div(ops.kh, SIDE) * ceil_div(ops.kw, SIDE)


def _arranged(weights: Weights) -> Mapping[str, Array]:
    """The windows of 3x3 after one another, as more input channels."""
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
    """Transforms into points, a matrix product at each point, and transforms out of sums.

    Points of all tiles are made first, and read again for every block of output channels.
    """
    lanes, cache = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes
    copies, ops = copied(ops, soc), inner_columns(ops)
    tile = usual_tile(ops)
    points = (tile + 2) ** 2
    tiles = ceil_div(ops.oh, tile) * ceil_div(ops.ow, tile)
    blocks = _PointBlocks.of(ops.oc, tiles, ops.ic, soc)
    effort = np.select([tile == 2, tile == 4], EFFORTS[:2], EFFORTS[2]) * points * tiles
    products = points * halvings(ops.oc, lanes) * ops.ic
    point_bytes, weight_bytes = (4.0 * points * ops.ic * size for size in (tiles, ops.oc))
    output_bytes = 4.0 * ops.oc * ops.pixels
    padded_bytes = 4.0 * ops.ic * ops.padded_h * ops.padded_w
    moved = 2 * (padded_bytes + point_bytes) + weight_bytes + output_bytes
    return {
        "padded_macs": products * lanes * tiles,
        "waiting_macs": products * lanes * blocks.waited_n,
        "kernel_steps": products * blocks.steps_n,
        "input_transforms": effort * packed_vectors(ops.ic, lanes),
        "output_transforms": effort * packed_vectors(ops.oc, lanes),
        "points_again": beyond(point_bytes, cache) * (blocks.blocks_m - 1),
        "output_bytes": output_bytes,
        "output_far": by_level("output", output_bytes, cache)["output_far"],
        **by_level("weight", weight_bytes, cache),
        **by_level("moved", moved, cache),
        **copies,
    }


@dataclass(frozen=True)
class _PointBlocks:
    """How ncnn blocks the products of Winograd: M x K, K x N and M x N share the cache.

    A third of it limits M, what is left beside M limits K, and both limit N. A micro-kernel takes a
    vector of the M and 12 of the N, fewer at the end: `steps_n` of them, which take as long as
    `waited_n` of the N, as fewer than 4 sums wait for themselves.
    """

    blocks_m: Column
    steps_n: Column
    waited_n: Column

    @classmethod
    def of(cls, m: Column, n: Column, k: Column, soc: Soc) -> _PointBlocks:
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
        waited = whole * _waited(block_n) + _waited(last)
        return cls(ceil_div(m, block_m), steps, waited)


def _even(size: Column, most: Column, unit: int) -> Column:
    """The size of blocks of about the same size, multiples of `unit` up to `most`."""
    result: Column = np.minimum(most, round_up(ceil_div(size, ceil_div(size, most)), unit))
    return result


def _twelves(size: Column) -> Column:
    """Steps of 12, and of 8, 4, 2 and 1 for the rest."""
    result: Column = np.floor(size / 12) + halvings(rest(size, 12), 8)
    return result


def _waited(size: Column) -> Column:
    """The same where a step of 2 or of 1 takes as long as one of 4."""
    few = rest(rest(size, 12), 4)
    result: Column = size - few + 4 * halvings(few, 2)
    return result


# The tile that ncnn takes by itself: facts about ncnn 1.0.20261020 on x86, which a test confirms
# bit by bit. On other machines ncnn goes by other sizes; there it is a guess that the predictors
# correct.

#: Channels from which another row of the tables below holds; below the first it is always F(4x4).
LEVELS = (8, 16, 32, 64, 128, 256, 512)
#: What is at least so large takes the tile of this size.
LARGEST = 213

#: Sizes for which ncnn wants F(2x2), first and last, by levels of input and of output channels.
_F2: Mapping[tuple[int, int], tuple[tuple[int, int], ...]] = {
    (8, 8): ((0, LARGEST),),
    (8, 16): ((3, 6), (9, 14), (47, 212)),
    (8, 32): ((3, 6), (15, 16)),
    (8, 64): ((3, 4), (7, 14), (47, 48)),
    (16, 8): ((3, 8), (11, 12)),
    (16, 16): ((3, 10),),
    (16, 32): ((3, 4), (9, 10)),
    (16, 64): ((3, 4), (7, 8), (11, 12), (15, 18)),
    (16, 128): ((3, 6), (9, 18)),
    (16, 256): ((3, 12),),
    (16, 512): ((11, 12),),
    (32, 8): ((3, 10),),
    (32, 16): ((7, 8),),
    (32, 32): ((7, 8),),
    (32, 64): ((3, 8),),
    (32, 128): ((3, 4), (7, 16)),
    (32, 256): ((3, 6), (11, 12)),
    (32, 512): ((3, 6), (11, 12)),
    (64, 8): ((3, 12),),
    (64, 16): ((3, 12),),
    (64, 32): ((3, 12),),
    (64, 64): ((3, 12),),
    (64, 128): ((3, 8), (19, 22)),
    (64, 256): ((7, 8),),
    (64, 512): ((3, 8), (11, 12), (15, 20)),
    (128, 8): ((3, 6),),
    (128, 16): ((3, 6),),
    (128, 32): ((3, 10),),
    (128, 64): ((3, 8),),
    (128, 128): ((3, 10),),
    (128, 256): ((3, 8), (11, 12)),
    (128, 512): ((3, 14),),
    (256, 8): ((3, 6),),
    (256, 16): ((3, 8),),
    (256, 32): ((3, 8),),
    (256, 64): ((3, 4),),
    (256, 128): ((3, 12),),
    (256, 256): ((3, 14),),
    (256, 512): ((3, 14),),
    (512, 8): ((3, 6),),
    (512, 16): ((3, 8),),
    (512, 32): ((3, 8),),
    (512, 64): ((3, 8), (11, 12)),
    (512, 128): ((3, 14),),
    (512, 256): ((3, 14),),
    (512, 512): ((3, 14),),
}
#: The same for F(6x6), where it does not want F(2x2).
_F6: Mapping[tuple[int, int], tuple[tuple[int, int], ...]] = {
    (8, 16): ((31, 32), (39, 44), (47, 212)),
    (8, 32): ((7, 14), (17, 20), (23, 26), (31, 38), (43, 162)),
    (16, 8): ((19, 20), (33, 38), (43, 44), (47, 128), (155, 210)),
    (16, 16): ((11, 14), (27, 38), (43, 44), (47, 74), (81, 110), (117, 170), (177, 182)),
    (16, 32): ((11, 14), (19, 20), (23, 44), (47, 92), (95, 188)),
    (32, 8): ((11, 14), (19, 20), (31, 38), (43, 44), (55, 162)),
    (32, 16): ((13, 14), (19, 20), (23, 38), (43, 44), (47, 140)),
    (32, 32): ((11, 14), (19, 20), (23, 44), (47, 56), (63, 130)),
}


def _all_tiles() -> NDArray[np.float64]:
    """The tile by level of input channels, level of output channels, and size."""
    levels = len(LEVELS) + 1
    tiles = np.full((levels, levels, LARGEST + 1), 4.0)
    for tile, table in ((6.0, _F6), (2.0, _F2)):
        for (ic, oc), ranges in table.items():
            for first, last in ranges:
                tiles[LEVELS.index(ic) + 1, LEVELS.index(oc) + 1, first : last + 1] = tile
    tiles.flags.writeable = False
    return tiles


_TILES = _all_tiles()


def usual_tile(ops: ConvColumns) -> Column:
    """Outputs on a side of the tile, by channels and the shorter side of the padded input."""
    size = np.minimum(np.minimum(ops.oh, ops.ow) + 2, LARGEST).astype(np.intp)
    ic, oc = (np.searchsorted(LEVELS, channels, side="right") for channels in (ops.ic, ops.oc))
    result: Column = _TILES[ic, oc, size]
    return result


def _growth(ops: ConvColumns) -> Column:
    """Points of a tile for every element of a window, or of all that a larger one is made of."""
    points = (usual_tile(inner_columns(ops)) + 2) ** 2
    result: Column = points * _windows(ops) / (ops.kh * ops.kw)
    return result


WINOGRAD = CpuKernel(
    "conv2d", _layer, _count, ConvColumns, _refuse, name="cpu_winograd", growth=_growth
)
