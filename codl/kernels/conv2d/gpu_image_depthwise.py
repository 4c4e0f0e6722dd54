"""Depthwise convolution over images: a texel of four channels is a pixel of four windows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d
from codl.kernels.base import WEIGHTED, Choice, KernelLaunch, KernelPlan
from codl.kernels.conv2d.gpu_depthwise import refuse_mixing
from codl.kernels.conv2d.gpu_direct import byte_features, pack_bias
from codl.kernels.image import TEXEL, fits, image_defines, image_refusal, texels
from codl.kernels.tiling import ceil_div, item_grid, strip, waves
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc

#: Texels that one work-item of a CPU, where images are emulated, reads at most.
LONGEST_STRIP = 4096
#: Output pixels of a work-item to choose from, the usual number first.
PIXELS = (4, 2, 1)


class GpuImageDepthwise(ForStorage):
    """A window for every channel alone; any window, stride, padding and dilation."""

    op_kind: ClassVar[str] = "conv2d"
    base_name: ClassVar[str] = "gpu_depthwise"

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_mixing(op) or image_refusal(soc, (op.input, op.output))

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a work-item, and whether the filter is an image, where it fits."""
        fitting = fits(soc, op.kernel.h * op.kernel.w, texels(op.out_channels))
        as_image = (1, 0) if fitting else (0,)
        return tuple({"filter_image": i, "pixels": p} for i in as_image for p in PIXELS)

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        pixels, tiles, length = _tiling(op, soc, choice)
        blocks, window = texels(op.out_channels), op.kernel.h * op.kernel.w
        items = ceil_div(tiles, length) * blocks
        return {
            "padded_macs": float(tiles * blocks * pixels * window * TEXEL),
            "texel_reads": float(tiles * blocks * (pixels + 1) * window),
            "tiles": float(tiles * blocks),
            "work_items": float(items),
            "waves": waves(items, soc),
            "flops": float(op.flops),
            **byte_features(op, soc, self.storage),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        pixels, tiles, length = _tiling(op, soc, choice)
        strips, blocks = ceil_div(tiles, length), texels(op.out_channels)
        global_size, local_size = item_grid(strips, blocks, soc)
        sizes = (
            length,
            tiles,
            ceil_div(op.output.w, pixels),
            op.input.h,
            op.input.w,
            op.output.w,
            *op.kernel,
            op.stride.h,
            op.pad.top,
            op.pad.left,
            *op.dilation,
        )
        launch = KernelLaunch(
            kernel="conv2d_image_depthwise",
            global_size=global_size,
            local_size=local_size,
            args=(*WEIGHTED, *sizes),
        )
        as_image = bool(choice["filter_image"])
        return KernelPlan(
            source="conv2d/gpu_image_depthwise.cl",
            launches=(launch,),
            defines={
                **image_defines(op.activation, soc, self.storage),
                "PIXELS": pixels,
                "STRIDE_W": op.stride.w,
                **({"FILTER_IMAGE": 1} if as_image else {}),
            },
            pack=lambda weights: {
                "weight": _pack_windows(weights["weight"]),
                "bias": pack_bias(weights["bias"], TEXEL),
            },
            images=frozenset({"weight"} if as_image else ()),
        ).stored_as(self.storage)


def _tiling(op: Conv2d, soc: Soc, choice: Choice | None) -> tuple[int, int, int]:
    """Pixels of a tile, tiles of one texel of channels, and tiles of a work-item."""
    pixels = (choice or {}).get("pixels", PIXELS[0])
    tiles = op.output.h * ceil_div(op.output.w, pixels)
    most = max(1, LONGEST_STRIP // (pixels * op.kernel.h * op.kernel.w))
    return pixels, tiles, strip(tiles, texels(op.out_channels), most, soc)


def _pack_windows(weight: Array) -> Array:
    """(channels, 1, kh, kw) -> (rows: texel of channels; columns: kh, kw; 4 channels)."""
    channels, window = weight.shape[0], weight.shape[2] * weight.shape[3]
    packed = np.zeros((texels(channels) * TEXEL, window), np.float32)
    packed[:channels] = weight.reshape(channels, window)
    return np.ascontiguousarray(packed.reshape(-1, TEXEL, window).swapaxes(1, 2))
