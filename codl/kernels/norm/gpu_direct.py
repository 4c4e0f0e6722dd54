"""Normalization on the GPU: along runs of elements that work-items share."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.norm import Channels, Norm
from codl.kernels.base import Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.norm.gpu_blocked import is_by_channel
from codl.kernels.rows import RowGrid, sharer_choices
from codl.kernels.tiling import base_defines, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc


class GpuDirect(ForPlanar):
    """Any run but a channel; scale and bias for each element of one, or for pieces of equal length.

    Among convolutions this layout would cost a copy before a norm and another behind it.
    """

    base_name: ClassVar[str] = "gpu_direct"
    op_kind: ClassVar[str] = "norm"

    def refusal(self, op: Norm, soc: Soc) -> str | None:
        if is_by_channel(op):
            return f"runs must not be the channels of one image, got {op.input}"
        if op.affine and op.channels is None:
            return f"scale and bias must have no 1 between their axes, got {op.shapes[1]}"
        return None

    def choices(self, op: Norm, soc: Soc) -> tuple[Choice, ...]:
        return sharer_choices(op.run, soc)

    def features(self, op: Norm, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        grid = RowGrid.of(op.runs, op.run, choice or self.choices(op, soc)[0], soc)
        return {
            "runs": float(op.runs),
            "loop_length": float(op.run),
            "segments": float(op.runs * op.run // _segment(op)),
            "work_items": float(grid.items),
            "waves": waves(grid.items, soc),
            "output_bytes": self.stored_bytes(op.output.bytes),
        }

    def plan(self, op: Norm, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        grid = RowGrid.of(op.runs, op.run, choice or self.choices(op, soc)[0], soc)
        inputs = (TensorArg("input", index) for index in range(len(op.shapes)))
        tensors = (*inputs, TensorArg("output"))
        channels = op.channels or Channels(1, 1)
        sizes = (
            grid.strip,
            op.runs,
            op.run,
            _segment(op),
            channels.run,
            channels.total,
            1.0 / op.run,
            float(op.epsilon),
        )
        defined = {"CENTER": op.center, "AFFINE": op.affine, "IN_RUNS": channels.run > 1}
        return KernelPlan(
            source="norm/gpu_direct.cl",
            launches=(KernelLaunch("norm_runs", grid.sizes[0], (*tensors, *sizes), grid.sizes[1]),),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **grid.defines,
                **{name: 1 for name, on in defined.items() if on},
            },
            storages=dict.fromkeys(tensors, self.storage),
            whole_batch=True,
        )


def _segment(op: Norm) -> int:
    """Elements of a run that have one channel, or a channel each of the next ones."""
    channels = op.channels
    if channels is None:
        return op.run
    return min(op.run, channels.run if channels.run > 1 else channels.total)
