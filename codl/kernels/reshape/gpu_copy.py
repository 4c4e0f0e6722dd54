"""Reshape on the GPU: a copy from one planar tensor to another of as many elements."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.movement import Reshape
from codl.ir.types import PLANAR_HALF
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc

#: Chunks of V elements of one work-item of a CPU at most.
LONGEST_STRIP = 1024


class GpuCopy(ForPlanar):
    """Any number of axes."""

    base_name: ClassVar[str] = "gpu_copy"
    op_kind: ClassVar[str] = "reshape"

    def choices(self, op: Reshape, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Reshape, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        items = self._grid(op, soc)[1]
        return {
            "output_bytes": self.stored_bytes(op.output.bytes),
            "work_items": float(items),
            "waves": waves(items, soc),
        }

    def plan(self, op: Reshape, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        length, items = self._grid(op, soc)
        global_size, local_size = item_grid(items, 1, soc)
        args = (*ENDS, length, op.output.elements)
        return KernelPlan(
            source="layout/transform.cl",
            launches=(
                KernelLaunch("copy_planar", global_size, args, local_size).of_images(1, ENDS),
            ),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **({"PLANAR_HALF": 1} if self.storage == PLANAR_HALF else {}),
            },
            storages=dict.fromkeys(ENDS, self.storage),
            whole_batch=True,
        )

    def _grid(self, op: Reshape, soc: Soc) -> tuple[int, int]:
        """Chunks of a work-item, and work-items."""
        chunks = ceil_div(op.output.elements, soc.gpu.vector_width)
        length = strip(chunks, 1, LONGEST_STRIP, soc)
        return length, ceil_div(chunks, length)
