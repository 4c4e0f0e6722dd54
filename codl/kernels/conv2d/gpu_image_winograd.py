"""Winograd convolution over images: F(4x4, 3x3) or F(2x2, 3x3), transformed tiles in images too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, FeatureColumns, ceil_div
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.types import ImageSize
from codl.kernels.architecture import holds
from codl.kernels.base import ENDS, Choice, ConstantArg, KernelPlan, ScratchArg
from codl.kernels.conv2d.gpu import WIDE, GpuConv, byte_columns, team_macros
from codl.kernels.conv2d.winograd import (
    filter_growth,
    filter_points,
    filter_transform,
    input_args,
    refuse_window,
    tile_counts,
)
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.image import fits, pack_filter
from codl.kernels.kernel import IMAGES, Grid, launch
from codl.kernels.tiling import TEXEL, item_grid, waves
from codl.records.soc import Soc

#: Of larger tiles the transform back makes ten times as much of what halves are off by: 1e-2.
MOST_HALF_TILE = 2
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
    grid: Grid

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
        return fits(soc, *self.points) & fits(soc, *self.sums) & fits(soc, *weights)


def _transforms_large(soc: Soc) -> bool:
    """Whether a work-item keeps the 36 texels of a tile for 16 outputs in registers."""
    return bool(holds(soc.gpu, 36 * TEXEL))


class GpuImageWinograd(GpuConv):
    """Convolutions with a 3x3 window and stride 1: 36 products for 16 outputs, or 16 for 4."""

    base_name = "gpu_winograd"
    source = "conv2d/gpu_image_winograd.cl"
    multiplies_halves = True
    transforms_weights = True
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
        """The side of a tile, how transformed tiles lie, and whether the filter is an image."""
        tile, width_major, filter_image = np.array(CHOICES, np.float64).T[..., None]
        choices = {"tile": tile, "width_major": width_major, "filter_image": filter_image}
        order = np.arange(len(CHOICES), dtype=np.float64)[:, None]
        fits = self.cut(ops, soc, choices).fits(soc) & ((tile == 2) | _transforms_large(soc))
        if self.arithmetic == "float16":
            fits &= tile <= MOST_HALF_TILE
        return choices, np.where(fits, order, np.inf)

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> ImageWinogradTiling:
        tiles_w, tiles = tile_counts(ops, choice["tile"])
        out_blocks = ceil_div(ops.oc, TEXEL)
        others = (choice["tile"] + 2) ** 2 * out_blocks
        return ImageWinogradTiling(
            tile=choice["tile"],
            width_major=choice["width_major"],
            filter_image=choice["filter_image"],
            tiles=tiles,
            tiles_w=tiles_w,
            in_channels=ops.ic,
            out_blocks=out_blocks,
            grid=Grid.of(ceil_div(tiles, 4), others, 1, soc, choice=choice, wide=WIDE),
        )

    def grid(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> Grid:
        return self.cut(ops, soc, choice).grid

    def team_blocks(self, ops: ConvColumns) -> Column:
        return ceil_div(ops.ic, TEXEL)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = self.cut(ops, soc, choice)
        products = t.groups * t.out_blocks * t.count
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

    def weight_growth(self, ops: ConvColumns, choice: ChoiceColumns) -> Column:
        return filter_growth(ops, choice["tile"])

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t = self.cut(*self.alone(op, soc, choice))
        tiles, groups, in_blocks, out_blocks, points_w, points_h, sums_w, sums_h = (
            int(column[0])
            for column in (t.tiles, t.groups, t.in_blocks, t.out_blocks, *t.points, *t.sums)
        )
        (source, target), bias = ENDS, ConstantArg("bias")
        points, sums = ScratchArg("points"), ScratchArg("sums")
        counts, filter_image = {"tiles": tiles, "tiles_w": t.tiles_w}, bool(choice["filter_image"])
        blocks, items = in_blocks, tiles
        if choice["width_major"]:
            blocks, items = op.input.c, groups
        into = {**counts, "blocks": blocks, **input_args(op)}
        product = {"tiles": tiles, "in_channels": op.input.c, "in_blocks": in_blocks}
        product["out_blocks"] = out_blocks
        out_of = {**counts, "out_blocks": out_blocks, "out_h": op.output.h, "out_w": op.output.w}
        return self.convolved(
            op,
            soc,
            launch("winograd_image_input", item_grid(items, blocks, soc), source, points, **into),
            launch(
                "winograd_image_product",
                t.grid.sizes,
                *(points, sums, ConstantArg("weight")),
                **product,
            ),
            launch(
                "winograd_image_output",
                item_grid(tiles, out_blocks, soc),
                *(sums, target, bias),
                **out_of,
            ),
            macros={
                **team_macros(t.grid),
                "TILE": choice["tile"],
                "SIDE": choice["tile"] + 2,
                "WIDTH_MAJOR": bool(choice["width_major"]),
                "FILTER_IMAGE": filter_image,
            },
            pack=lambda weight: pack_filter(_points(weight, choice["tile"] + 2)),
            scratch={
                "points": ImageSize(points_w, points_h, self.arithmetic),
                "sums": ImageSize(sums_w, sums_h),
            },
            images={"weight"} if filter_image else (),
        )


def _points(weight: Array, side: int) -> Array:
    """(oc, ic, 3, 3) -> (oc, ic, side, side)."""
    outs, ins = weight.shape[:2]
    points = np.empty((outs, ins, side, side), np.float32)
    for first, some in filter_points(weight, filter_transform(side, 3)):
        points[first : first + len(some)] = some.reshape(-1, ins, side, side)
    return points
