"""Indices of the maxima of windows on the GPU."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.pooling import MaxIndices
from codl.ir.types import PLANAR, Storage
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip, waves
from codl.kernels.variant import OnGpu
from codl.records.soc import Soc

#: Taps that one work-item of a CPU takes at most: a few us.
LONGEST_STRIP = 4096


class GpuIndices(OnGpu):
    """Any window."""

    name: ClassVar[str] = "gpu_indices"
    op_kind: ClassVar[str] = "max_indices"
    storage: ClassVar[Storage] = PLANAR

    def choices(self, op: MaxIndices, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: MaxIndices, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        items = ceil_div(op.output.elements, _strip(op, soc))
        return {
            "window_steps": float(op.flops),
            "output_bytes": float(op.output.bytes),
            "work_items": float(items),
            "waves": waves(items, soc),
        }

    def plan(self, op: MaxIndices, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        length, pooling = _strip(op, soc), op.pooling
        global_size, local_size = item_grid(ceil_div(op.output.elements, length), 1, soc)
        sizes = (
            length,
            op.output.elements,
            *pooling.input[2:],
            *pooling.output[2:],
            *op.kernel,
            *op.stride,
            op.pad.top,
            op.pad.left,
            *op.dilation,
            *((1, pooling.input.h) if op.by_columns else (pooling.input.w, 1)),
        )
        return KernelPlan(
            source="pooling/gpu_indices.cl",
            launches=(KernelLaunch("max_indices", global_size, (*ENDS, *sizes), local_size),),
            defines=base_defines(op.activation, soc),
            storages=dict.fromkeys(ENDS, PLANAR),
            whole_batch=True,
        )


def _strip(op: MaxIndices, soc: Soc) -> int:
    """Output elements of one work-item."""
    most = max(1, LONGEST_STRIP // (op.kernel.h * op.kernel.w))
    return strip(op.output.elements, 1, most, soc)
