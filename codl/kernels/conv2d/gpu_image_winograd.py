"""Winograd convolution over images: F(4x4, 3x3) or F(2x2, 3x3), transformed tiles in images too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, FeatureColumns, ceil_div
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.types import ImageSize
from codl.kernels.base import Arg, ConstantArg, KernelLaunch, ScratchArg, TensorArg
from codl.kernels.conv2d.gpu import GpuConv, Macros, flags
from codl.kernels.conv2d.winograd import (
    filter_points,
    filter_transform,
    refuse_window,
    tile_counts,
)
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.image import TEXEL, pack_filter
from codl.kernels.tiling import item_grid
from codl.kernels.tiling_columns import waves
from codl.kernels.window import whole
from codl.records.soc import Soc

#: In the order in which they are tried; the first that fits is the usual one.
CHOICES = tuple(
    (tile, width_major, filter_image)
    for tile in (4, 2)
    for filter_image in (1, 0)
    for width_major in (0, 1)
)


@dataclass(frozen=True)
class ImageWinogradTiling:
    """How convolutions are cut, and the images that they need in between."""

    tile: Column
    width_major: Column
    filter_image: Column
    tiles: Column
    tiles_w: Column
    in_channels: Column
    out_blocks: Column

    @property
    def count(self) -> Column:
        """Points of a tile."""
        return (self.tile + 2) ** 2

    @property
    def in_blocks(self) -> Column:
        return ceil_div(self.in_channels, TEXEL)

    @property
    def groups(self) -> Column:
        """Groups of four tiles."""
        return ceil_div(self.tiles, 4)

    @property
    def points(self) -> tuple[Column, Column]:
        """Width and height of the image of the transformed input."""
        width = np.where(self.width_major, self.groups, self.tiles)
        rows = np.where(self.width_major, self.in_channels, self.in_blocks)
        return width, self.count * rows

    @property
    def sums(self) -> tuple[Column, Column]:
        return self.tiles, self.count * self.out_blocks

    def fits(self, soc: Soc) -> NDArray[np.bool_]:
        """Whether all images can be made."""
        weights = self.filter_image * TEXEL * self.in_blocks, self.filter_image * self.sums[1]
        most_w, most_h = soc.gpu.max_image_width, soc.gpu.max_image_height
        sizes = (self.points, self.sums, weights)
        fitting: NDArray[np.bool_]
        fitting = np.all([(w <= most_w) & (h <= most_h) for w, h in sizes], axis=0)
        return fitting


class GpuImageWinograd(GpuConv):
    """Convolutions with a 3x3 window and stride 1: 36 products for 16 outputs, or 16 for 4."""

    base_name: ClassVar[str] = "gpu_winograd"
    source: ClassVar[str] = "conv2d/gpu_image_winograd.cl"

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_window(op)

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        reason = super().refusal(op, soc)
        if reason is not None or self.choices(op, soc):
            return reason
        ops = ConvColumns.of([op])
        usual = dict(zip(("tile", "width_major", "filter_image"), CHOICES[0], strict=True))
        width, height = whole(*self.cut(ops, soc, {k: np.array(v) for k, v in usual.items()}).sums)
        return (
            f"images must be at most {soc.gpu.max_image_width}x{soc.gpu.max_image_height} "
            f"texels, got {width}x{height} for the sums at all points"
        )

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """The side of a tile, how transformed tiles lie, and whether the filter is an image."""
        tile, width_major, filter_image = np.array(CHOICES, np.float64).T[..., None]
        choices = {"tile": tile, "width_major": width_major, "filter_image": filter_image}
        order = np.arange(len(CHOICES), dtype=np.float64)[:, None]
        return choices, np.where(self.cut(ops, soc, choices).fits(soc), order, np.inf)

    def cut(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> ImageWinogradTiling:
        tiles_w, tiles = tile_counts(ops, choice["tile"])
        return ImageWinogradTiling(
            **choice,
            tiles=tiles,
            tiles_w=tiles_w,
            in_channels=ops.ic,
            out_blocks=ceil_div(ops.oc, TEXEL),
        )

    def count(self, ops: ConvColumns, cut: ImageWinogradTiling, soc: Soc) -> FeatureColumns:
        products = cut.groups * cut.out_blocks * cut.count
        return {
            "padded_macs": products * cut.in_blocks * 4 * TEXEL * TEXEL,
            "texel_reads": products * cut.in_blocks * 8,
            "points": cut.points[0] * cut.points[1],
            "sums": cut.sums[0] * cut.sums[1],
            "tiles": cut.tiles,
            "work_items": products,
            "waves": waves(products, soc),
            "flops": ops.flops,
            **self.byte_columns(ops, soc),
        }

    def launches(self, op: Conv2d, cut: ImageWinogradTiling, soc: Soc) -> tuple[KernelLaunch, ...]:
        """Input transform, products and output transform."""
        points, sums, counts = ScratchArg("points"), ScratchArg("sums"), (cut.tiles, cut.tiles_w)
        tiles, groups, points_a_tile = whole(cut.tiles, cut.groups, cut.count)
        in_blocks, out_blocks, channels = whole(cut.in_blocks, cut.out_blocks, cut.in_channels)
        input_items = (groups, channels) if cut.width_major[0] else (tiles, in_blocks)
        for_input, local = item_grid(*input_items, soc)
        for_product, _ = item_grid(groups, out_blocks, soc)
        for_output, _ = item_grid(tiles, out_blocks, soc)
        window = (op.input.h, op.input.w, op.pad.top, op.pad.left)
        into: tuple[Arg, ...] = (
            TensorArg("input"),
            points,
            *whole(*counts),
            input_items[1],
            *window,
        )
        sizes = (tiles, channels, in_blocks, out_blocks)
        outputs: tuple[Arg, ...] = (
            TensorArg("output"),
            ConstantArg("bias"),
            *whole(*counts),
            out_blocks,
        )
        return (
            KernelLaunch("winograd_image_input", for_input, into, local),
            KernelLaunch(
                "winograd_image_product",
                (*for_product, points_a_tile),
                (points, sums, ConstantArg("weight"), *sizes),
                (*local, 1),
            ),
            KernelLaunch("winograd_image_output", for_output, (sums, *outputs, *op.out_hw), local),
        )

    def macros(self, op: Conv2d, cut: ImageWinogradTiling, soc: Soc) -> Macros:
        tile, width_major, filter_image = whole(cut.tile, cut.width_major, cut.filter_image)
        chosen = flags(WIDTH_MAJOR=bool(width_major), FILTER_IMAGE=bool(filter_image))
        return {"TILE": tile, **chosen}

    def pack(self, weight: Array, cut: ImageWinogradTiling, soc: Soc) -> Array:
        side, (outs, ins) = int(cut.tile[0]) + 2, weight.shape[:2]
        points = np.empty((outs, ins, side, side), np.float32)
        for first, some in filter_points(weight, filter_transform(side, 3)):
            points[first : first + len(some)] = some.reshape(-1, ins, side, side)
        return pack_filter(points)

    def scratch(self, cut: ImageWinogradTiling, soc: Soc) -> dict[str, ImageSize]:
        (points_w, points_h), (sums_w, sums_h) = whole(*cut.points), whole(*cut.sums)
        return {"points": ImageSize(points_w, points_h), "sums": ImageSize(sums_w, sums_h)}

    def images(self, cut: ImageWinogradTiling) -> frozenset[str]:
        return frozenset({"weight"} if cut.filter_image[0] else ())
