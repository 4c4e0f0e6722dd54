"""Convolution over images: the texture units fetch four channels, cache them and pad with zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from codl.ir.ops.convolution import Conv2d
from codl.kernels.base import WEIGHTED, Choice, KernelLaunch, KernelPlan
from codl.kernels.conv2d.gpu_direct import byte_features, pack_bias, refuse_groups
from codl.kernels.image import (
    TEXEL,
    fits,
    image_defines,
    image_refusal,
    pack_filter,
    texels,
)
from codl.kernels.tiling import ceil_div, item_grid, strip, waves
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc

#: Texels that one work-item of a CPU, where images are emulated, reads at most: about 20 us.
LONGEST_STRIP = 4096
#: Output pixels of a work-item to choose from, the usual number first.
PIXELS = (4, 2, 8)


@dataclass(frozen=True)
class _ImageTiling:
    """How one convolution is cut; all that the plan and the features have in common."""

    pixels: int
    tiles: int
    tiles_w: int
    in_blocks: int
    out_blocks: int
    strip: int

    @classmethod
    def of(cls, op: Conv2d, soc: Soc, choice: Choice | None) -> _ImageTiling:
        pixels = (choice or {}).get("pixels", PIXELS[0])
        tiles_w = ceil_div(op.output.w, pixels)
        tiles = op.output.h * tiles_w
        in_blocks, out_blocks = texels(op.input.c // op.groups), texels(op.out_channels)
        reads = pixels * in_blocks * op.kernel.h * op.kernel.w
        length = strip(tiles, out_blocks, max(1, LONGEST_STRIP // reads), soc)
        return cls(pixels, tiles, tiles_w, in_blocks, out_blocks, length)

    @property
    def items(self) -> int:
        return ceil_div(self.tiles, self.strip) * self.out_blocks


class GpuImage(ForStorage):
    """Any window, stride, padding and dilation; groups of whole texels."""

    op_kind: ClassVar[str] = "conv2d"
    base_name: ClassVar[str] = "gpu_direct"

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_groups(op, TEXEL) or image_refusal(soc, (op.input, op.output))

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a work-item, and whether the filter is an image, where it fits."""
        rows = texels(op.out_channels) * op.kernel.h * op.kernel.w
        as_image = (1, 0) if fits(soc, TEXEL * texels(op.input.c // op.groups), rows) else (0,)
        return tuple({"filter_image": i, "pixels": p} for i in as_image for p in PIXELS)

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        t, window = _ImageTiling.of(op, soc, choice), op.kernel.h * op.kernel.w
        steps = t.tiles * t.out_blocks * window * t.in_blocks
        return {
            "padded_macs": float(steps * t.pixels * TEXEL * TEXEL),
            "texel_reads": float(steps * t.pixels),
            "tile_steps": float(steps),
            "tiles": float(t.tiles * t.out_blocks),
            "work_items": float(t.items),
            "waves": waves(t.items, soc),
            "flops": float(op.flops),
            **byte_features(op, soc, self.storage),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        t = _ImageTiling.of(op, soc, choice)
        global_size, local_size = item_grid(ceil_div(t.tiles, t.strip), t.out_blocks, soc)
        one_by_one = op.kernel == (1, 1) and not any(op.pad)
        sizes = (
            t.strip,
            t.tiles,
            t.tiles_w,
            t.in_blocks,
            op.input.h,
            op.input.w,
            t.out_blocks // op.groups,
            op.output.w,
            *op.kernel,
            op.stride.h,
            op.pad.top,
            op.pad.left,
            *op.dilation,
        )
        launch = KernelLaunch(
            kernel="conv2d_image",
            global_size=global_size,
            local_size=local_size,
            args=(*WEIGHTED, *sizes),
        )
        as_image = bool(choice["filter_image"])
        return KernelPlan(
            source="conv2d/gpu_image.cl",
            launches=(launch,),
            defines={
                **image_defines(op.activation, soc, self.storage),
                "PIXELS": t.pixels,
                "STRIDE_W": op.stride.w,
                **({"ONE_BY_ONE": 1} if one_by_one else {}),
                **({"FILTER_IMAGE": 1} if as_image else {}),
            },
            pack=lambda weights: {
                "weight": pack_filter(weights["weight"]),
                "bias": pack_bias(weights["bias"], TEXEL),
            },
            images=frozenset({"weight"} if as_image else ()),
        ).stored_as(self.storage)
