"""Convolution on the GPU, directly: register tiles of pixels x a block of output channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import (
    Column,
    FeatureColumns,
)
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import (
    Conv2d,
    ConvColumns,
)
from codl.ir.types import BLOCKED, Storage
from codl.kernels import feature_columns as caches
from codl.kernels import registers, tiling_columns
from codl.kernels.base import WEIGHTED, Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import (
    ChoiceColumns,
    first_choice,
    single,
    unique,
)
from codl.kernels.image import TEXEL
from codl.kernels.tiling import base_defines, ceil_div, item_grid, round_up
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

#: Share of the second-level cache that a strip's input may take; weights and output share the rest.
CACHE_SHARE = 0.5
#: Tiles worth trying, of pixels x blocks of output channels: by the registers of a device that is a
#: CPU, in which their sums should fit, and of a GPU.
CPU_TILES = {
    32: ((8, 1), (7, 1), (9, 1), (10, 1), (8, 2), (13, 2), (8, 3), (5, 4), (6, 4)),
    16: ((8, 1), (7, 1), (10, 1), (6, 2), (5, 2), (4, 2), (4, 3), (3, 3)),
}
GPU_TILES = ((4, 1), (8, 1), (2, 2), (4, 2))
#: What a tile over the end of a row takes more than others: each pixel has a pointer.
CROSSING = 0.4
#: What makes of any other tile the last choice.
UNWANTED = 1e6
#: So many input channels are unrolled; with more, the compiler keeps broadcasts and spills.
MOST_UNROLLED = 4


@dataclass(frozen=True)
class _DirectTiling:
    """How convolutions are cut; all that the plan and the features have in common."""

    pixels: Column
    outs: Column
    tiles: Column
    strip: Column
    strips: Column
    in_blocks: Column
    out_blocks: Column

    @classmethod
    def of(cls, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> _DirectTiling:
        width = soc.gpu.vector_width
        in_blocks = columns.ceil_div(ops.group_ic, width)
        out_blocks = columns.ceil_div(ops.oc, width)
        pixels = np.broadcast_to(np.asarray(choice["pixels"], np.float64), ops.oc.shape)
        outs = _dividing(_group_blocks(ops, width), choice["outs"])
        tiles = columns.ceil_div(ops.pixels, pixels)
        tile_bytes = 4 * in_blocks * width * pixels * ops.sh * ops.sw
        most = np.maximum(1, np.floor(CACHE_SHARE * soc.cpu.l2_cache_bytes / tile_bytes))
        length = tiling_columns.strip(tiles, np.floor(out_blocks / outs), most, soc)
        strips = columns.ceil_div(tiles, length)
        return cls(pixels, outs, tiles, length, strips, in_blocks, out_blocks)


def _dividing(blocks: Column, most: Column | int) -> Column:
    """The largest number up to `most` that divides `blocks`: a part of an op may have fewer."""
    outs = np.broadcast_to(np.asarray(most, np.float64), blocks.shape)
    while (uneven := columns.rest(blocks, outs) > 0).any():
        outs = outs - uneven
    return outs


class GpuDirect(ForStorage, ByChoiceColumns):
    """Any window, stride, padding and dilation; groups of whole channel blocks."""

    op_kind: ClassVar[str] = "conv2d"
    base_name: ClassVar[str] = "gpu_direct"
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_groups(op, soc.gpu.vector_width)

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a tile, and blocks of output channels that share its loads."""
        default = first_choice(self.default_columns(ConvColumns.of([op]), soc))
        blocks = ceil_div(op.out_channels // op.groups, soc.gpu.vector_width)
        tried: list[Choice | None] = [default]
        tried += [self.block_choice(op, soc, count) for count in self.block_counts(soc)]
        tried += [{"pixels": p, "outs": o} for p, o in _tiles_to_try(soc) if not blocks % o]
        return unique(tried)

    def block_counts(self, soc: Soc) -> tuple[int, ...]:
        return registers.block_counts(soc.gpu)

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        return self.block_columns(ops, soc, registers.usual_blocks(soc.gpu))

    def block_columns(self, ops: ConvColumns, soc: Soc, blocks: int) -> ChoiceColumns:
        if blocks == 1:
            return {"pixels": tiling_columns.pixel_tile(ops.ow, soc), "outs": np.ones_like(ops.oc)}
        return _fitting_tiles(ops, soc, blocks)

    def feature_columns(
        self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        t = _DirectTiling.of(ops, soc, choice or self.default_columns(ops, soc))
        width, cache = soc.gpu.vector_width, caches.gpu_cache_bytes(soc)
        groups = t.out_blocks / t.outs
        tiles, items = t.tiles * groups, t.strips * groups
        steps, loop = ops.window * t.in_blocks, ops.window * ops.group_ic
        slow = _tiles_over_ends(ops, t)
        # Tiles of one row leave out the rows of their windows that are beside the input.
        run = (t.tiles - slow) * ops.tap_rows / (ops.oh * ops.kh) + slow
        tile_macs = t.out_blocks * t.pixels * loop * width
        few = ops.group_ic <= MOST_UNROLLED
        lanes = np.where(few, 0.0, columns.rest(ops.group_ic, width))
        moved = byte_columns(ops, soc, self.storage)
        weights = moved["weight_bytes"]
        tile_input = 4.0 * t.in_blocks * width * t.pixels * ops.sh * ops.sw
        return {
            "padded_macs": tile_macs * run,
            "few_channels_macs": tile_macs * t.tiles * few,
            "tiles": tiles,
            "tile_steps": groups * steps * run,
            "row_end_steps": groups * steps * slow,
            "padded_tap_steps": _padded_taps(ops) * t.in_blocks * groups,
            "rest_steps": tiles * ops.window * (lanes > 0),
            "rest_lanes": tiles * ops.window * lanes,
            "loop_length": loop,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "panels_streamed": caches.beyond(4.0 * width * loop * t.outs, caches.FIRST_LEVEL)
            * tiles,
            "weights_streamed": caches.beyond(weights, cache) * t.strips,
            "input_again": caches.beyond(tile_input * t.strip, caches.FIRST_LEVEL)
            * t.strips
            * groups,
            **caches.by_level("weight", weights, cache),
            **caches.by_level("moved", np.sum(list(moved.values()), axis=0), cache),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        tiling = _DirectTiling.of(ConvColumns.of([op]), soc, choice or self.choices(op, soc)[0])
        pixels, outs = int(tiling.pixels[0]), int(tiling.outs[0])
        in_blocks, out_blocks = int(tiling.in_blocks[0]), int(tiling.out_blocks[0])
        out_pixels = op.output.h * op.output.w
        global_size, local_size = item_grid(int(tiling.strips[0]), out_blocks // outs, soc)
        # A 1x1 window that takes every pixel sees rows as one long row.
        flat = _is_flat(op)
        sizes = (
            int(tiling.strip[0]),
            op.input.c // op.groups,
            in_blocks,
            1 if flat else op.input.h,
            out_pixels if flat else op.input.w,
            out_blocks,
            out_blocks // op.groups,
            out_pixels if flat else op.output.w,
            out_pixels,
            *op.kernel,
            op.stride.h,
            op.pad.top,
            op.pad.left,
            *op.dilation,
        )
        launch = KernelLaunch(
            kernel="conv2d_direct",
            global_size=global_size,
            local_size=local_size,
            args=(*WEIGHTED, *sizes),
        )
        width = soc.gpu.vector_width
        return KernelPlan(
            source="conv2d/gpu_direct.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "PIXELS": pixels,
                "OUTS": outs,
                "STRIDE_W": op.stride.w,
                "EDGE": _edge(op, pixels),
                **({"FLAT": 1} if flat else {}),
                **_few_lanes(op, soc),
            },
            pack=lambda weights: {
                "weight": pack_blocks(weights["weight"], width, outs),
                "bias": pack_bias(weights["bias"], width, blocks_of_zeros=1),
            },
        ).stored_as(self.storage)


def _is_flat(op: Conv2d) -> bool:
    return op.kernel == op.stride == (1, 1) and not any(op.pad)


def _tiles_to_try(soc: Soc) -> tuple[tuple[int, int], ...]:
    if not soc.gpu.is_cpu:
        return GPU_TILES
    return CPU_TILES[32 if registers.assumed_registers(soc.gpu) >= 32 else 16]


def _fitting_tiles(ops: ConvColumns, soc: Soc, wanted: int) -> ChoiceColumns:
    """The tile of least effort for each op, of those whose sums fit in the registers.

    It has the blocks that are wanted, where these leave none of the op's over.
    """
    found, blocks = registers.tiles(soc.gpu), _group_blocks(ops, soc.gpu.vector_width)
    costs = [
        _cost_of(ops, soc, blocks, tile) * (1.0 if tile[1] == wanted else UNWANTED)
        for tile in found
    ]
    pixels, outs = np.array(found, np.float64)[np.argmin(costs, axis=0)].T
    return {"pixels": pixels, "outs": outs}


def _cost_of(ops: ConvColumns, soc: Soc, blocks: Column, tile: tuple[int, int]) -> Column:
    """Instructions for the output in one tile; infinitely many where blocks would be left over."""
    pixels, outs = tile
    tiles = columns.ceil_div(ops.pixels, pixels)
    crossing = _crossing(ops, np.full_like(tiles, pixels), tiles)
    cost = pixels * (tiles + CROSSING * crossing) * registers.effort(pixels, outs, soc.gpu)
    return np.where(columns.rest(blocks, outs) > 0, np.inf, cost)


def _group_blocks(ops: ConvColumns, width: int) -> Column:
    """Blocks of output channels of a group: those that a work-item may share its loads among."""
    result: Column = np.floor(columns.ceil_div(ops.oc, width) / ops.groups)
    return result


def _edge(op: Conv2d, pixels: int) -> int:
    """Pixels at either end of a row's tile for which some tap lies beside the input."""
    return min(ceil_div(max(op.pad.left, op.pad.right), op.stride.w), pixels // 2)


def _few_lanes(op: Conv2d, soc: Soc) -> dict[str, int]:
    """The number of input channels as a constant where a loop over them would cost more."""
    few = soc.gpu.vector_width > 4 and op.groups == 1 and op.input.c <= MOST_UNROLLED
    return {"LANES": op.input.c} if few else {}


def refuse_groups(op: Conv2d, width: int) -> str | None:
    """Why groups cannot be computed in blocks of `width` channels."""
    per_group = (op.input.c // op.groups, op.out_channels // op.groups)
    if op.groups > 1 and any(channels % width for channels in per_group):
        return (
            f"input and output channels of a group must be multiples of {width}, "
            f"got {per_group[0]} and {per_group[1]}"
        )
    return None


def byte_features(op: Conv2d, soc: Soc, storage: Storage = BLOCKED) -> dict[str, float]:
    """`byte_columns` of one op."""
    return single(byte_columns(ConvColumns.of([op]), soc, storage))


def byte_columns(ops: ConvColumns, soc: Soc, storage: Storage = BLOCKED) -> FeatureColumns:
    """Bytes touched once: whole blocks of the input and output, and the weights as packed."""
    width = TEXEL if storage.layout == "image" else soc.gpu.vector_width
    size, oc = float(storage.element_bytes), columns.round_up(ops.oc, width)
    return {
        "input_bytes": size * columns.round_up(ops.ic, width) * ops.ih * ops.iw,
        "weight_bytes": size * oc * ops.group_ic * ops.window,
        "output_bytes": size * oc * ops.pixels,
    }


def _crossing(ops: ConvColumns, pixels: Column, tiles: Column) -> Column:
    """Tiles that lie in more than one row; none where the window makes of rows a long one."""
    flat = (ops.window == 1) & (ops.sh == 1) & (ops.sw == 1) & ~ops.is_padded
    crossing = np.where(ops.ow < pixels, tiles, np.minimum(ops.oh - 1, tiles))
    return np.where(flat | (columns.rest(ops.ow, pixels) == 0), 0.0, crossing)


def _tiles_over_ends(ops: ConvColumns, t: _DirectTiling) -> Column:
    """Tiles that lie in more than one row, or are not full: each of their pixels has a pointer."""
    crossing = _crossing(ops, t.pixels, t.tiles)
    result: Column = np.minimum(crossing + (columns.rest(ops.pixels, t.pixels) > 0), t.tiles)
    return result


def _padded_taps(ops: ConvColumns) -> Column:
    """Output pixel rows times taps whose columns reach into the padding: the slower inner loop."""
    return ops.oh * ops.kh * np.minimum(ops.kw - 1, ops.left + ops.right)


def pack_blocks(weight: Array, width: int, outs: int) -> Array:
    """(oc, ic, k, k) -> [oc block / outs][ic block][k][k][lane of ic][outs][lane of oc], flat.

    Only real input lanes are stored (all four where the width is 4), so that three input channels
    cost three steps and not a block's.
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


def pack_bias(bias: Array, width: int, *, blocks_of_zeros: int = 0) -> Array:
    """The bias as whole blocks, followed by blocks of zeros."""
    size = (ceil_div(bias.size, width) + blocks_of_zeros) * width
    packed = np.zeros(size, np.float32)
    packed[: bias.size] = bias.reshape(-1)
    return packed
