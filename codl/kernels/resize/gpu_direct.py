"""Resize on the GPU, with tables of the rows and columns that every output pixel is made of."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.base import Array, Weights
from codl.ir.ops.resize import Resize
from codl.kernels.base import ENDS, Arg, Choice, ConstantArg, KernelLaunch, KernelPlan
from codl.kernels.strided import as_ints
from codl.kernels.tiling import base_defines, ceil_div, item_grid, round_up, strip, waves
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc

#: Taps that one work-item of a CPU takes at most: a few us.
LONGEST_STRIP = 4096
TABLES = ("rows", "row_weights", "columns", "column_weights")


class GpuDirect(ForStorage):
    """Every mode."""

    op_kind: ClassVar[str] = "resize"
    base_name: ClassVar[str] = "gpu_direct"

    def choices(self, op: Resize, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Resize, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        blocks, pixels = soc.gpu.blocks(op.input.c), op.size.h * op.size.w
        items = ceil_div(pixels, _strip(op, soc)) * blocks
        size = self.storage.element_bytes
        channels = round_up(op.input.c, soc.gpu.vector_width)
        return {
            "tap_blocks": float(pixels * blocks * op.taps**2),
            "output_blocks": float(pixels * blocks),
            "work_items": float(items),
            "waves": waves(items, soc),
            "input_bytes": float(size * channels * op.input.h * op.input.w),
            "output_bytes": float(size * channels * pixels),
        }

    def plan(self, op: Resize, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        blocks, pixels = soc.gpu.blocks(op.input.c), op.size.h * op.size.w
        length = _strip(op, soc)
        global_size, local_size = item_grid(ceil_div(pixels, length), blocks, soc)
        tables: tuple[Arg, ...] = tuple(ConstantArg(name) for name in TABLES)
        sizes = (length, op.input.w, op.size.w, pixels)
        args = (*ENDS, *tables, float(op.outside), *sizes)

        def pack(weights: Weights) -> dict[str, Array]:
            rows, columns = op.rows, op.columns
            values = (
                as_ints(rows.indices),
                rows.weights,
                as_ints(columns.indices),
                columns.weights,
            )
            return dict(zip(TABLES, values, strict=True))

        return KernelPlan(
            source="resize/gpu_direct.cl",
            launches=(KernelLaunch("resize_direct", global_size, args, local_size),),
            defines={**base_defines(op.activation, soc, self.storage), "TAPS": op.taps},
            pack=pack,
            storages=dict.fromkeys(ENDS, self.storage),
        )


def _strip(op: Resize, soc: Soc) -> int:
    """Output pixels of one work-item."""
    most = max(1, LONGEST_STRIP // op.taps**2)
    return strip(op.size.h * op.size.w, soc.gpu.blocks(op.input.c), most, soc)
