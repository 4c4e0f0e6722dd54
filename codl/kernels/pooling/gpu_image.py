"""Max, average and global pooling over images: a window at a time, a texel of channels wide."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.pooling import Pool2d
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.image import TEXEL, image_defines, image_refusal, texels
from codl.kernels.tiling import ceil_div, item_grid, strip, waves
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc

#: Taps that one work-item of a CPU takes at most.
LONGEST_STRIP = 4096


class GpuImage(ForStorage):
    """Any window, stride, padding and dilation."""

    op_kind: ClassVar[str] = "pooling"
    base_name: ClassVar[str] = "gpu_direct"

    def refusal(self, op: Pool2d, soc: Soc) -> str | None:
        return image_refusal(soc, (op.input, op.output))

    def choices(self, op: Pool2d, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Pool2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        blocks, pixels = texels(op.input.c), op.output.h * op.output.w
        items = ceil_div(pixels, _strip(op, soc)) * blocks
        texel_bytes = float(TEXEL * self.storage.element_bytes)
        return {
            "texel_reads": float(pixels * blocks * op.kernel.h * op.kernel.w),
            "output_texels": float(pixels * blocks),
            "work_items": float(items),
            "waves": waves(items, soc),
            "flops": float(op.flops),
            "input_bytes": texel_bytes * blocks * op.input.h * op.input.w,
            "output_bytes": texel_bytes * blocks * pixels,
        }

    def plan(self, op: Pool2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        length, pixels = _strip(op, soc), op.output.h * op.output.w
        global_size, local_size = item_grid(ceil_div(pixels, length), texels(op.input.c), soc)
        sizes = (
            length,
            op.input.h,
            op.input.w,
            op.output.w,
            pixels,
            *op.kernel,
            *op.stride,
            op.pad.top,
            op.pad.left,
            *op.dilation,
        )
        mode = {"MODE_MAX": op.mode == "max", "COUNT_PAD": op.count_pad}
        return KernelPlan(
            source="pooling/gpu_image.cl",
            launches=(
                KernelLaunch(
                    kernel="pool2d_image",
                    global_size=global_size,
                    local_size=local_size,
                    args=(*ENDS, *sizes),
                ),
            ),
            defines={
                **image_defines(op.activation, soc, self.storage),
                **{name: 1 for name, defined in mode.items() if defined},
            },
        ).stored_as(self.storage)


def _strip(op: Pool2d, soc: Soc) -> int:
    """Output pixels of one work-item."""
    most = max(1, LONGEST_STRIP // (op.kernel.h * op.kernel.w))
    return strip(op.output.h * op.output.w, texels(op.input.c), most, soc)
