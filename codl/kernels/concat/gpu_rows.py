"""Concatenation along any axis on the GPU: rows of every input into rows of the output."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir.ops.concat import ConcatNd
from codl.kernels.base import Choice, KernelPlan, TensorArg
from codl.kernels.strided.gpu_copy import as_ints, row_launch, row_pieces
from codl.kernels.strided.order import RUN, CopiedRows
from codl.kernels.tiling import base_defines, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc


class GpuRows(ForPlanar):
    """One launch an input."""

    base_name: ClassVar[str] = "gpu_rows"
    op_kind: ClassVar[str] = "concat_nd"

    def choices(self, op: ConcatNd, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: ConcatNd, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        pieces = [row_pieces(_rows(op, index), soc)[1] for index in range(len(op.inputs))]
        return {
            "launches": float(len(op.inputs)),
            "pieces": float(sum(pieces)),
            "waves": sum(waves(count, soc) for count in pieces),
            "output_bytes": self.stored_bytes(op.output.bytes),
        }

    def plan(self, op: ConcatNd, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        rows = [_rows(op, index) for index in range(len(op.inputs))]
        pitch = sum(row.size for row in rows)
        launches, base = [], 0
        for index, row in enumerate(rows):
            names = (f"rows_{index}", f"rows_{index}")  # a run needs no table of elements
            source = TensorArg("input", index)
            launches.append(
                row_launch(row, 0.0, soc, source=source, names=names, base=base, pitch=pitch)
            )
            base += row.size
        tensors = [TensorArg("output"), *(TensorArg("input", i) for i in range(len(rows)))]
        return KernelPlan(
            source="strided/gpu_copy.cl",
            launches=tuple(launches),
            defines={**base_defines(op.activation, soc, self.storage), "KIND": RUN},
            pack=lambda weights: {f"rows_{i}": as_ints(row.starts) for i, row in enumerate(rows)},
            storages=dict.fromkeys(tensors, self.storage),
            whole_batch=True,
        )


def _rows(op: ConcatNd, index: int) -> CopiedRows:
    size = op.row_size(index)
    return CopiedRows(np.arange(op.rows) * size, size, RUN, high=size)
