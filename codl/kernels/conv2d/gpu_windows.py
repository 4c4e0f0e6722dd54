"""Convolution on the GPU of depthwise windows, to few channels, and over images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, FeatureColumns, ceil_div, round_up
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.records.soc import Soc
from codl.ir.types import ImageSize
from codl.kernels import kernel, tiling
from codl.kernels.base import WEIGHTED, Choice, KernelPlan, ScratchArg
from codl.kernels.conv2d.gpu import WIDE, GpuConv, byte_columns, refuse_groups, team_macros
from codl.kernels.conv2d.gpu_winograd import (
    OfPoints,
    filter_points,
    filter_transform,
    input_args,
    refuse_window,
    tile_counts,
)
from codl.kernels.kernel import IMAGES, Grid, RowTiles, launch, span, window_args, window_macros
from codl.kernels.tiling import (
    TEXEL,
    ChoiceColumns,
    fits,
    group_items,
    holds,
    in_blocks,
    pack_filter,
    waves,
)

#: The most unrolled input columns x taps; longer windows have narrower tiles.
MOST_UNROLLED = 240
#: The most tiles of a work-item on a CPU: about 5 us.
LONGEST_STRIP = 64
#: Pixels of a tile to try, besides the ones that waste least.
CPU_TILES, GPU_TILES = (4, 6, 8, 10, 12, 14), (2, 1, 8)
#: Work-items per compute unit before a work-item computes several pixels.
ITEMS_PER_UNIT = 1024
#: The most products of a channel summed in float16, with a relative error of 1.1e-3.
MOST_HALF_TAPS = 49
#: The most taps of a fully unrolled window.
MOST_TAPS = 49


def refuse_mixing(op: Conv2d) -> str | None:
    if op.input.c == op.out_channels == op.groups:
        return None
    return (
        "groups, input and output channels must be equal, "
        f"got {op.groups}, {op.input.c} and {op.out_channels}"
    )


def pack_windows(weight: Array, width: int) -> Array:
    """(channels, 1, kh, kw) -> (block of `width` channels; kh, kw; channel)."""
    blocks = in_blocks(weight.reshape(len(weight), -1), width)
    return np.ascontiguousarray(blocks.swapaxes(1, 2))


def row_tile(width: Column, soc: Soc) -> Column:
    """Pixels of a row's tile with the least waste, the largest of equals; 4 on a GPU."""
    if not soc.gpu.is_cpu:
        return np.full_like(width, 4)
    low, high = (7, 16) if tiling.assumed_registers(soc.gpu) >= 32 else (4, 10)
    sizes = np.arange(high, low - 1, -1, dtype=np.float64)
    least = sizes[np.argmin(round_up(width, sizes[:, None]), axis=0)]
    return np.where(width < low, float(low), least)


def refuse_taps(op: Conv2d) -> str | None:
    """The reason why a window's products cannot be summed in float16; None if they can."""
    if op.kernel.h * op.kernel.w > MOST_HALF_TAPS:
        return f"in half a window must have at most {MOST_HALF_TAPS} taps, got {op.kernel}"
    return None


class GpuDepthwise(GpuConv):
    """Depthwise windows for a block of channels, with input columns kept in registers."""

    base_name = "gpu_depthwise"
    source = "conv2d/gpu_depthwise.cl"
    multiplies_halves = True
    batches = True

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_mixing(op)

    def refuse_halves(self, op: Conv2d) -> str | None:
        return refuse_taps(op)

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Choices of pixels of a tile, by their distance from the least waste, larger ones first.

        A tile has 1 pixel where none fits.
        """
        likely, sizes = row_tile(ops.ow, soc), CPU_TILES if soc.gpu.is_cpu else GPU_TILES
        pixels = np.vstack([likely, *(np.full_like(likely, size) for size in (*sizes, 1))])
        cost = 100 * np.abs(pixels - likely) - pixels
        cost = cost + 1000 * self.smaller(ops, soc, {"pixels": pixels})
        cost = np.where(span(ops, pixels) * ops.kw <= MOST_UNROLLED, cost, np.inf)
        cost[-1] = np.where(np.isfinite(cost[:-1]).any(axis=0), np.inf, 0)
        return {"pixels": pixels}, cost

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> RowTiles:
        blocks = ceil_div(ops.oc, self.width(soc))
        return RowTiles.of(ops, soc, choice["pixels"], blocks, LONGEST_STRIP)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t, moved = self.cut(ops, soc, choice), byte_columns(self, ops, soc)
        moved_bytes = moved["input_bytes"] + moved["output_bytes"]
        past = (t.in_row * t.pixels - 1) * ops.sw + ops.extent_w > ops.iw + ops.left
        at_border = np.minimum(t.in_row, (ops.left > 0) + 1.0 * past)
        # Taps in rows outside of the input are skipped.
        rows = ops.tap_rows * t.in_row * t.blocks
        loads = ops.tap_rows * t.blocks * span(ops, t.pixels)
        return {
            "padded_macs": rows * t.pixels * ops.kw * self.width(soc),
            "tap_rows": rows,
            "column_loads": loads * t.in_row,
            "border_loads": loads * at_border,
            "stores": ops.pixels * t.blocks,
            "tile_pixels": t.pixels,
            "tiles": t.tiles * t.blocks,
            **t.grid.features,
            **tiling.by_level("moved", moved_bytes, tiling.gpu_cache_bytes(soc)),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = self.cut(*self.alone(op, soc, choice)), self.width(soc)
        return self.convolved(
            op,
            soc,
            t.grid.launch("conv2d_depthwise", *WEIGHTED, tiles=t.tiles, **window_args(op)),
            macros=window_macros(op, choice["pixels"]),
            pack=lambda weight: pack_windows(weight, width).reshape(-1),
        )


class GpuDepthwisePixels(GpuConv):
    """Depthwise windows on a GPU, fully unrolled if small enough."""

    base_name = "gpu_depthwise_pixels"
    source = "conv2d/gpu_depthwise_pixels.cl"
    multiplies_halves = True
    meant_for = kernel.REAL_GPU
    batches = True

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        if (reason := refuse_mixing(op)) is not None:
            return reason
        if op.groups == 1:
            return "groups must be more than 1, got 1"
        if op.kernel.h * op.kernel.w > MOST_TAPS:
            return f"the window must have at most {MOST_TAPS} taps, got {op.kernel}"
        return None

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        items = ops.pixels * ceil_div(ops.ic, self.width(soc))
        few = items < ITEMS_PER_UNIT * soc.gpu.compute_units
        order = np.where(few, [[0.0], [1.0], [2.0]], [[2.0], [0.0], [1.0]])
        return {"pixels": np.array([[1.0], [2.0], [4.0]])}, order

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> RowTiles:
        return RowTiles.of(ops, soc, choice["pixels"], ceil_div(ops.ic, self.width(soc)), 1)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = self.cut(ops, soc, choice)
        return {
            "padded_macs": t.grid.items * t.pixels * ops.window * self.width(soc),
            "work_items": t.grid.items,
            "waves": waves(t.grid.items, soc),  # in one row
            "flops": ops.flops,
            **byte_columns(self, ops, soc),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = self.cut(*self.alone(op, soc, choice)), self.width(soc)
        sizes = {"blocks": t.blocks, "tiles": t.tiles, "row_tiles": t.in_row, **window_args(op)}
        count, items = int(t.grid.items[0]), group_items(soc)
        grid = (round_up(count, items),), (items,), (count,)
        return self.convolved(
            op,
            soc,
            launch("conv2d_depthwise_pixels", grid, *WEIGHTED, **sizes),
            macros={"KERNEL_H": op.kernel.h, **window_macros(op, choice["pixels"])},
            pack=lambda weight: pack_windows(weight, width).reshape(-1),
        )


#: The most pixels of a tile of `GpuNarrow`.
WIDEST = 8


class GpuNarrow(GpuConv):
    """Any window, stride, padding and dilation with at most half a block of output channels."""

    base_name = "gpu_narrow"
    source = "conv2d/gpu_narrow.cl"
    meant_for = kernel.CPU_DEVICE

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        if op.groups != 1:
            return f"groups must be 1, got {op.groups}"
        most = soc.gpu.vector_width // 2
        if op.out_channels > most:
            return f"output channels must be at most {most}, got {op.out_channels}"
        return None

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Choices of pixels of a row: as many as registers have sums for, down to half."""
        widest = np.minimum(WIDEST, np.floor(tiling.most_sums(soc.gpu) / ops.oc))
        pixels = np.arange(WIDEST, 0, -1, dtype=np.float64)[:, None]
        fits = (pixels <= widest) & (pixels > np.floor(widest / 2))
        return {"pixels": pixels}, np.where(fits, -pixels, np.inf)

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> RowTiles:
        return RowTiles.of(ops, soc, choice["pixels"], np.ones_like(ops.oc), LONGEST_STRIP)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t, width = self.cut(ops, soc, choice), soc.gpu.vector_width
        pixels, steps = t.tiles * t.pixels, ops.window * ceil_div(ops.ic, width)
        return {
            "padded_macs": pixels * steps * width * ops.oc,
            "pixel_steps": pixels * steps,
            "tile_steps": t.tiles * steps,
            "lane_sums": pixels * ops.oc,
            **t.grid.features,
            "flops": ops.flops,
            **byte_columns(self, ops, soc),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = self.cut(*self.alone(op, soc, choice)), soc.gpu.vector_width
        in_blocks = soc.gpu.blocks(op.input.c)
        sizes = {"tiles": t.tiles, "in_blocks": in_blocks, **window_args(op)}
        return self.convolved(
            op,
            soc,
            t.grid.launch("conv2d_narrow", *WEIGHTED, **sizes),
            macros={"PIXELS": choice["pixels"], "OUTS": op.out_channels, "STRIDE_W": op.stride.w},
            pack=lambda weight: _pack(weight, width),
        )


def _pack(weight: Array, width: int) -> Array:
    """(oc, ic, kh, kw) -> [ic block][kh][kw][oc][lane of ic], flat."""
    return np.ravel(np.transpose(in_blocks(weight, width, axis=1), (1, 3, 4, 0, 2)))


# Images: texture units load four channels, and pad with zeros.


#: The most texels read by a work-item on a CPU, which emulates images: about 20 us.
MOST_TEXELS = 4096


class OverImages(GpuConv):
    """Base of window kernels over images: texture units load four channels, and pad with zeros."""

    storages = IMAGES
    #: Choices of output pixels per work-item, the default first; on a GPU alone, fewer.
    pixels: tuple[int, ...]
    fewer_pixels: tuple[int, ...] = ()
    #: The width of a work-group; see `Grid`.
    wide: int = WIDE

    def filter_size(self, ops: ConvColumns) -> tuple[Column, Column]:
        """Width and height of the filter image, in texels."""
        raise NotImplementedError

    def reads(self, ops: ConvColumns) -> Column:
        """Texels read per pixel of one block of output channels."""
        raise NotImplementedError

    def refuse_filter(self, op: Conv2d, soc: Soc) -> str | None:
        width, height = (int(size[0]) for size in self.filter_size(ConvColumns.of([op])))
        return tiling.size_refusal(soc, width, height, "the filter")

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        sizes = self.pixels if soc.gpu.is_cpu else (*self.pixels, *self.fewer_pixels)
        pixels = np.array(sizes, np.float64)[:, None]
        order = np.arange(len(sizes), dtype=np.float64)[:, None]
        order = order + len(sizes) * self.smaller(ops, soc, {"pixels": pixels})
        if self.arithmetic == "float16":  # sums, and the float16 partial sums
            order = order + len(sizes) * ~np.asarray(holds(soc.gpu, 8 * pixels + 16))
        return {"pixels": pixels}, np.broadcast_to(order, (len(sizes), len(ops)))

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> RowTiles:
        pixels = choice["pixels"]
        longest = np.maximum(1, np.floor(MOST_TEXELS / (pixels * self.reads(ops))))
        blocks = ceil_div(ops.oc, TEXEL)
        return RowTiles.of(ops, soc, pixels, blocks, longest, choice=choice, wide=self.wide)


class GpuImage(OverImages):
    """Any window, stride, padding and dilation; groups of whole texels."""

    base_name = "gpu_direct"
    source = "conv2d/gpu_image.cl"
    multiplies_halves = True
    pixels = (4, 2, 8)
    fewer_pixels = (1,)

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_groups(op, TEXEL) or self.refuse_filter(op, soc)

    def filter_size(self, ops: ConvColumns) -> tuple[Column, Column]:
        return TEXEL * ceil_div(ops.group_ic, TEXEL), ceil_div(ops.oc, TEXEL) * ops.window

    def reads(self, ops: ConvColumns) -> Column:
        return ceil_div(ops.group_ic, TEXEL) * ops.window

    def team_blocks(self, ops: ConvColumns) -> Column:
        return ceil_div(ops.group_ic, TEXEL)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = self.cut(ops, soc, choice)
        steps = t.tiles * t.blocks * self.reads(ops)
        return {
            "padded_macs": steps * t.pixels * TEXEL * TEXEL,
            "texel_reads": steps * t.pixels,
            "tile_steps": steps,
            "tiles": t.tiles * t.blocks,
            **t.grid.features,
            "flops": ops.flops,
            **byte_columns(self, ops, soc),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t = self.cut(*self.alone(op, soc, choice))
        sizes = {
            "tiles": t.tiles,
            "tiles_w": t.in_row,
            "in_blocks": -(-(op.input.c // op.groups) // TEXEL),
            "out_blocks": int(t.blocks[0]) // op.groups,
            **window_args(op),
        }
        return self.convolved(
            op,
            soc,
            t.grid.launch("conv2d_image", *WEIGHTED, **sizes),
            macros={
                **team_macros(t.grid),
                "PIXELS": choice["pixels"],
                "ONE_BY_ONE": op.kernel == (1, 1) and not any(op.pad),
            },
            pack=pack_filter,
            images={"weight"},
        )


class GpuImageDepthwise(OverImages):
    """Depthwise windows over images: a texel has one pixel of four channels."""

    base_name = "gpu_depthwise"
    wide = 16  # blocks have no inputs in common
    source = "conv2d/gpu_image_depthwise.cl"
    multiplies_halves = True
    pixels = (4, 2, 1)

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_mixing(op) or self.refuse_filter(op, soc)

    def refuse_halves(self, op: Conv2d) -> str | None:
        return refuse_taps(op)

    def filter_size(self, ops: ConvColumns) -> tuple[Column, Column]:
        return ops.window, ceil_div(ops.oc, TEXEL)

    def reads(self, ops: ConvColumns) -> Column:
        return ops.window

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = self.cut(ops, soc, choice)
        tiles = t.tiles * t.blocks
        return {
            "padded_macs": tiles * t.pixels * ops.window * TEXEL,
            "texel_reads": tiles * (t.pixels + 1) * ops.window,
            "tiles": tiles,
            **t.grid.features,
            "flops": ops.flops,
            **byte_columns(self, ops, soc),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t = self.cut(*self.alone(op, soc, choice))
        sizes = {"tiles": t.tiles, "tiles_w": t.in_row, **window_args(op)}
        return self.convolved(
            op,
            soc,
            t.grid.launch("conv2d_image_depthwise", *WEIGHTED, **sizes),
            macros={"PIXELS": choice["pixels"]},
            pack=lambda weight: pack_windows(weight, TEXEL),
            images={"weight"},
        )


# Winograd: F(4x4, 3x3) or F(2x2, 3x3); transformed tiles are images.


#: Larger tiles multiply the rounding error of float16 by ten in the transform back, to 1e-2.
MOST_HALF_TILE = 2
#: Choices of the tile in the order of trial; the first that fits is the default.
TILES = (4, 2)


@dataclass(frozen=True)
class ImageWinogradTiling:
    """Tiles of convolutions, and the sizes of the intermediate images."""

    tile: Column
    tiles: Column
    tiles_w: Column
    in_blocks: Column
    out_blocks: Column
    grid: Grid

    @property
    def points(self) -> tuple[Column, Column]:
        """Width and height of the image of the transformed input."""
        return self.tiles, (self.tile + 2) ** 2 * self.in_blocks

    @property
    def sums(self) -> tuple[Column, Column]:
        return self.tiles, (self.tile + 2) ** 2 * self.out_blocks

    def fits(self, soc: Soc) -> NDArray[np.bool_]:
        weights = TEXEL * self.in_blocks, self.sums[1]
        return fits(soc, *self.points) & fits(soc, *self.sums) & fits(soc, *weights)


class GpuImageWinograd(OfPoints, GpuConv):
    """3x3 windows with stride 1: 36 products for 16 outputs, or 16 for 4."""

    base_name = "gpu_winograd"
    source = "conv2d/gpu_image_winograd.cl"
    multiplies_halves = True
    storages = IMAGES

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_window(op)

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        reason = super().refusal(op, soc)
        if reason is not None or self.choices(op, soc):
            return reason
        choices, _ = self.ranked(ConvColumns.of([op]), soc)
        width, height = self.cut(ConvColumns.of([op]), soc, choices).sums
        return (
            f"images must be at most {soc.gpu.max_image_width}x{soc.gpu.max_image_height} "
            f"texels, got {width[0, 0]:.0f}x{height[0, 0]:.0f} for the sums at all points"
        )

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        tile = np.array(TILES, np.float64)[:, None]
        order = np.arange(len(TILES), dtype=np.float64)[:, None]
        holds_large = bool(holds(soc.gpu, 36 * TEXEL))  # the texels of a tile for 16 outputs
        fits = self.cut(ops, soc, {"tile": tile}).fits(soc) & ((tile == 2) | holds_large)
        if self.arithmetic == "float16":
            fits &= tile <= MOST_HALF_TILE
        return {"tile": tile}, np.where(fits, order, np.inf)

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> ImageWinogradTiling:
        tiles_w, tiles = tile_counts(ops, choice["tile"])
        out_blocks = ceil_div(ops.oc, TEXEL)
        others = (choice["tile"] + 2) ** 2 * out_blocks
        return ImageWinogradTiling(
            tile=choice["tile"],
            tiles=tiles,
            tiles_w=tiles_w,
            in_blocks=ceil_div(ops.ic, TEXEL),
            out_blocks=out_blocks,
            grid=Grid.of(ceil_div(tiles, 4), others, 1, soc, choice=choice, wide=WIDE),
        )

    def team_blocks(self, ops: ConvColumns) -> Column:
        return ceil_div(ops.ic, TEXEL)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = self.cut(ops, soc, choice)
        products = ceil_div(t.tiles, 4) * t.sums[1]
        on_cpu = {"work_items": products, "waves": waves(products, soc)}
        return {
            "padded_macs": products * t.in_blocks * 4 * TEXEL * TEXEL,
            "texel_reads": products * t.in_blocks * 8,
            "points": t.points[0] * t.points[1],
            "sums": t.sums[0] * t.sums[1],
            "tiles": t.tiles,
            **(t.grid.features if not soc.gpu.is_cpu else on_cpu),
            "flops": ops.flops,
            **byte_columns(self, ops, soc),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t = self.cut(*self.alone(op, soc, choice))
        tiles, in_blocks, out_blocks, points_w, points_h, sums_w, sums_h = (
            int(column[0]) for column in (t.tiles, t.in_blocks, t.out_blocks, *t.points, *t.sums)
        )
        source, target, weight, bias = WEIGHTED
        side = choice["tile"] + 2
        points, sums = ScratchArg("points"), ScratchArg("sums")
        over_inputs, over_outputs = (
            Grid.of(tiles, blocks, 1, soc).sizes for blocks in (in_blocks, out_blocks)
        )
        counts = {"tiles": tiles, "tiles_w": t.tiles_w}
        into = {**counts, "blocks": in_blocks, **input_args(op)}
        product = {"tiles": tiles, "in_blocks": in_blocks, "out_blocks": out_blocks}
        out_of = {**counts, "out_blocks": out_blocks, "out_h": op.output.h, "out_w": op.output.w}
        return self.convolved(
            op,
            soc,
            launch("winograd_image_input", over_inputs, source, points, **into),
            launch("winograd_image_product", t.grid.sizes, points, sums, weight, **product),
            launch("winograd_image_output", over_outputs, sums, target, bias, **out_of),
            macros={**team_macros(t.grid), "TILE": choice["tile"], "SIDE": side},
            pack=lambda weight: pack_filter(
                filter_points(weight, filter_transform(side, 3)).reshape(
                    *weight.shape[:2], side, side
                )
            ),
            scratch={
                "points": ImageSize(points_w, points_h, self.arithmetic),
                "sums": ImageSize(sums_w, sums_h),
            },
            images={"weight"},
        )
