"""Max, average and global pooling on the GPU: a window at a time, a block of channels wide."""

from __future__ import annotations

from typing import ClassVar

from codl.kernels.base import BLOCKED, Choice, KernelPlan, Launch, Processor, Storage, TensorArg
from codl.kernels.tiling import base_defines, ceil_div, item_grid, round_up, strip, waves
from codl.ops.pool2d import Pool2d
from codl.soc import Soc

#: Taps of a window that are unrolled at most; larger windows (global pooling) are loops.
MOST_UNROLLED = 25
#: Taps that one work-item of a CPU takes at most: a few us.
LONGEST_STRIP = 4096


class GpuDirect:
    """Any window, stride, padding and dilation."""

    op_kind: ClassVar[str] = "pooling"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})

    def __init__(self, storage: Storage = BLOCKED) -> None:
        self.storage = storage
        self.name = f"gpu_direct{storage.suffix}"

    def refusal(self, op: Pool2d, soc: Soc) -> str | None:
        return None

    def choices(self, op: Pool2d, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Pool2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        blocks, width = soc.gpu.blocks(op.input.c), soc.gpu.vector_width
        pixels, window = op.output.h * op.output.w, op.kernel.h * op.kernel.w
        items = ceil_div(pixels, _strip(op, soc)) * blocks
        size = float(self.storage.element_bytes)
        return {
            "window_steps": float(pixels * blocks * window),
            "output_blocks": float(pixels * blocks),
            "looped_steps": float(pixels * blocks * window) if window > MOST_UNROLLED else 0.0,
            "work_items": float(items),
            "waves": waves(items, soc),
            "flops": float(op.flops),
            "input_bytes": size * round_up(op.input.c, width) * op.input.h * op.input.w,
            "output_bytes": size * round_up(op.input.c, width) * pixels,
        }

    def plan(self, op: Pool2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        length, pixels = _strip(op, soc), op.output.h * op.output.w
        blocks = soc.gpu.blocks(op.input.c)
        global_size, local_size = item_grid(ceil_div(pixels, length), blocks, soc)
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
        return KernelPlan(
            source="pooling/gpu_direct.cl",
            launches=(
                Launch(
                    kernel="pool2d_direct",
                    global_size=global_size,
                    local_size=local_size,
                    args=(TensorArg("input"), TensorArg("output"), *sizes),
                ),
            ),
            defines={**base_defines(op.activation, soc, self.storage), **_mode(op)},
        ).stored_as(self.storage)


def _strip(op: Pool2d, soc: Soc) -> int:
    """Output pixels of one work-item."""
    window = op.kernel.h * op.kernel.w
    most = max(1, LONGEST_STRIP // window)
    return strip(op.output.h * op.output.w, soc.gpu.blocks(op.input.c), most, soc)


def _mode(op: Pool2d) -> dict[str, int]:
    defines = {}
    if op.mode == "max":
        defines["MODE_MAX"] = 1
    elif op.count_pad:
        defines["COUNT_PAD"] = 1
    if op.kernel.h * op.kernel.w <= MOST_UNROLLED:
        defines |= {"KERNEL_H": op.kernel.h, "KERNEL_W": op.kernel.w}
    return defines
