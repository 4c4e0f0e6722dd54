"""Element-wise operators on the GPU, in blocks of channels, with any axis stretched."""

from __future__ import annotations

from typing import ClassVar

from codl.ir import columns
from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.eltwise import (
    MODES,
    UNARY,
    Eltwise,
    EltwiseColumns,
)
from codl.ir.region import Shape
from codl.ir.types import PLANAR, Storage
from codl.kernels import tiling_columns
from codl.kernels.activation import float_literal
from codl.kernels.base import Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.feature_columns import (
    ChoiceColumns,
)
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

#: Pixels of one work-item of a CPU at most: about 5 us.
LONGEST_STRIP = 2048
#: What computes in place of these variants where tensors lie planar.
AMONG_PLANAR = "gpu_planar"
CODES = {mode: code for code, mode in enumerate(MODES)}
#: Modes that make of zeros what is not finite, or grows where one follows another.
CLEARED = ("div", "pow", "log", "reciprocal", "exp", "cosh", "acosh")


class GpuDirect(ForStorage, ByChoiceColumns):
    """Any mode; an input of one channel, one row or one column is stretched while it is read."""

    op_kind: ClassVar[str] = "eltwise"
    base_name: ClassVar[str] = "gpu_direct"
    takes_batch: ClassVar[bool] = True
    op_columns: ClassVar[type[EltwiseColumns]] = EltwiseColumns

    @property
    def among_planar(self) -> str:
        return among_planar(self.storage)

    def choices(self, op: Eltwise, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def feature_columns(
        self, ops: EltwiseColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        width, size = soc.gpu.vector_width, float(self.storage.element_bytes)
        blocks = columns.ceil_div(ops.oc, width)
        length = tiling_columns.strip(ops.pixels, blocks, LONGEST_STRIP, soc)
        items = columns.ceil_div(ops.pixels, length) * blocks
        return {
            "output_blocks": ops.pixels * blocks,
            "stretched": ops.stretched,
            "activations": ops.pixels * blocks * ops.is_active,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "input_bytes": size * ops.input_elements,
            "output_bytes": size * blocks * width * ops.pixels,
        }

    def plan(self, op: Eltwise, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        blocks, pixels = soc.gpu.blocks(op.output.c), op.output.h * op.output.w
        length = _strip(op, soc)
        global_size, local_size = item_grid(ceil_div(pixels, length), blocks, soc)
        count = len(op.inputs)
        tensors = [TensorArg("input", index % count) for index in (0, 1)]
        steps = [_steps(op, index % count) for index in (0, 1)]
        defines = {f"STRETCHED_{i}": 1 for i in range(count) if _stretched(op, i)}
        lanes = {f"ONE_LANE_{i}": 1 for i in range(count) if op.inputs[i].c < op.output.c}
        return KernelPlan(
            source="eltwise/gpu_direct.cl",
            launches=(
                KernelLaunch(
                    kernel="eltwise_direct",
                    global_size=global_size,
                    local_size=local_size,
                    args=(
                        *tensors,
                        TensorArg("output"),
                        length,
                        op.output.c,
                        pixels,
                        op.output.w,
                        *steps[0],
                        *steps[1],
                    ),
                ).of_images(op.output.n, [*tensors, TensorArg("output")]),
            ),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **mode_defines(op),
                **defines,
                **lanes,
            },
            whole_batch=True,
        ).stored_as(self.storage, count)


def among_planar(storage: Storage) -> str:
    """The variant, by name, whose tensors lie planar and have the same elements."""
    return AMONG_PLANAR + Storage(PLANAR.layout, storage.element).suffix


def mode_defines(op: Eltwise) -> dict[str, int | float | str]:
    """The macros of what is computed, and of its parameters."""
    values = zip(("MODE_ALPHA", "MODE_BETA"), op.parameters, strict=False)
    defined = {"UNARY": op.mode in UNARY, "CLEAR_BEYOND": op.mode in CLEARED}
    return {
        "MODE": CODES[op.mode],
        **{name: float_literal(value) for name, value in values},
        **{name: 1 for name, on in defined.items() if on},
    }


def _strip(op: Eltwise, soc: Soc) -> int:
    """Pixels of one work-item."""
    pixels = op.output.h * op.output.w
    return strip(pixels, soc.gpu.blocks(op.output.c), LONGEST_STRIP, soc)


def _stretched(op: Eltwise, index: int) -> bool:
    """Whether pixels of the output and of an input differ."""
    shape = op.inputs[index]
    return (shape.h, shape.w) != (op.output.h, op.output.w)


def _steps(op: Eltwise, index: int) -> tuple[int, int, int]:
    """How far an input moves on, in pixels or blocks, for a block, a row and a column."""
    shape: Shape = op.inputs[index]
    return (
        int(shape.c == op.output.c),
        shape.w * int(shape.h == op.output.h),
        int(shape.w == op.output.w),
    )
