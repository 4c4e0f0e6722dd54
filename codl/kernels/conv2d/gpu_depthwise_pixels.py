"""Depthwise convolution on a GPU: as many work-items as there are pixels to fill it with."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.base import Array, Weights
from codl.ir.ops.convolution import Conv2d
from codl.kernels.base import ENDS, WEIGHTED, Choice, KernelLaunch, KernelPlan
from codl.kernels.conv2d.gpu_depthwise import _pack_windows
from codl.kernels.conv2d.gpu_direct import byte_features, pack_bias
from codl.kernels.tiling import GROUP, base_defines, ceil_div, round_up, waves
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc

#: Work-items that a compute unit should get before an item takes more than one pixel.
ITEMS_PER_UNIT = 1024
#: Taps that are unrolled at most.
MOST_TAPS = 49


class GpuDepthwisePixels(ForStorage):
    """One input and one output channel to a group; windows small enough to be unrolled."""

    base_name: ClassVar[str] = "gpu_depthwise_pixels"
    op_kind: ClassVar[str] = "conv2d"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})
    takes_batch: ClassVar[bool] = True

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if not op.is_depthwise:
            return (
                "groups, input and output channels must be equal, "
                f"got {op.groups}, {op.input.c} and {op.out_channels}"
            )
        if op.kernel.h * op.kernel.w > MOST_TAPS:
            return f"the window must have at most {MOST_TAPS} taps, got {op.kernel}"
        return None

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        items = op.output.h * op.output.w * soc.gpu.blocks(op.input.c)
        few = items < ITEMS_PER_UNIT * soc.gpu.compute_units
        order = (1, 2, 4) if few else (2, 4, 1)
        return tuple({"pixels": pixels} for pixels in order)

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        pixels = (choice or self.choices(op, soc)[0])["pixels"]
        width, blocks = soc.gpu.vector_width, soc.gpu.blocks(op.input.c)
        items = op.output.h * ceil_div(op.output.w, pixels) * blocks
        taps = op.kernel.h * op.kernel.w
        return {
            "padded_macs": float(items * pixels * taps * width),
            "work_items": float(items),
            "waves": waves(items, soc),
            "flops": float(op.flops),
            **byte_features(op, soc, self.storage),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        pixels = (choice or self.choices(op, soc)[0])["pixels"]
        width, blocks = soc.gpu.vector_width, soc.gpu.blocks(op.input.c)
        row_tiles = ceil_div(op.output.w, pixels)
        tiles = row_tiles * op.output.h
        window = (op.stride.h, op.pad.top, op.pad.left, op.dilation.h)
        sizes = (blocks, tiles, row_tiles, op.input.h, op.input.w, op.output.w, *window)
        launch = KernelLaunch(
            kernel="conv2d_depthwise_pixels",
            global_size=(round_up(tiles * blocks, GROUP),),
            local_size=(GROUP,),
            args=(*WEIGHTED, *sizes),
        ).of_images(op.output.n, ENDS)

        def pack(weights: Weights) -> dict[str, Array]:
            return {
                "weight": _pack_windows(weights["weight"], width),
                "bias": pack_bias(weights["bias"], width),
            }

        return KernelPlan(
            source="conv2d/gpu_depthwise_pixels.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "PIXELS": pixels,
                "KERNEL_H": op.kernel.h,
                "KERNEL_W": op.kernel.w,
                "STRIDE_W": op.stride.w,
                "DILATION_W": op.dilation.w,
            },
            pack=pack,
            whole_batch=True,
        ).stored_as(self.storage)
