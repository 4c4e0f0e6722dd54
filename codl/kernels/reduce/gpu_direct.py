"""Reductions on the GPU: along rows that work-items share, or some vectors of columns at a time."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.reductions import REDUCTIONS, Reduce
from codl.kernels.base import ENDS, Choice, KernelPlan
from codl.kernels.rows import row_choices, row_launch
from codl.kernels.tiling import base_defines, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc

CODES = {mode: code for code, mode in enumerate(REDUCTIONS)}


class GpuDirect(ForPlanar):
    """Any adjacent axes."""

    base_name: ClassVar[str] = "gpu_direct"
    op_kind: ClassVar[str] = "reduce"

    def choices(self, op: Reduce, soc: Soc) -> tuple[Choice, ...]:
        return row_choices(op.rows, soc)

    def features(self, op: Reduce, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        x, y, *_ = self.plan(op, soc, choice).launches[0].global_size
        return {
            "rows": float(op.rows.outer * op.rows.inner),
            "loop_length": float(op.rows.size),
            "in_columns": float(op.rows.inner > 1),
            "work_items": float(x * y),
            "waves": waves(x * y, soc),
            "input_bytes": self.stored_bytes(op.input.bytes),
            "output_bytes": self.stored_bytes(op.output.bytes),
        }

    def plan(self, op: Reduce, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        launch, defines = row_launch("reduce", op.rows, choice, soc, 1.0 / op.rows.size)
        return KernelPlan(
            source="reduce/gpu_direct.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **defines,
                "MODE": CODES[op.mode],
            },
            storages=dict.fromkeys(ENDS, self.storage),
            whole_batch=True,
        )
