"""Softmax on the GPU: along rows that work-items share, or V columns at a time."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.reductions import Softmax
from codl.kernels.base import ENDS, Choice, KernelPlan
from codl.kernels.rows import row_choices, row_launch
from codl.kernels.tiling import base_defines, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc


class GpuDirect(ForPlanar):
    """Any adjacent axes."""

    base_name: ClassVar[str] = "gpu_direct"
    op_kind: ClassVar[str] = "softmax"

    def choices(self, op: Softmax, soc: Soc) -> tuple[Choice, ...]:
        return row_choices(op.rows, soc)

    def features(self, op: Softmax, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        plan = self.plan(op, soc, choice)
        x, y, *_ = plan.launches[0].global_size
        return {
            "rows": float(op.rows.outer * op.rows.inner),
            "loop_length": float(op.rows.size),
            "in_columns": float(op.rows.inner > 1),
            "work_items": float(x * y),
            "waves": waves(x * y, soc),
            "output_bytes": self.stored_bytes(op.output.bytes),
        }

    def plan(self, op: Softmax, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        launch, defines = row_launch("softmax", op.rows, choice, soc)
        return KernelPlan(
            source="softmax/gpu_direct.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **defines,
                **({"LOG": 1} if op.log else {}),
            },
            storages=dict.fromkeys(ENDS, self.storage),
            whole_batch=True,
        )
