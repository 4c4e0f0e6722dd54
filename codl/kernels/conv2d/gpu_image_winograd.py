"""Winograd convolution over images: F(4x4, 3x3) or F(2x2, 3x3), transformed tiles in images too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d
from codl.ir.types import ImageSize
from codl.kernels.base import Choice, ConstantArg, KernelLaunch, KernelPlan, ScratchArg, TensorArg
from codl.kernels.conv2d.gpu_direct import byte_features, pack_bias
from codl.kernels.conv2d.gpu_winograd import filter_transform
from codl.kernels.image import (
    TEXEL,
    fits,
    image_defines,
    image_refusal,
    pack_filter,
    texels,
)
from codl.kernels.tiling import ceil_div, item_grid, waves
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc

#: The filter transforms: rows are interpolation points, see `to_points` in the source.
TRANSFORMS = {
    2: np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], np.float64) / 2,
    4: filter_transform(6, 3),
}


@dataclass(frozen=True)
class _ImageWinogradTiling:
    """How one convolution is cut, and the images that it needs in between."""

    tile: int
    width_major: bool
    filter_image: bool
    tiles: int
    tiles_w: int
    in_channels: int
    out_blocks: int

    @classmethod
    def of(cls, op: Conv2d, choice: Choice) -> _ImageWinogradTiling:
        tile = choice["tile"]
        tiles_w = ceil_div(op.output.w, tile)
        return cls(
            tile=tile,
            width_major=bool(choice["width_major"]),
            filter_image=bool(choice["filter_image"]),
            tiles=tiles_w * ceil_div(op.output.h, tile),
            tiles_w=tiles_w,
            in_channels=op.input.c,
            out_blocks=texels(op.out_channels),
        )

    @property
    def count(self) -> int:
        """Points of a tile."""
        return (self.tile + 2) ** 2

    @property
    def in_blocks(self) -> int:
        return texels(self.in_channels)

    @property
    def groups(self) -> int:
        """Groups of four tiles."""
        return ceil_div(self.tiles, 4)

    @property
    def points(self) -> ImageSize:
        if self.width_major:
            return ImageSize(self.groups, self.count * self.in_channels)
        return ImageSize(self.tiles, self.count * self.in_blocks)

    @property
    def sums(self) -> ImageSize:
        return ImageSize(self.tiles, self.count * self.out_blocks)

    def fits(self, soc: Soc) -> bool:
        needed = [(s.width, s.height) for s in (self.points, self.sums)]
        if self.filter_image:
            needed.append((TEXEL * self.in_blocks, self.count * self.out_blocks))
        return all(fits(soc, *size) for size in needed)


#: In the order in which they are tried; the first that fits is the usual one.
CHOICES: tuple[Choice, ...] = tuple(
    {"tile": tile, "width_major": width_major, "filter_image": filter_image}
    for tile in (4, 2)
    for filter_image in (1, 0)
    for width_major in (0, 1)
)


class GpuImageWinograd(ForStorage):
    """Convolutions with a 3x3 window and stride 1: 36 products for 16 outputs, or 16 for 4."""

    op_kind: ClassVar[str] = "conv2d"
    base_name: ClassVar[str] = "gpu_winograd"

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.kernel != (3, 3) or op.stride != (1, 1) or op.dilation != (1, 1) or op.groups != 1:
            return (
                "Winograd needs kernel=3x3 stride=1 dilation=1 groups=1, got "
                f"kernel={op.kernel} stride={op.stride} dilation={op.dilation} groups={op.groups}"
            )
        refusal = image_refusal(soc, (op.input, op.output))
        if refusal is None and not self.choices(op, soc):
            sums = _ImageWinogradTiling.of(op, CHOICES[0]).sums
            return (
                f"images must be at most {soc.gpu.max_image_width}x{soc.gpu.max_image_height} "
                f"texels, got {sums.width}x{sums.height} for the sums at all points"
            )
        return refusal

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """The side of a tile, how transformed tiles lie, and whether the filter is an image."""
        return tuple(choice for choice in CHOICES if _ImageWinogradTiling.of(op, choice).fits(soc))

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        t = _ImageWinogradTiling.of(op, choice or self.choices(op, soc)[0])
        products = t.groups * t.out_blocks * t.count
        return {
            "padded_macs": float(products * t.in_blocks * 4 * TEXEL * TEXEL),
            "texel_reads": float(products * t.in_blocks * 8),
            "points": float(t.points.width * t.points.height),
            "sums": float(t.sums.width * t.sums.height),
            "tiles": float(t.tiles),
            "work_items": float(products),
            "waves": waves(products, soc),
            "flops": float(op.flops),
            **byte_features(op, soc, self.storage),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        t = _ImageWinogradTiling.of(op, choice or self.choices(op, soc)[0])
        flags = {"WIDTH_MAJOR": t.width_major, "FILTER_IMAGE": t.filter_image}
        return KernelPlan(
            source="conv2d/gpu_image_winograd.cl",
            launches=_launches(op, t, soc),
            defines={
                **image_defines(op.activation, soc, self.storage),
                "TILE": t.tile,
                **{name: 1 for name, defined in flags.items() if defined},
            },
            pack=lambda weights: {
                "weight": pack_filter(_transform(weights["weight"], t.tile)),
                "bias": pack_bias(weights["bias"], TEXEL),
            },
            scratch={"points": t.points, "sums": t.sums},
            images=frozenset({"weight"} if t.filter_image else ()),
        ).stored_as(self.storage)


def _launches(op: Conv2d, t: _ImageWinogradTiling, soc: Soc) -> tuple[KernelLaunch, ...]:
    """Input transform, products and output transform."""
    points, sums, counts = ScratchArg("points"), ScratchArg("sums"), (t.tiles, t.tiles_w)
    input_items = (t.groups, t.in_channels) if t.width_major else (t.tiles, t.in_blocks)
    for_input, local_size = item_grid(*input_items, soc)
    for_product, _ = item_grid(t.groups, t.out_blocks, soc)
    for_output, _ = item_grid(t.tiles, t.out_blocks, soc)
    window = (op.input.h, op.input.w, op.pad.top, op.pad.left)
    sizes = (t.tiles, t.in_channels, t.in_blocks, t.out_blocks)
    return (
        KernelLaunch(
            kernel="winograd_image_input",
            global_size=for_input,
            local_size=local_size,
            args=(TensorArg("input"), points, *counts, input_items[1], *window),
        ),
        KernelLaunch(
            kernel="winograd_image_product",
            global_size=(*for_product, t.count),
            local_size=(*local_size, 1),
            args=(points, sums, ConstantArg("weight"), *sizes),
        ),
        KernelLaunch(
            kernel="winograd_image_output",
            global_size=for_output,
            local_size=local_size,
            args=(
                sums,
                TensorArg("output"),
                ConstantArg("bias"),
                *counts,
                t.out_blocks,
                *op.out_hw,
            ),
        ),
    )


def _transform(weight: Array, tile: int) -> Array:
    """(oc, ic, 3, 3) -> (oc, ic, tile + 2, tile + 2)."""
    transform = TRANSFORMS[tile]
    points: Array = (transform @ weight.astype(np.float64) @ transform.T).astype(np.float32)
    return points
