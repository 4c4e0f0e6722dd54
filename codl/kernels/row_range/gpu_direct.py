"""Ranges of rows on the GPU: along rows that work-items share."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.reductions import RowRange
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.rows import RowGrid, sharer_choices
from codl.kernels.tiling import base_defines, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc


class GpuDirect(ForPlanar):
    """Rows of any size."""

    base_name: ClassVar[str] = "gpu_direct"
    op_kind: ClassVar[str] = "row_range"

    def choices(self, op: RowRange, soc: Soc) -> tuple[Choice, ...]:
        return sharer_choices(op.size, soc)

    def features(self, op: RowRange, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        items = RowGrid.of(op.rows, op.size, choice or self.choices(op, soc)[0], soc).items
        return {
            "rows": float(op.rows),
            "loop_length": float(op.size),
            "work_items": float(items),
            "waves": waves(items, soc),
            "input_bytes": self.stored_bytes(op.input.bytes),
        }

    def plan(self, op: RowRange, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        grid = RowGrid.of(op.rows, op.size, choice or self.choices(op, soc)[0], soc)
        args = (*ENDS, grid.strip, op.rows, op.size)
        launch = KernelLaunch("row_range", grid.global_size, args, grid.local_size)
        return KernelPlan(
            source="row_range/gpu_direct.cl",
            launches=(launch,),
            defines={**base_defines(op.activation, soc, self.storage), **grid.defines},
            storages=dict.fromkeys(ENDS, self.storage),
            whole_batch=True,
        )
