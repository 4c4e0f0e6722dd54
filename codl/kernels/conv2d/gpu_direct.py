"""Convolution on the GPU, directly: register tiles of pixels x a block of output channels.

Groups that fill no block are computed some together, as one with zeros between them: up to a
block's width times as many multiplications as there are, and still a fraction of the time that one
channel after the other takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd, lcm

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels import tiling
from codl.kernels.architecture import holds, is_card
from codl.kernels.base import WEIGHTED, Choice, KernelPlan
from codl.kernels.conv2d.gpu import WIDE, GpuConv, byte_columns, refuse_groups, team_macros
from codl.kernels.cpu_device import registers
from codl.kernels.feature_columns import (
    FIRST_LEVEL,
    ChoiceColumns,
    beyond,
    by_level,
    gpu_cache_bytes,
    unique,
)
from codl.kernels.kernel import Grid, launch
from codl.kernels.window import window_args
from codl.records.soc import Soc

#: Share of the second-level cache that a strip's input may take; weights and output share the rest.
CACHE_SHARE = 0.5
#: Tiles worth trying, of pixels x blocks of output channels: by the registers of a device that is a
#: CPU, in which their sums should fit, and of a GPU.
CPU_TILES = {
    32: ((8, 1), (7, 1), (9, 1), (10, 1), (8, 2), (13, 2), (8, 3), (5, 4), (6, 4)),
    16: ((8, 1), (7, 1), (10, 1), (6, 2), (5, 2), (4, 2), (4, 3), (3, 3)),
}
GPU_TILES: tuple[tuple[int, int], ...] = ((4, 1), (2, 1), (1, 1), (8, 1), (2, 2), (4, 2))
#: What a tile over the end of a row takes more than others: each pixel has a pointer.
CROSSING = 0.4
#: What makes of any other tile the last choice.
UNWANTED = 1e6
#: Input channels that are unrolled at most; with more, the compiler keeps broadcasts and spills.
MOST_UNROLLED = 4


@dataclass(frozen=True)
class DirectTiling:
    """Tiles of `pixels` pixels, over row ends, by `outs` blocks of output channels; in strips."""

    pixels: Column
    outs: Column
    tiles: Column
    in_blocks: Column
    out_blocks: Column
    grid: Grid


class GpuDirect(GpuConv):
    """Any window, stride, padding and dilation; groups that fill channel blocks, some together."""

    base_name = "gpu_direct"
    source = "conv2d/gpu_direct.cl"
    multiplies_halves = True

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return None if joined(op, soc.gpu.vector_width) else refuse_groups(op, soc.gpu.vector_width)

    def block_counts(self, soc: Soc) -> tuple[int, ...]:
        return registers.block_counts(soc.gpu)

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a tile, and blocks of output channels that share its loads."""
        if not soc.gpu.is_cpu:
            return super().choices(op, soc)
        usual = self._chosen(op, soc, None)
        counts = (self.block_choice(op, soc, count) for count in self.block_counts(soc))
        whole = joined(op, soc.gpu.vector_width) or op
        blocks = tiling.ceil_div(whole.out_channels // whole.groups, soc.gpu.vector_width)
        tiles = CPU_TILES[32 if registers.assumed_registers(soc.gpu) >= 32 else 16]
        tried = ({"pixels": p, "outs": o} for p, o in tiles if not blocks % o)
        return unique([usual, *counts, *tried])

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        if not soc.gpu.is_cpu:
            return super().default_columns(ops, soc)
        return self.block_columns(ops, soc, registers.usual_blocks(soc.gpu))

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """The tiles of a GPU, smaller ones first where there would be too few work-items."""
        pixels, outs = np.array(GPU_TILES, np.float64).T[..., None]
        choices = {"pixels": pixels, "outs": outs}
        order = self._preference(soc, pixels, outs)
        order = order + len(GPU_TILES) * self.smaller(ops, soc, choices)
        whole = joined_columns(ops, soc.gpu.vector_width)
        uneven = rest(_group_blocks(whole, soc.gpu.vector_width), outs) > 0
        return choices, np.where(uneven, np.inf, order)

    def _preference(self, soc: Soc, pixels: Column, outs: Column) -> Column:
        """The order of tiles, where there are work-items enough: on a card that of `GPU_TILES`.

        On GPUs with few registers those that fit, by loads for a product: addresses are dear there,
        and inputs have to be looked for inside.
        """
        if is_card(soc.gpu):
            return np.arange(len(pixels), dtype=np.float64)[:, None]
        # Sums, twice where halves are summed apart; inputs, weights and what else there is.
        sums = 4 * pixels * outs * (2 if self.arithmetic == "float16" else 1)
        fits = holds(soc.gpu, sums + 4 * pixels + 16)
        loads = (1.5 * pixels + 4 * outs) / (pixels * outs)
        return np.where(fits, np.argsort(np.argsort(loads[:, 0]))[:, None], np.inf)

    def grid(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> Grid:
        return self.cut(ops, soc, choice).grid

    def team_blocks(self, ops: ConvColumns) -> Column:
        return ceil_div(joined_columns(ops, 4).group_ic, 4)

    def block_columns(self, ops: ConvColumns, soc: Soc, blocks: int) -> ChoiceColumns:
        ops = joined_columns(ops, soc.gpu.vector_width)
        if blocks == 1:
            return {"pixels": pixel_tile(ops.ow, soc), "outs": np.ones_like(ops.oc)}
        return _fitting_tiles(ops, soc, blocks)

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> DirectTiling:
        width, pixels = soc.gpu.vector_width, choice["pixels"]
        ops = joined_columns(ops, width)
        in_blocks, out_blocks = ceil_div(ops.group_ic, width), ceil_div(ops.oc, width)
        outs = _dividing(_group_blocks(ops, width), choice["outs"])
        tiles = ceil_div(ops.pixels, pixels)
        tile_bytes = 4 * in_blocks * width * pixels * ops.sh * ops.sw
        most = np.maximum(1, np.floor(CACHE_SHARE * soc.cpu.l2_cache_bytes / tile_bytes))
        grid = Grid.of(tiles, np.floor(out_blocks / outs), most, soc, choice=choice, wide=WIDE)
        return DirectTiling(pixels, outs, tiles, in_blocks, out_blocks, grid)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = self.cut(ops, soc, choice)
        width, cache = soc.gpu.vector_width, gpu_cache_bytes(soc)
        ops = joined_columns(ops, width)
        groups = t.grid.others
        tiles = t.tiles * groups
        steps, loop = ops.window * t.in_blocks, ops.window * ops.group_ic
        # Tiles that lie in more than one row, or are not full: each of their pixels has a pointer.
        slow = _crossing(ops, t.pixels, t.tiles) + (rest(ops.pixels, t.pixels) > 0)
        slow = np.minimum(slow, t.tiles)
        # Tiles of one row leave out the rows of their windows that are beside the input.
        run = (t.tiles - slow) * ops.tap_rows / (ops.oh * ops.kh) + slow
        tile_macs = t.out_blocks * t.pixels * loop * width
        few = ops.group_ic <= MOST_UNROLLED
        lanes = np.where(few, 0.0, rest(ops.group_ic, width))
        # Output pixel rows times taps whose columns reach into the padding.
        padded_taps = ops.oh * ops.kh * np.minimum(ops.kw - 1, ops.left + ops.right)
        moved = byte_columns(self, ops, soc)
        weights = moved["weight_bytes"]
        strip_input = 4.0 * t.in_blocks * width * t.pixels * ops.sh * ops.sw * t.grid.strip
        panels = beyond(4.0 * width * loop * t.outs, FIRST_LEVEL)
        return {
            "padded_macs": tile_macs * run,
            "few_channels_macs": tile_macs * t.tiles * few,
            "tiles": tiles,
            "tile_steps": groups * steps * run,
            "row_end_steps": groups * steps * slow,
            "padded_tap_steps": padded_taps * t.in_blocks * groups,
            "rest_steps": tiles * ops.window * (lanes > 0),
            "rest_lanes": tiles * ops.window * lanes,
            "loop_length": loop,
            **t.grid.features,
            "panels_streamed": panels * tiles,
            "weights_streamed": beyond(weights, cache) * t.grid.strips,
            "input_again": beyond(strip_input, FIRST_LEVEL) * t.grid.strips * groups,
            **by_level("weight", weights, cache),
            **by_level("moved", np.sum(list(moved.values()), axis=0), cache),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = self.cut(*self.alone(op, soc, choice)), soc.gpu.vector_width
        whole = joined(op, width) or op
        pixels, outs, out_blocks = choice["pixels"], int(t.outs[0]), int(t.out_blocks[0])
        # A 1x1 window that takes every pixel sees rows as one long row.
        flat = op.kernel == op.stride == (1, 1) and not any(op.pad)
        out_pixels, slid = op.output.h * op.output.w, op
        if flat:
            slid = replace(op, inputs=(op.input._replace(h=1, w=out_pixels),))
        sizes = {
            "strip": t.grid.strip,
            "in_channels": whole.input.c // whole.groups,
            "in_blocks": t.in_blocks,
            "all_blocks": out_blocks,
            "out_blocks": out_blocks // whole.groups,
            "out_pixels": out_pixels,
            **window_args(slid),
        }
        # Pixels at either end of a row's tile for which some tap lies beside the input.
        edge = tiling.ceil_div(max(op.pad.left, op.pad.right), op.stride.w)
        rows = {"STRIDE_W": op.stride.w, "EDGE": min(edge, pixels // 2)} if soc.gpu.is_cpu else {}
        # A constant number of input channels, where a loop over them would cost more.
        few = width > 4 and op.groups == 1 and op.input.c <= MOST_UNROLLED
        return self.convolved(
            op,
            soc,
            launch("conv2d_direct", t.grid.sizes, *WEIGHTED, **sizes),
            macros={
                "PIXELS": pixels,
                "OUTS": outs,
                **rows,
                **team_macros(t.grid),
                "FLAT": flat,
                "LANES": op.input.c if few else False,
            },
            pack=lambda weight: pack_blocks(spread(weight, op, whole), width, outs),
            zeros=1,  # what pixels on padding point to
        )


def joined(op: Conv2d, width: int) -> Conv2d | None:
    """The convolution of groups that fill blocks of `width` channels; itself where they do.

    The last of these may have fewer channels than others, where they are a block each. None where
    there is no such convolution: groups would be left over.
    """
    if op.groups == 1:
        return op
    channels = op.input.c // op.groups, op.out_channels // op.groups
    together = lcm(*(width // gcd(width, each) for each in channels))
    if op.is_depthwise or (
        op.groups % together and {together * each for each in channels} != {width}
    ):
        return None
    groups = -(-op.groups // together)
    in_channels, out_channels = (groups * together * each for each in channels)
    inputs = (op.input._replace(c=in_channels),)
    return replace(op, inputs=inputs, out_channels=out_channels, groups=groups)


def joined_columns(ops: ConvColumns, width: int) -> ConvColumns:
    """The same for columns; what is not `joined` stays as it is."""
    per_group = np.stack([ops.group_ic, np.floor(ops.oc / ops.groups)]).astype(np.int64)
    together = np.lcm(*(width // np.gcd(width, per_group)))
    fits = (rest(ops.groups, together) == 0) | (per_group * together == width).all(axis=0)
    is_joined = (ops.groups > 1) & (together > 1) & fits & ~ops.is_depthwise
    if not is_joined.any():
        return ops
    groups = ceil_div(ops.groups, together)
    columns = {"ic": per_group[0], "oc": per_group[1]}
    wanted = {name: groups * together * each for name, each in columns.items()}
    changed = {
        name: np.where(is_joined, column, getattr(ops, name))
        for name, column in {**wanted, "groups": groups}.items()
    }
    return replace(ops, **changed)


def spread(weight: Array, op: Conv2d, whole: Conv2d) -> Array:
    """The weight of an op as that of the one whose groups are some of its own together."""
    if whole is op:
        return weight
    in_group, out_group = op.input.c // op.groups, op.out_channels // op.groups
    of_whole = whole.input.c // whole.groups
    placed = np.zeros(whole.weight_shapes["weight"], np.float32)
    for group in range(op.groups):
        rows = slice(group * out_group, (group + 1) * out_group)
        first = group * in_group % of_whole
        placed[rows, first : first + in_group] = weight[rows]
    return placed


def pixel_tile(width: Column, soc: Soc) -> Column:
    """Output pixels of one register tile, for rows of `width` pixels.

    Eight accumulators keep a core that multiplies vectors busy, and as many pointers to pixels fit
    in its registers; so a tile may go over row ends and only the last one is not full. Rows of 7
    are so few that this matters. A work-item of a GPU gets 4.
    """
    return np.where(width == 7, 7.0, 8.0) if soc.gpu.is_cpu else np.full_like(width, 4)


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
