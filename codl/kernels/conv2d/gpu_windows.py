"""Convolution on the GPU, window by window: depthwise, over images, and groups that fill no block.

Other convolutions over buffers are `gpu_direct`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels.base import KernelLaunch
from codl.kernels.conv2d.gpu import GpuConv, Macros, flags, one_launch, refuse_groups
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.image import TEXEL, pack_filter
from codl.kernels.tiling import GROUP, item_grid, round_up
from codl.kernels.tiling_columns import row_tile, waves
from codl.kernels.window import RowTiles, span, whole, window_args
from codl.records.soc import Soc


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


class GpuDepthwise(GpuConv):
    """A window for every channel alone: a block of them, columns of the input kept in registers."""

    base_name: ClassVar[str] = "gpu_depthwise"
    takes_batch: ClassVar[bool] = True
    source: ClassVar[str] = "conv2d/gpu_depthwise.cl"

    #: Input columns x taps that are unrolled at most; a longer window gets a narrower tile.
    MOST_UNROLLED: ClassVar[int] = 240
    #: Tiles that one work-item of a CPU takes at most: about 5 us.
    LONGEST_STRIP: ClassVar[int] = 64
    #: Pixels of a tile worth trying, beside those that waste least.
    CPU_TILES: ClassVar[tuple[int, ...]] = (4, 6, 8, 10, 12, 14)
    GPU_TILES: ClassVar[tuple[int, ...]] = (2, 8)

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_mixing(op)

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Pixels of a tile, and the most tiles of a work-item.

        The closer to what wastes least the likelier, the larger of equals; one where none fits.
        """
        likely, on_cpu = row_tile(ops.ow, soc), soc.gpu.is_cpu
        sizes = self.CPU_TILES if on_cpu else self.GPU_TILES
        strips = (self.LONGEST_STRIP, self.LONGEST_STRIP // 4) if on_cpu else (1,)
        pixels = np.vstack([likely, *(np.full_like(likely, size) for size in (*sizes, 1))])
        cost = 100 * np.abs(pixels - likely) - pixels
        cost = np.where(span(ops, pixels) * ops.kw <= self.MOST_UNROLLED, cost, np.inf)
        cost[-1] = np.where(np.isfinite(cost[:-1]).any(axis=0), np.inf, 0)
        count = len(strips)
        return {
            "pixels": np.repeat(pixels, count, axis=0),
            "strip": np.tile(np.array(strips, np.float64), len(pixels))[:, None],
        }, np.repeat(cost, count, axis=0)

    def cut(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> RowTiles:
        blocks = ceil_div(ops.oc, self.width(soc))
        return RowTiles.of(ops, soc, choice["pixels"], blocks, choice["strip"])

    def count(self, ops: ConvColumns, cut: RowTiles, soc: Soc) -> FeatureColumns:
        past = (cut.in_row * cut.pixels - 1) * ops.sw + ops.extent_w > ops.iw + ops.left
        at_border = np.minimum(cut.in_row, (ops.left > 0) + 1.0 * past)
        # Rows of taps beside the input are left out.
        rows = ops.tap_rows * cut.in_row * cut.blocks
        loads = ops.tap_rows * cut.blocks * span(ops, cut.pixels)
        return {
            "padded_macs": rows * cut.pixels * ops.kw * self.width(soc),
            "tap_rows": rows,
            "column_loads": loads * cut.in_row,
            "border_loads": loads * at_border,
            "stores": ops.pixels * cut.blocks,
            "tile_pixels": cut.pixels,
            "tiles": cut.tiles * cut.blocks,
            **cut.item_features(soc),
            **self.moved_features(ops, soc),
        }

    def launches(self, op: Conv2d, cut: RowTiles, soc: Soc) -> tuple[KernelLaunch, ...]:
        sizes = (*whole(cut.strip, cut.tiles), *window_args(op))
        return one_launch("conv2d_depthwise", cut.grid(soc), sizes)

    def macros(self, op: Conv2d, cut: RowTiles, soc: Soc) -> Macros:
        steps = {"STRIDE_W": op.stride.w, "DILATION_W": op.dilation.w}
        return {"PIXELS": int(cut.pixels[0]), "KERNEL_W": op.kernel.w, **steps}

    def pack(self, weight: Array, cut: RowTiles, soc: Soc) -> Array:
        return pack_windows(weight, self.width(soc)).reshape(-1)


class GpuDepthwisePixels(GpuConv):
    """The same on a GPU, for windows small enough to be unrolled: items enough to fill it with."""

    base_name: ClassVar[str] = "gpu_depthwise_pixels"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})
    takes_batch: ClassVar[bool] = True
    source: ClassVar[str] = "conv2d/gpu_depthwise_pixels.cl"

    #: Work-items that a compute unit should get before an item takes more than one pixel.
    ITEMS_PER_UNIT: ClassVar[int] = 1024
    #: Taps that are unrolled at most.
    MOST_TAPS: ClassVar[int] = 49

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        if (reason := refuse_mixing(op)) is not None:
            return reason
        if op.groups == 1:
            return "groups must be more than 1, got 1"
        if op.kernel.h * op.kernel.w > self.MOST_TAPS:
            return f"the window must have at most {self.MOST_TAPS} taps, got {op.kernel}"
        return None

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        items = ops.pixels * ceil_div(ops.ic, self.width(soc))
        few = items < self.ITEMS_PER_UNIT * soc.gpu.compute_units
        order = np.where(few, [[0.0], [1.0], [2.0]], [[2.0], [0.0], [1.0]])
        return {"pixels": np.array([[1.0], [2.0], [4.0]])}, order

    def cut(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> RowTiles:
        return RowTiles.of(ops, soc, choice["pixels"], ceil_div(ops.ic, self.width(soc)), 1)

    def count(self, ops: ConvColumns, cut: RowTiles, soc: Soc) -> FeatureColumns:
        return {
            "padded_macs": cut.items * cut.pixels * ops.window * self.width(soc),
            **cut.item_features(soc),
            "flops": ops.flops,
            **self.byte_columns(ops, soc),
        }

    def launches(self, op: Conv2d, cut: RowTiles, soc: Soc) -> tuple[KernelLaunch, ...]:
        blocks, tiles, in_row = whole(cut.blocks, cut.tiles, cut.in_row)
        sizes = (blocks, tiles, in_row, *window_args(op))
        grid = ((round_up(tiles * blocks, GROUP),), (GROUP,))
        return one_launch("conv2d_depthwise_pixels", grid, sizes)

    def macros(self, op: Conv2d, cut: RowTiles, soc: Soc) -> Macros:
        return {
            "PIXELS": int(cut.pixels[0]),
            "KERNEL_H": op.kernel.h,
            "KERNEL_W": op.kernel.w,
            "STRIDE_W": op.stride.w,
            "DILATION_W": op.dilation.w,
        }

    def pack(self, weight: Array, cut: RowTiles, soc: Soc) -> Array:
        return pack_windows(weight, self.width(soc)).reshape(-1)


class GpuGrouped(GpuConv):
    """Grouped convolution one scalar at a time, for groups that do not fill blocks: slow but right.

    Over buffers and over images.
    """

    base_name: ClassVar[str] = "gpu_grouped"

    @property
    def _kernel(self) -> str:
        return "image_grouped" if self.over_images else "grouped"

    @property
    def source(self) -> str:  # type: ignore[override]
        return f"conv2d/gpu_{self._kernel}.cl"

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        if op.groups == 1:
            return "groups must be more than 1, got 1"
        if op.is_depthwise:
            return f"groups must have more than one channel, got {op.groups} groups of one"
        return None

    def cut(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> Column:
        """Blocks of output channels."""
        return ceil_div(ops.oc, self.width(soc))

    def count(self, ops: ConvColumns, cut: Column, soc: Soc) -> FeatureColumns:
        items, outputs = ops.pixels * cut, ops.oc * ops.pixels
        return {
            "macs": ops.tap_rows * ops.tap_columns * ops.oc * ops.group_ic,
            "taps": outputs * ops.group_ic * ops.window,
            "rows_of_taps": outputs * ops.group_ic * ops.kh,
            "outputs": outputs,
            "work_items": items,
            "waves": waves(items, soc),
            **self.moved_features(ops, soc),
        }

    def launches(self, op: Conv2d, cut: Column, soc: Soc) -> tuple[KernelLaunch, ...]:
        pixels = op.output.h * op.output.w
        channels = (op.input.c // op.groups, op.out_channels // op.groups, op.out_channels)
        sizes = (*channels, pixels, *window_args(op))
        return one_launch(f"conv2d_{self._kernel}", item_grid(pixels, int(cut[0]), soc), sizes)

    def pack(self, weight: Array, cut: Column, soc: Soc) -> Array:
        return weight.reshape(-1)


@dataclass(frozen=True)
class ImageTiles(RowTiles):
    """Tiles over images, and whether the filter is an image too."""

    filter_image: Column


class OverImages(GpuConv):
    """Base of windows over images: the texture units fetch four channels, and pad with zeros."""

    #: Output pixels of a work-item to choose from, the usual number first.
    pixels: ClassVar[tuple[int, ...]]
    #: Texels that one work-item of a CPU, where images are emulated, reads at most: about 20 us.
    LONGEST_STRIP: ClassVar[int] = 4096

    def filter_size(self, ops: ConvColumns) -> tuple[Column, Column]:
        """Width and height of the filter as an image."""
        raise NotImplementedError

    def reads(self, ops: ConvColumns) -> Column:
        """Texels that are read for a pixel of one block of output channels."""
        raise NotImplementedError

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Whether the filter is an image, where it fits, and pixels of a work-item."""
        width, height = self.filter_size(ops)
        fits = (width <= soc.gpu.max_image_width) & (height <= soc.gpu.max_image_height)
        rows = [(as_image, pixels) for as_image in (1, 0) for pixels in self.pixels]
        as_image, pixels = np.array(rows, np.float64).T[..., None]
        order = np.arange(len(rows), dtype=np.float64)[:, None]
        return {
            "filter_image": as_image,
            "pixels": pixels,
        }, np.where(as_image <= fits, order, np.inf)

    def cut(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> ImageTiles:
        pixels = choice["pixels"]
        longest = np.maximum(1, np.floor(self.LONGEST_STRIP / (pixels * self.reads(ops))))
        tiles = RowTiles.of(ops, soc, pixels, ceil_div(ops.oc, TEXEL), longest)
        return ImageTiles(**vars(tiles), filter_image=choice["filter_image"])

    def macros(self, op: Conv2d, cut: ImageTiles, soc: Soc) -> Macros:
        filter_image = flags(FILTER_IMAGE=bool(cut.filter_image[0]))
        return {"PIXELS": int(cut.pixels[0]), "STRIDE_W": op.stride.w, **filter_image}

    def images(self, cut: ImageTiles) -> frozenset[str]:
        return frozenset({"weight"} if cut.filter_image[0] else ())


class GpuImage(OverImages):
    """Any window, stride, padding and dilation; groups of whole texels."""

    base_name: ClassVar[str] = "gpu_direct"
    source: ClassVar[str] = "conv2d/gpu_image.cl"
    pixels: ClassVar[tuple[int, ...]] = (4, 2, 8)

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_groups(op, TEXEL)

    def filter_size(self, ops: ConvColumns) -> tuple[Column, Column]:
        return TEXEL * ceil_div(ops.group_ic, TEXEL), ceil_div(ops.oc, TEXEL) * ops.window

    def reads(self, ops: ConvColumns) -> Column:
        return ceil_div(ops.group_ic, TEXEL) * ops.window

    def count(self, ops: ConvColumns, cut: ImageTiles, soc: Soc) -> FeatureColumns:
        steps = cut.tiles * cut.blocks * self.reads(ops)
        return {
            "padded_macs": steps * cut.pixels * TEXEL * TEXEL,
            "texel_reads": steps * cut.pixels,
            "tile_steps": steps,
            "tiles": cut.tiles * cut.blocks,
            **cut.item_features(soc),
            "flops": ops.flops,
            **self.byte_columns(ops, soc),
        }

    def launches(self, op: Conv2d, cut: ImageTiles, soc: Soc) -> tuple[KernelLaunch, ...]:
        length, tiles, in_row, blocks = whole(cut.strip, cut.tiles, cut.in_row, cut.blocks)
        in_blocks = -(-(op.input.c // op.groups) // TEXEL)
        sizes = (length, tiles, in_row, in_blocks, blocks // op.groups, *window_args(op))
        return one_launch("conv2d_image", cut.grid(soc), sizes)

    def macros(self, op: Conv2d, cut: ImageTiles, soc: Soc) -> Macros:
        one_by_one = op.kernel == (1, 1) and not any(op.pad)
        return {**super().macros(op, cut, soc), **flags(ONE_BY_ONE=one_by_one)}

    def pack(self, weight: Array, cut: ImageTiles, soc: Soc) -> Array:
        return pack_filter(weight)


class GpuImageDepthwise(OverImages):
    """A window for every channel alone: a texel of four channels is a pixel of four windows."""

    base_name: ClassVar[str] = "gpu_depthwise"
    source: ClassVar[str] = "conv2d/gpu_image_depthwise.cl"
    pixels: ClassVar[tuple[int, ...]] = (4, 2, 1)

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_mixing(op)

    def filter_size(self, ops: ConvColumns) -> tuple[Column, Column]:
        return ops.window, ceil_div(ops.oc, TEXEL)

    def reads(self, ops: ConvColumns) -> Column:
        return ops.window

    def count(self, ops: ConvColumns, cut: ImageTiles, soc: Soc) -> FeatureColumns:
        tiles = cut.tiles * cut.blocks
        return {
            "padded_macs": tiles * cut.pixels * ops.window * TEXEL,
            "texel_reads": tiles * (cut.pixels + 1) * ops.window,
            "tiles": tiles,
            **cut.item_features(soc),
            "flops": ops.flops,
            **self.byte_columns(ops, soc),
        }

    def launches(self, op: Conv2d, cut: ImageTiles, soc: Soc) -> tuple[KernelLaunch, ...]:
        sizes = (*whole(cut.strip, cut.tiles, cut.in_row), *window_args(op))
        return one_launch("conv2d_image_depthwise", cut.grid(soc), sizes)

    def pack(self, weight: Array, cut: ImageTiles, soc: Soc) -> Array:
        return pack_windows(weight, TEXEL)
