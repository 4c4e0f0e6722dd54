"""Direct convolution on the GPU: register tiles of pixels x a block of output channels.

Small groups are joined into one block with zeros between them. This multiplies up to a block's
width times as much, and still takes a fraction of the time of one channel after another. Groups of
odd sizes are joined into a single one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest, round_up
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.records.soc import Soc
from codl.kernels import tiling
from codl.kernels.base import WEIGHTED, Choice, KernelPlan
from codl.kernels.conv2d.gpu import WIDE, GpuConv, byte_columns, refuse_groups, team_macros
from codl.kernels.kernel import Grid, window_args
from codl.kernels.tiling import FIRST_LEVEL, ChoiceColumns, beyond, by_level, is_card, least, unique

#: Share of the second-level cache for a strip's input; weights and output use the rest.
CACHE_SHARE = 0.5
#: Tiles of pixels x blocks of output channels to try: on a CPU by number of registers, which should
#: hold the sums, and on a GPU.
CPU_TILES = {
    32: ((8, 1), (7, 1), (9, 1), (10, 1), (8, 2), (13, 2), (8, 3), (5, 4), (6, 4)),
    16: ((8, 1), (7, 1), (10, 1), (6, 2), (5, 2), (4, 2), (4, 3), (3, 3)),
}
GPU_TILES: tuple[tuple[int, int], ...] = ((4, 1), (2, 1), (1, 1), (8, 1), (2, 2), (4, 2))
#: Relative extra time of a tile across row ends, whose pixels each need a pointer.
CROSSING = 0.4
#: Cost factor that makes a tile the last choice.
UNWANTED = 1e6
#: The most unrolled input channels; with more, the compiler keeps broadcasts and spills.
MOST_UNROLLED = 4


@dataclass(frozen=True)
class DirectTiling:
    """Tiles of `pixels` consecutive pixels, across rows, by `outs` blocks of output channels."""

    pixels: Column
    outs: Column
    tiles: Column
    in_blocks: Column
    out_blocks: Column
    grid: Grid


class GpuDirect(GpuConv):
    """Any window, stride, padding and dilation; groups that fill channel blocks, also joined."""

    base_name = "gpu_direct"
    source = "conv2d/gpu_direct.cl"
    multiplies_halves = True

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_groups(joined(op, soc.gpu.vector_width), soc.gpu.vector_width)

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """Choices of pixels of a tile, and of blocks of output channels that share its loads."""
        if not soc.gpu.is_cpu:
            return super().choices(op, soc)
        usual = self._chosen(op, soc, None)
        whole = joined(op, soc.gpu.vector_width)
        blocks = ceil_div(whole.out_channels // whole.groups, soc.gpu.vector_width)
        tiles = CPU_TILES[32 if tiling.assumed_registers(soc.gpu) >= 32 else 16]
        tried = ({"pixels": p, "outs": o} for p, o in tiles if not blocks % o)
        return unique([usual, *tried])

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        if not soc.gpu.is_cpu:
            return super().default_columns(ops, soc)
        ops, blocks = joined_columns(ops, soc.gpu.vector_width), tiling.usual_blocks(soc.gpu)
        if blocks == 1:
            # Eight sums keep the vector units busy, and eight pointers to pixels fit the registers.
            return {"pixels": np.where(ops.ow == 7, 7.0, 8.0), "outs": np.ones_like(ops.oc)}
        return _fitting_tiles(ops, soc, blocks)

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Tiles of a GPU; smaller ones come first where work-items would be too few."""
        pixels, outs = np.array(GPU_TILES, np.float64).T[..., None]
        choices = {"pixels": pixels, "outs": outs}
        order = self._preference(soc, pixels, outs)
        order = order + len(GPU_TILES) * self.smaller(ops, soc, choices)
        whole = joined_columns(ops, soc.gpu.vector_width)
        uneven = rest(_group_blocks(whole, soc.gpu.vector_width), outs) > 0
        return choices, np.where(uneven, np.inf, order)

    def _preference(self, soc: Soc, pixels: Column, outs: Column) -> Column:
        """Rank of each tile given enough work-items: on a card the order of `GPU_TILES`.

        With few registers, tiles that fit are ranked by loads per product, since addresses and
        checks of the padding cost much there.
        """
        if is_card(soc.gpu):
            return np.arange(len(pixels), dtype=np.float64)[:, None]
        # Sums, doubled if float16 has separate sums; then inputs, weights and the rest.
        sums = 4 * pixels * outs * (2 if self.arithmetic == "float16" else 1)
        fits = tiling.holds(soc.gpu, sums + 4 * pixels + 16)
        loads = (1.5 * pixels + 4 * outs) / (pixels * outs)
        return np.where(fits, np.argsort(np.argsort(loads[:, 0]))[:, None], np.inf)

    def team_blocks(self, ops: ConvColumns) -> Column:
        return ceil_div(joined_columns(ops, 4).group_ic, 4)

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
        width, cache = soc.gpu.vector_width, tiling.gpu_cache_bytes(soc)
        ops = joined_columns(ops, width)
        groups = t.grid.others
        tiles = t.tiles * groups
        steps, loop = ops.window * t.in_blocks, ops.window * ops.group_ic
        # Incomplete tiles, and tiles in several rows: each of their pixels has a pointer.
        slow = _crossing(ops, t.pixels, t.tiles) + (rest(ops.pixels, t.pixels) > 0)
        slow = np.minimum(slow, t.tiles)
        # Tiles of one row skip the window's rows outside of the input.
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
        whole = joined(op, width)
        pixels, outs, out_blocks = choice["pixels"], int(t.outs[0]), int(t.out_blocks[0])
        # A 1x1 window with stride 1 treats all rows as one.
        flat = op.kernel == op.stride == (1, 1) and not any(op.pad)
        out_pixels, slid = op.output.h * op.output.w, op
        if flat:
            slid = replace(op, inputs=(op.input._replace(h=1, w=out_pixels),))
        sizes = {
            "in_channels": whole.input.c // whole.groups,
            "in_blocks": t.in_blocks,
            "all_blocks": out_blocks,
            "out_blocks": out_blocks // whole.groups,
            "out_pixels": out_pixels,
            **window_args(slid),
        }
        # Pixels at both ends of a row's tile with some tap outside of the input.
        edge = ceil_div(max(op.pad.left, op.pad.right), op.stride.w)
        rows = {"STRIDE_W": op.stride.w, "EDGE": min(edge, pixels // 2)} if soc.gpu.is_cpu else {}
        # A constant number of input channels, where a loop would cost more.
        few = width > 4 and op.groups == 1 and op.input.c <= MOST_UNROLLED
        return self.convolved(
            op,
            soc,
            t.grid.launch("conv2d_direct", *WEIGHTED, **sizes),
            macros={
                "PIXELS": pixels,
                "OUTS": outs,
                **rows,
                **team_macros(t.grid),
                "FLAT": flat,
                "LANES": op.input.c if few else False,
            },
            pack=lambda weight: pack_blocks(spread(weight, op, whole), width, outs),
            zeros=1,  # read by pixels on padding
        )


def joined(op: Conv2d, width: int) -> Conv2d:
    """The convolution with groups joined until they fill blocks of `width` channels.

    The last joined group may have fewer channels, if each is a block. Groups that cannot be joined
    evenly become one; an op whose groups already fill blocks is returned unchanged.
    """
    if op.groups == 1:
        return op
    columns = joined_columns(ConvColumns.of([op]), width)
    ic, oc, groups = (int(column[0]) for column in (columns.ic, columns.oc, columns.groups))
    return replace(op, inputs=(op.input._replace(c=ic),), out_channels=oc, groups=groups)


def joined_columns(ops: ConvColumns, width: int) -> ConvColumns:
    per_group = np.stack([ops.group_ic, np.floor(ops.oc / ops.groups)]).astype(np.int64)
    together = np.lcm(*(width // np.gcd(width, per_group)))
    fits = (rest(ops.groups, together) == 0) | (per_group * together == width).all(axis=0)
    is_joined = (ops.groups > 1) & (together > 1) & ~ops.is_depthwise
    together = np.where(fits, together, ops.groups)
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
    """The weight of an op arranged for the op `whole` with joined groups, with zeros between."""
    if whole == op:
        return weight
    in_group, out_group = op.input.c // op.groups, op.out_channels // op.groups
    of_whole = whole.input.c // whole.groups
    placed = np.zeros(whole.weight_shapes["weight"], np.float32)
    for group in range(op.groups):
        rows = slice(group * out_group, (group + 1) * out_group)
        first = group * in_group % of_whole
        placed[rows, first : first + in_group] = weight[rows]
    return placed


def _group_blocks(ops: ConvColumns, width: int) -> Column:
    """Blocks of output channels per group, which may share loads."""
    result: Column = np.floor(ceil_div(ops.oc, width) / ops.groups)
    return result


def _dividing(blocks: Column, most: Column) -> Column:
    """The largest divisor of `blocks` up to `most`."""
    outs = most
    while (uneven := rest(blocks, outs) > 0).any():
        outs = outs - uneven
    return outs


def _fitting_tiles(ops: ConvColumns, soc: Soc, wanted: int) -> ChoiceColumns:
    """The tile of each op with the fewest instructions whose sums fit the registers.

    It has `wanted` blocks, if these divide the op's blocks.
    """
    pixels, outs = np.array(tiling.register_tiles(soc.gpu), np.float64).T[..., None]
    tiles, blocks = ceil_div(ops.pixels, pixels), _group_blocks(ops, soc.gpu.vector_width)
    cost = pixels * (tiles + CROSSING * _crossing(ops, pixels, tiles))
    cost = cost * tiling.effort(pixels, outs, soc.gpu) * np.where(outs == wanted, 1.0, UNWANTED)
    return least({"pixels": pixels, "outs": outs}, np.where(rest(blocks, outs) > 0, np.inf, cost))


def _crossing(ops: ConvColumns, pixels: Column, tiles: Column) -> Column:
    """Tiles across row ends; none for 1x1 windows, which treat all rows as one."""
    flat = (ops.window == 1) & (ops.sh == 1) & (ops.sw == 1) & ~ops.is_padded
    crossing = np.where(ops.ow < pixels, tiles, np.minimum(ops.oh - 1, tiles))
    return np.where(flat | (rest(ops.ow, pixels) == 0), 0.0, crossing)


def pack_blocks(weight: Array, width: int, outs: int) -> Array:
    """(oc, ic, k, k) -> [oc block / outs][ic block][k][k][lane of ic][outs][lane of oc], flat.

    Only existing input lanes are stored (rounded up to four if the width is 4), so three input
    channels cost three steps.
    """
    channels, together = weight.shape[1], outs * width
    stored = round_up(channels, 4) if width == 4 else channels
    items = ceil_div(weight.shape[0], together)
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
