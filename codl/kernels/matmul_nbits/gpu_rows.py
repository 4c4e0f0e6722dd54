"""Products of a few rows with packed matrices on GPUs, at the speed of the memory."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import FeatureColumns
from codl.ir.ops.matmul import merged
from codl.ir.ops.matmul_quantized import MatMulNBits, MatMulNBitsColumns
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.matmul_nbits.gpu_vector import MOST_ROWS
from codl.kernels.matmul_nbits.packing import matrix_args, matrix_defines, pack_matrix
from codl.kernels.tiling import base_defines, ceil_div
from codl.kernels.variant import ByChoiceColumns, ForPlanar
from codl.records.soc import Soc

#: Work-items of a work-group, and vectors of columns that it has; the default first.
SHAPES = ((64, 1), (64, 2), (128, 1), (128, 2), (256, 1), (32, 2), (32, 1))


class GpuRows(ForPlanar, ByChoiceColumns):
    """Up to four rows; a work-group has a few vectors of columns."""

    base_name: ClassVar[str] = "gpu_rows"
    op_kind: ClassVar[str] = "matmul_nbits"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})
    op_columns: ClassVar[type[MatMulNBitsColumns]] = MatMulNBitsColumns

    def refusal(self, op: MatMulNBits, soc: Soc) -> str | None:
        rows = merged(op)[0]
        if rows > MOST_ROWS:
            return f"rows must be {MOST_ROWS} at most, got {rows}"
        if not self.choices(op, soc):
            return f"work-groups of 32 are needed, got at most {soc.gpu.max_work_group_size}"
        return None

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        most = soc.gpu.max_work_group_size
        fitting = (shape for shape in SHAPES if shape[0] <= most)
        return tuple({"items": items, "panels": panels} for items, panels in fitting)

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        first = self.choices(None, soc)[0]
        return {name: np.full_like(ops.k, value) for name, value in first.items()}

    def feature_columns(
        self, ops: MatMulNBitsColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        choice = choice or self.default_columns(ops, soc)
        items, panels = (np.asarray(choice[name], np.float64) for name in ("items", "panels"))
        wide, size = panels * soc.gpu.vector_width, float(self.storage.element_bytes)
        groups = columns.ceil_div(ops.n, wide)
        words = columns.ceil_div(ops.k, ops.depth_step)
        return {
            "padded_macs": groups * wide * words * ops.depth_step * ops.m,
            "loop_length": columns.ceil_div(words, items),
            "work_groups": groups,
            "waves": columns.ceil_div(groups, soc.gpu.compute_units),
            "weight_bytes": 4.0 * ops.weight_elements,
            "input_bytes": size * ops.input_elements,
            "output_bytes": size * ops.output_elements,
        }

    def plan(self, op: MatMulNBits, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        items, width = choice["items"], soc.gpu.vector_width
        launch = KernelLaunch(
            kernel="matmul_rows",
            global_size=(ceil_div(op.n, width * choice["panels"]) * items, 1, 1),
            local_size=(items, 1, 1),
            args=(*ENDS, *matrix_args(op), op.n, op.k),
        )
        return KernelPlan(
            source="matmul_nbits/gpu_rows.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **matrix_defines(op),
                "ROWS": merged(op)[0],
                "ITEMS": items,
                "PANELS": choice["panels"],
            },
            pack=partial(pack_matrix, width=width, panel=1),
            storages=dict.fromkeys(ENDS, self.storage),
            whole_batch=True,
        )
