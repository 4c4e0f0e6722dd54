"""Convolution on the GPU, directly: register tiles of pixels x a block of output channels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels import tiling
from codl.kernels.base import Choice, KernelLaunch
from codl.kernels.conv2d.gpu import GpuConv, Macros, flags, one_launch, refuse_groups
from codl.kernels.cpu_device import registers
from codl.kernels.feature_columns import (
    FIRST_LEVEL,
    ChoiceColumns,
    beyond,
    by_level,
    first_choice,
    gpu_cache_bytes,
    unique,
)
from codl.kernels.tiling_columns import pixel_tile, strip, waves
from codl.kernels.window import whole, window_args
from codl.records.soc import Soc

#: Share of the second-level cache that a strip's input may take; weights and output share the rest.
CACHE_SHARE = 0.5
#: Tiles worth trying, of pixels x blocks of output channels: by the registers of a device that is a
#: CPU, in which their sums should fit, and of a GPU.
CPU_TILES = {
    32: ((8, 1), (7, 1), (9, 1), (10, 1), (8, 2), (13, 2), (8, 3), (5, 4), (6, 4)),
    16: ((8, 1), (7, 1), (10, 1), (6, 2), (5, 2), (4, 2), (4, 3), (3, 3)),
}
GPU_TILES: tuple[tuple[int, int], ...] = ((4, 1), (8, 1), (2, 2), (4, 2))
#: What a tile over the end of a row takes more than others: each pixel has a pointer.
CROSSING = 0.4
#: What makes of any other tile the last choice.
UNWANTED = 1e6
#: At most so many input channels are unrolled; with more, the compiler keeps broadcasts and spills.
MOST_UNROLLED = 4


@dataclass(frozen=True)
class DirectTiling:
    """Tiles of `pixels` pixels, over row ends, by `outs` blocks of output channels; in strips."""

    pixels: Column
    outs: Column
    tiles: Column
    strip: Column
    in_blocks: Column
    out_blocks: Column

    @property
    def strips(self) -> Column:
        return ceil_div(self.tiles, self.strip)

    @property
    def groups(self) -> Column:
        """Groups of `outs` blocks."""
        return self.out_blocks / self.outs


class GpuDirect(GpuConv):
    """Any window, stride, padding and dilation; groups of whole channel blocks."""

    base_name: ClassVar[str] = "gpu_direct"
    source: ClassVar[str] = "conv2d/gpu_direct.cl"
    #: What pixels on padding point to.
    zeros_behind: ClassVar[int] = 1

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_groups(op, soc.gpu.vector_width)

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a tile, and blocks of output channels that share its loads."""
        usual = first_choice(self.default_columns(ConvColumns.of([op]), soc))
        counts = (self.block_choice(op, soc, count) for count in self.block_counts(soc))
        blocks = tiling.ceil_div(op.out_channels // op.groups, soc.gpu.vector_width)
        tiles = GPU_TILES
        if soc.gpu.is_cpu:
            tiles = CPU_TILES[32 if registers.assumed_registers(soc.gpu) >= 32 else 16]
        tried = ({"pixels": p, "outs": o} for p, o in tiles if not blocks % o)
        return unique([usual, *counts, *tried])

    def block_counts(self, soc: Soc) -> tuple[int, ...]:
        return registers.block_counts(soc.gpu)

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        return self.block_columns(ops, soc, registers.usual_blocks(soc.gpu))

    def block_columns(self, ops: ConvColumns, soc: Soc, blocks: int) -> ChoiceColumns:
        if blocks == 1:
            return {"pixels": pixel_tile(ops.ow, soc), "outs": np.ones_like(ops.oc)}
        return _fitting_tiles(ops, soc, blocks)

    def cut(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> DirectTiling:
        width, pixels = soc.gpu.vector_width, choice["pixels"]
        in_blocks, out_blocks = ceil_div(ops.group_ic, width), ceil_div(ops.oc, width)
        outs = _dividing(_group_blocks(ops, width), choice["outs"])
        tiles = ceil_div(ops.pixels, pixels)
        tile_bytes = 4 * in_blocks * width * pixels * ops.sh * ops.sw
        most = np.maximum(1, np.floor(CACHE_SHARE * soc.cpu.l2_cache_bytes / tile_bytes))
        length = strip(tiles, np.floor(out_blocks / outs), most, soc)
        return DirectTiling(pixels, outs, tiles, length, in_blocks, out_blocks)

    def count(self, ops: ConvColumns, cut: DirectTiling, soc: Soc) -> FeatureColumns:
        width, cache = soc.gpu.vector_width, gpu_cache_bytes(soc)
        tiles, items = cut.tiles * cut.groups, cut.strips * cut.groups
        steps, loop = ops.window * cut.in_blocks, ops.window * ops.group_ic
        # Tiles that lie in more than one row, or are not full: each of their pixels has a pointer.
        slow = _crossing(ops, cut.pixels, cut.tiles) + (rest(ops.pixels, cut.pixels) > 0)
        slow = np.minimum(slow, cut.tiles)
        # Tiles of one row leave out the rows of their windows that are beside the input.
        run = (cut.tiles - slow) * ops.tap_rows / (ops.oh * ops.kh) + slow
        tile_macs = cut.out_blocks * cut.pixels * loop * width
        few = ops.group_ic <= MOST_UNROLLED
        lanes = np.where(few, 0.0, rest(ops.group_ic, width))
        # Output pixel rows times taps whose columns reach into the padding.
        padded_taps = ops.oh * ops.kh * np.minimum(ops.kw - 1, ops.left + ops.right)
        moved = self.byte_columns(ops, soc)
        weights = moved["weight_bytes"]
        strip_input = 4.0 * cut.in_blocks * width * cut.pixels * ops.sh * ops.sw * cut.strip
        panels = beyond(4.0 * width * loop * cut.outs, FIRST_LEVEL)
        return {
            "padded_macs": tile_macs * run,
            "few_channels_macs": tile_macs * cut.tiles * few,
            "tiles": tiles,
            "tile_steps": cut.groups * steps * run,
            "row_end_steps": cut.groups * steps * slow,
            "padded_tap_steps": padded_taps * cut.in_blocks * cut.groups,
            "rest_steps": tiles * ops.window * (lanes > 0),
            "rest_lanes": tiles * ops.window * lanes,
            "loop_length": loop,
            "work_items": items,
            "waves": waves(items, soc),
            "panels_streamed": panels * tiles,
            "weights_streamed": beyond(weights, cache) * cut.strips,
            "input_again": beyond(strip_input, FIRST_LEVEL) * cut.strips * cut.groups,
            **by_level("weight", weights, cache),
            **by_level("moved", np.sum(list(moved.values()), axis=0), cache),
        }

    def launches(self, op: Conv2d, cut: DirectTiling, soc: Soc) -> tuple[KernelLaunch, ...]:
        length, in_blocks, out_blocks = whole(cut.strip, cut.in_blocks, cut.out_blocks)
        strips, groups = whole(cut.strips, cut.groups)
        blocks = (op.input.c // op.groups, in_blocks, out_blocks, out_blocks // op.groups)
        pixels, slid = op.output.h * op.output.w, op
        if _is_flat(op):  # rows are one long row
            shape = op.input._replace(h=1, w=pixels)
            slid = replace(op, inputs=(shape,))
        sizes = (length, *blocks, pixels, *window_args(slid))
        return one_launch("conv2d_direct", tiling.item_grid(strips, groups, soc), sizes)

    def macros(self, op: Conv2d, cut: DirectTiling, soc: Soc) -> Macros:
        pixels, outs = whole(cut.pixels, cut.outs)
        # Pixels at either end of a row's tile for which some tap lies beside the input.
        edge = tiling.ceil_div(max(op.pad.left, op.pad.right), op.stride.w)
        # A constant number of input channels, where a loop over them would cost more.
        few = soc.gpu.vector_width > 4 and op.groups == 1 and op.input.c <= MOST_UNROLLED
        return {
            "PIXELS": pixels,
            "OUTS": outs,
            "STRIDE_W": op.stride.w,
            "EDGE": min(edge, pixels // 2),
            **flags(FLAT=_is_flat(op)),
            **({"LANES": op.input.c} if few else {}),
        }

    def pack(self, weight: Array, cut: DirectTiling, soc: Soc) -> Array:
        return pack_blocks(weight, soc.gpu.vector_width, int(cut.outs[0]))


def _is_flat(op: Conv2d) -> bool:
    """Whether it is a 1x1 window that takes every pixel."""
    return op.kernel == op.stride == (1, 1) and not any(op.pad)


def _group_blocks(ops: ConvColumns, width: int) -> Column:
    """Blocks of output channels of a group: those that a work-item may share its loads among."""
    result: Column = np.floor(ceil_div(ops.oc, width) / ops.groups)
    return result


def _dividing(blocks: Column, most: Column) -> Column:
    """The largest number up to `most` that divides `blocks`: a part of an op may have fewer."""
    outs = most
    while (uneven := rest(blocks, outs) > 0).any():
        outs = outs - uneven
    return outs


def _fitting_tiles(ops: ConvColumns, soc: Soc, wanted: int) -> ChoiceColumns:
    """The tile of least effort for each op, of those whose sums fit in the registers.

    It has the blocks that are wanted, where these leave none of the op's over.
    """
    tiles, blocks = registers.tiles(soc.gpu), _group_blocks(ops, soc.gpu.vector_width)
    costs = [
        _cost_of(ops, soc, blocks, tile) * (1.0 if tile[1] == wanted else UNWANTED)
        for tile in tiles
    ]
    pixels, outs = np.array(tiles, np.float64)[np.argmin(costs, axis=0)].T
    return {"pixels": pixels, "outs": outs}


def _cost_of(ops: ConvColumns, soc: Soc, blocks: Column, tile: tuple[int, int]) -> Column:
    """Instructions for the output in one tile; infinitely many where blocks would be left over."""
    pixels, outs = tile
    tiles = ceil_div(ops.pixels, pixels)
    crossing = _crossing(ops, np.full_like(tiles, pixels), tiles)
    cost = pixels * (tiles + CROSSING * crossing) * registers.effort(pixels, outs, soc.gpu)
    return np.where(rest(blocks, outs) > 0, np.inf, cost)


def _crossing(ops: ConvColumns, pixels: Column, tiles: Column) -> Column:
    """Tiles that lie in more than one row; none where the window makes of rows a long one."""
    flat = (ops.window == 1) & (ops.sh == 1) & (ops.sw == 1) & ~ops.is_padded
    crossing = np.where(ops.ow < pixels, tiles, np.minimum(ops.oh - 1, tiles))
    return np.where(flat | (rest(ops.ow, pixels) == 0), 0.0, crossing)


def pack_blocks(weight: Array, width: int, outs: int) -> Array:
    """(oc, ic, k, k) -> [oc block / outs][ic block][k][k][lane of ic][outs][lane of oc], flat.

    Only real input lanes are stored (all four where the width is 4), so that three input channels
    cost three steps and not a block's.
    """
    channels, together = weight.shape[1], outs * width
    stored = tiling.round_up(channels, 4) if width == 4 else channels
    items = tiling.ceil_div(weight.shape[0], together)
    window = weight.shape[2] * weight.shape[3]
    packed = np.zeros((items, stored * window * together), np.float32)
    for item in range(items):
        rows = weight[item * together : (item + 1) * together]
        at = 0
        for first in range(0, channels, width):
            lanes = min(width, stored - first)
            part = rows[:, first : first + width].transpose(2, 3, 1, 0)
            view = packed[item, at : at + window * lanes * together]
            view = view.reshape(*weight.shape[2:], lanes, together)
            view[:, :, : part.shape[2], : part.shape[3]] = part
            at += window * lanes * together
    return packed.reshape(-1)
