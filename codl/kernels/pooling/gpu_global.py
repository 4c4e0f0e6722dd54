"""Global pooling on a GPU: the work-items of a group share the pixels of a block of channels."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.pooling import Pool2d
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.tiling import base_defines, ceil_div, round_up
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc

#: Work-items of a work-group, the default first.
ITEMS = (64, 32, 128)


class GpuGlobal(ForStorage):
    """A window that is the whole input."""

    base_name: ClassVar[str] = "gpu_global"
    op_kind: ClassVar[str] = "pooling"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})
    takes_batch: ClassVar[bool] = True

    def refusal(self, op: Pool2d, soc: Soc) -> str | None:
        if op.extent != (op.input.h, op.input.w) or op.dilation != (1, 1) or any(op.pad):
            return (
                "the window must be the whole input, without padding, "
                f"got kernel={op.kernel} pad={tuple(op.pad)} on {op.input.h}x{op.input.w}"
            )
        if not self.choices(op, soc):
            return f"work-groups of 32 are needed, got at most {soc.gpu.max_work_group_size}"
        return None

    def choices(self, op: Pool2d, soc: Soc) -> tuple[Choice, ...]:
        return tuple({"items": n} for n in ITEMS if n <= soc.gpu.max_work_group_size)

    def features(self, op: Pool2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        items = (choice or self.choices(op, soc)[0])["items"]
        blocks, width = soc.gpu.blocks(op.input.c), soc.gpu.vector_width
        pixels, size = op.input.h * op.input.w, float(self.storage.element_bytes)
        return {
            "window_steps": float(pixels * blocks),
            "loop_length": float(ceil_div(pixels, items)),
            "work_groups": float(blocks),
            "waves": float(ceil_div(blocks, soc.gpu.compute_units)),
            "flops": float(op.flops),
            "input_bytes": size * round_up(op.input.c, width) * pixels,
            "output_bytes": size * round_up(op.input.c, width),
        }

    def plan(self, op: Pool2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        items = (choice or self.choices(op, soc)[0])["items"]
        launch = KernelLaunch(
            kernel="pool2d_global",
            global_size=(soc.gpu.blocks(op.input.c) * items,),
            local_size=(items,),
            args=(*ENDS, op.input.h * op.input.w),
        ).of_images(op.output.n, ENDS)
        mode = {"MODE_MAX": 1} if op.mode == "max" else {}
        return KernelPlan(
            source="pooling/gpu_global.cl",
            launches=(launch,),
            defines={**base_defines(op.activation, soc, self.storage), **mode, "ITEMS": items},
            whole_batch=True,
        ).stored_as(self.storage)
