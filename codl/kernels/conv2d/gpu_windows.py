"""Convolution on the GPU, window by window: depthwise, over images, and groups that fill no block.

Other convolutions over buffers are `gpu_direct`'s.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels.architecture import holds
from codl.kernels.base import WEIGHTED, Choice, KernelPlan
from codl.kernels.conv2d.gpu import (
    WIDE,
    GpuConv,
    byte_columns,
    moved_columns,
    refuse_groups,
    team_macros,
)
from codl.kernels.cpu_device import registers
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.image import fits, pack_filter
from codl.kernels.kernel import BLOCKS, IMAGES, REAL_GPU, Grid, launch
from codl.kernels.tiling import TEXEL, group_items, round_up, waves
from codl.kernels.window import RowTiles, span, span_macros, window_args
from codl.records.soc import Soc

#: Input columns x taps that are unrolled at most; a longer window gets a narrower tile.
MOST_UNROLLED = 240
#: Tiles that one work-item of a CPU takes at most: about 5 us.
LONGEST_STRIP = 64
#: Pixels of a tile worth trying, beside those that waste least.
CPU_TILES, GPU_TILES = (4, 6, 8, 10, 12, 14), (2, 1, 8)
#: Work-items that a compute unit should get before an item takes more than one pixel.
ITEMS_PER_UNIT = 1024
#: Products of a channel that are summed as halves: off by 1.1e-3 of their size.
MOST_HALF_TAPS = 49
#: Taps that are unrolled at most where all of a window are.
MOST_TAPS = 49
#: Texels that one work-item of a CPU, where images are emulated, reads at most: about 20 us.
MOST_TEXELS = 4096


def refuse_mixing(op: Conv2d) -> str | None:
    """Why an op is none that computes every channel from one alone."""
    if op.input.c == op.out_channels == op.groups:
        return None
    return (
        "groups, input and output channels must be equal, "
        f"got {op.groups}, {op.input.c} and {op.out_channels}"
    )


def pack_windows(weight: Array, width: int) -> Array:
    """(channels, 1, kh, kw) -> (block of `width` channels; kh, kw; channel)."""
    channels, window = weight.shape[0], weight.shape[2] * weight.shape[3]
    padded = np.zeros((round_up(channels, width), window), np.float32)
    padded[:channels] = weight.reshape(channels, window)
    return np.ascontiguousarray(padded.reshape(-1, width, window).swapaxes(1, 2))


def row_tile(width: Column, soc: Soc) -> Column:
    """Pixels of a tile of one row: those that waste least, the largest of equals; 4 on a GPU."""
    if not soc.gpu.is_cpu:
        return np.full_like(width, 4)
    low, high = (7, 16) if registers.assumed_registers(soc.gpu) >= 32 else (4, 10)
    sizes = np.arange(high, low - 1, -1, dtype=np.float64)
    least = sizes[np.argmin(round_up(width, sizes[:, None]), axis=0)]
    return np.where(width < low, float(low), least)


def refuse_taps(op: Conv2d) -> str | None:
    """Why a window's products cannot be summed as halves."""
    if op.kernel.h * op.kernel.w > MOST_HALF_TAPS:
        return f"in half a window must have at most {MOST_HALF_TAPS} taps, got {op.kernel}"
    return None


class GpuDepthwise(GpuConv):
    """A window for every channel alone: a block of them, columns of the input kept in registers."""

    base_name = "gpu_depthwise"
    source = "conv2d/gpu_depthwise.cl"
    multiplies_halves = True
    batches = True

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_mixing(op)

    def refuse_halves(self, op: Conv2d) -> str | None:
        return refuse_taps(op)

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Pixels of a tile, and the most tiles of a work-item.

        The closer to what wastes least the likelier, the larger of equals; one where none fits.
        """
        likely, on_cpu = row_tile(ops.ow, soc), soc.gpu.is_cpu
        sizes = CPU_TILES if on_cpu else GPU_TILES
        strips = (LONGEST_STRIP, LONGEST_STRIP // 4) if on_cpu else (1,)
        pixels = np.vstack([likely, *(np.full_like(likely, size) for size in (*sizes, 1))])
        cost = 100 * np.abs(pixels - likely) - pixels
        if not on_cpu:
            cost = cost + 1000 * self.smaller(ops, soc, {"pixels": pixels, "strip": 1.0})
        cost = np.where(span(ops, pixels) * ops.kw <= MOST_UNROLLED, cost, np.inf)
        cost[-1] = np.where(np.isfinite(cost[:-1]).any(axis=0), np.inf, 0)
        # Each with every strip, the longest first.
        choices = {"pixels": pixels[:, None], "strip": np.reshape(strips, (-1, 1))}
        return choices, np.repeat(cost[:, None], len(strips), axis=1)

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> RowTiles:
        blocks = ceil_div(ops.oc, self.width(soc))
        return RowTiles.of(ops, soc, choice["pixels"], blocks, choice["strip"], choice=choice)

    def grid(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> Grid:
        return self.cut(ops, soc, choice).grid

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = self.cut(ops, soc, choice)
        past = (t.in_row * t.pixels - 1) * ops.sw + ops.extent_w > ops.iw + ops.left
        at_border = np.minimum(t.in_row, (ops.left > 0) + 1.0 * past)
        # Rows of taps beside the input are left out.
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
            **moved_columns(self, ops, soc),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = self.cut(*self.alone(op, soc, choice)), self.width(soc)
        sizes = {"strip": t.grid.strip, "tiles": t.tiles, **window_args(op)}
        return self.convolved(
            op,
            soc,
            launch("conv2d_depthwise", t.grid.sizes, *WEIGHTED, **sizes),
            macros={
                "PIXELS": choice["pixels"],
                "KERNEL_W": op.kernel.w,
                "STRIDE_W": op.stride.w,
                "DILATION_W": op.dilation.w,
                **span_macros(op, choice["pixels"]),
            },
            pack=lambda weight: pack_windows(weight, width).reshape(-1),
        )


class GpuDepthwisePixels(GpuConv):
    """The same on a GPU, for windows small enough to be unrolled: items enough to fill it with."""

    base_name = "gpu_depthwise_pixels"
    source = "conv2d/gpu_depthwise_pixels.cl"
    multiplies_halves = True
    meant_for = REAL_GPU
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
            macros={
                "PIXELS": choice["pixels"],
                "KERNEL_H": op.kernel.h,
                "KERNEL_W": op.kernel.w,
                "STRIDE_W": op.stride.w,
                "DILATION_W": op.dilation.w,
                **span_macros(op, choice["pixels"]),
            },
            pack=lambda weight: pack_windows(weight, width).reshape(-1),
        )


class GpuGrouped(GpuConv):
    """Grouped convolution one scalar at a time, for groups that do not fill blocks: slow but right.

    Over buffers and over images.
    """

    base_name = "gpu_grouped"
    storages = (*BLOCKS, *IMAGES)

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        if op.groups == 1:
            return "groups must be more than 1, got 1"
        if op.is_depthwise:
            return f"groups must have more than one channel, got {op.groups} groups of one"
        return None

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> Grid:
        blocks = ceil_div(ops.oc, self.width(soc))
        return Grid.of(ops.pixels, blocks, 1, soc, choice=choice)

    def grid(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> Grid:
        return self.cut(ops, soc, choice)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        outputs = ops.oc * ops.pixels
        return {
            "macs": ops.tap_rows * ops.tap_columns * ops.oc * ops.group_ic,
            "taps": outputs * ops.group_ic * ops.window,
            "rows_of_taps": outputs * ops.group_ic * ops.kh,
            "outputs": outputs,
            **self.cut(ops, soc, choice).features,
            **moved_columns(self, ops, soc),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        kernel = "image_grouped" if self.in_images else "grouped"
        sizes = {
            "group_in": op.input.c // op.groups,
            "group_out": op.out_channels // op.groups,
            "out_channels": op.out_channels,
            "out_pixels": op.output.h * op.output.w,
            **window_args(op),
        }
        grid = self.cut(*self.alone(op, soc, choice))
        return self.convolved(
            op,
            soc,
            launch(f"conv2d_{kernel}", grid.sizes, *WEIGHTED, **sizes),
            source=f"conv2d/gpu_{kernel}.cl",
            pack=lambda weight: weight.reshape(-1),
        )


class OverImages(GpuConv):
    """Base of windows over images: the texture units fetch four channels, and pad with zeros."""

    storages = IMAGES
    #: Output pixels of a work-item to choose from, the usual number first; fewer on a GPU alone.
    pixels: tuple[int, ...]
    fewer_pixels: tuple[int, ...] = ()
    #: The width of a work-group; see `Grid`.
    wide: int = WIDE

    def filter_size(self, ops: ConvColumns) -> tuple[Column, Column]:
        """Width and height of the filter as an image."""
        raise NotImplementedError

    def reads(self, ops: ConvColumns) -> Column:
        """Texels that are read for a pixel of one block of output channels."""
        raise NotImplementedError

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Whether the filter is an image, where it fits, and pixels of a work-item."""
        sizes = self.pixels if soc.gpu.is_cpu else (*self.pixels, *self.fewer_pixels)
        rows = [(as_image, pixels) for as_image in (1, 0) for pixels in sizes]
        as_image, pixels = np.array(rows, np.float64).T[..., None]
        choices = {"filter_image": as_image, "pixels": pixels}
        order = np.arange(len(rows), dtype=np.float64)[:, None]
        order = order + len(rows) * self.smaller(ops, soc, choices)
        if self.arithmetic == "float16":  # sums, and what they are made of apart
            order = order + len(rows) * ~np.asarray(holds(soc.gpu, 8 * pixels + 16))
        return choices, np.where(as_image <= fits(soc, *self.filter_size(ops)), order, np.inf)

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> RowTiles:
        pixels = choice["pixels"]
        longest = np.maximum(1, np.floor(MOST_TEXELS / (pixels * self.reads(ops))))
        blocks = ceil_div(ops.oc, TEXEL)
        return RowTiles.of(ops, soc, pixels, blocks, longest, choice=choice, wide=self.wide)

    def grid(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> Grid:
        return self.cut(ops, soc, choice).grid


class GpuImage(OverImages):
    """Any window, stride, padding and dilation; groups of whole texels."""

    base_name = "gpu_direct"
    source = "conv2d/gpu_image.cl"
    multiplies_halves = True
    pixels = (4, 2, 8)
    fewer_pixels = (1,)

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_groups(op, TEXEL)

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
            "strip": t.grid.strip,
            "tiles": t.tiles,
            "tiles_w": t.in_row,
            "in_blocks": -(-(op.input.c // op.groups) // TEXEL),
            "out_blocks": int(t.blocks[0]) // op.groups,
            **window_args(op),
        }
        return self.convolved(
            op,
            soc,
            launch("conv2d_image", t.grid.sizes, *WEIGHTED, **sizes),
            macros={
                **team_macros(t.grid),
                "PIXELS": choice["pixels"],
                "FILTER_IMAGE": bool(choice["filter_image"]),
                "ONE_BY_ONE": op.kernel == (1, 1) and not any(op.pad),
            },
            pack=pack_filter,
            images={"weight"} if choice["filter_image"] else (),
        )


class GpuImageDepthwise(OverImages):
    """A window for every channel alone: a texel of four channels is a pixel of four windows."""

    base_name = "gpu_depthwise"
    wide = 16  # blocks share no inputs
    source = "conv2d/gpu_image_depthwise.cl"
    multiplies_halves = True
    pixels = (4, 2, 1)

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_mixing(op)

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
        sizes = {"strip": t.grid.strip, "tiles": t.tiles, "tiles_w": t.in_row, **window_args(op)}
        filter_image = bool(choice["filter_image"])
        return self.convolved(
            op,
            soc,
            launch("conv2d_image_depthwise", t.grid.sizes, *WEIGHTED, **sizes),
            macros={
                "PIXELS": choice["pixels"],
                "FILTER_IMAGE": filter_image,
            },
            pack=lambda weight: pack_windows(weight, TEXEL),
            images={"weight"} if filter_image else (),
        )
