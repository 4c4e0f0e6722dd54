"""Element-wise operators over images, a texel of four channels at a time, any axis stretched."""

from __future__ import annotations

from typing import ClassVar

from codl.ir import columns
from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.eltwise import (
    Eltwise,
    EltwiseColumns,
)
from codl.kernels import tiling_columns
from codl.kernels.base import Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.eltwise.gpu_direct import among_planar, mode_defines
from codl.kernels.feature_columns import (
    ChoiceColumns,
)
from codl.kernels.image import TEXEL, image_defines, image_refusal, texels
from codl.kernels.tiling import ceil_div, item_grid, strip
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

#: Pixels of one work-item of a CPU, where images are emulated, at most.
LONGEST_STRIP = 1024


class GpuImage(ForStorage, ByChoiceColumns):
    """Any mode; an input of one channel, one row or one column is stretched while it is read."""

    op_kind: ClassVar[str] = "eltwise"
    base_name: ClassVar[str] = "gpu_direct"
    op_columns: ClassVar[type[EltwiseColumns]] = EltwiseColumns

    @property
    def among_planar(self) -> str:
        return among_planar(self.storage)

    def refusal(self, op: Eltwise, soc: Soc) -> str | None:
        return image_refusal(soc, (*op.inputs, op.output))

    def choices(self, op: Eltwise, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def feature_columns(
        self, ops: EltwiseColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        blocks, size = columns.ceil_div(ops.oc, TEXEL), float(self.storage.element_bytes)
        length = tiling_columns.strip(ops.pixels, blocks, LONGEST_STRIP, soc)
        items = columns.ceil_div(ops.pixels, length) * blocks
        return {
            "output_texels": ops.pixels * blocks,
            "activations": ops.pixels * blocks * ops.is_active,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "input_bytes": size * ops.input_elements,
            "output_bytes": size * TEXEL * blocks * ops.pixels,
        }

    def plan(self, op: Eltwise, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        blocks, pixels = texels(op.output.c), op.output.h * op.output.w
        length, count = _strip(op, soc), len(op.inputs)
        global_size, local_size = item_grid(ceil_div(pixels, length), blocks, soc)
        tensors = [TensorArg("input", index % count) for index in (0, 1)]
        steps = [_steps(op, index % count) for index in (0, 1)]
        sizes = (length, op.output.c, pixels, op.output.w, *steps[0], *steps[1])
        return KernelPlan(
            source="eltwise/gpu_direct.cl",
            launches=(
                KernelLaunch(
                    kernel="eltwise_image",
                    global_size=global_size,
                    local_size=local_size,
                    args=(*tensors, TensorArg("output"), *sizes),
                ),
            ),
            defines={
                **image_defines(op.activation, soc, self.storage),
                "IMAGE": 1,
                **mode_defines(op),
                **{f"ONE_LANE_{i}": 1 for i in range(count) if op.inputs[i].c < op.output.c},
            },
        ).stored_as(self.storage, count)


def _strip(op: Eltwise, soc: Soc) -> int:
    """Pixels of one work-item."""
    return strip(op.output.h * op.output.w, texels(op.output.c), LONGEST_STRIP, soc)


def _steps(op: Eltwise, index: int) -> tuple[int, int, int]:
    """How far an input moves on, in texels, for a texel of channels, a row and a column."""
    shape = op.inputs[index]
    return (
        shape.w * int(shape.c == op.output.c),
        int(shape.h == op.output.h),
        int(shape.w == op.output.w),
    )
