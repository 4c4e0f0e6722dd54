"""Products of a few rows by a transposed tensor on CPU runtimes: dot products, b read once.

So are attention's scores while a text is written word by word. They are bound by the memory that
b comes from, and packing it would take longer than all the rest.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import Column, FeatureColumns
from codl.ir.ops.matmul import MatMul, MatMulColumns
from codl.kernels import tiling_columns
from codl.kernels.base import Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import ChoiceColumns, by_level, gpu_cache_bytes
from codl.kernels.matmul.problem import OUT, A, B, Problem, refusal
from codl.kernels.tiling import base_defines
from codl.kernels.variant import ByChoiceColumns, ForPlanar
from codl.records.soc import Soc

#: With more rows, tiles that read b once for several rows are faster.
MOST_ROWS = 4


class GpuDots(ForPlanar, ByChoiceColumns):
    """Any batches of up to four rows, with a tensor b that is stored as (n, k)."""

    base_name: ClassVar[str] = "gpu_dots"
    op_kind: ClassVar[str] = "matmul"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu"})
    op_columns: ClassVar[type[MatMulColumns]] = MatMulColumns

    def refusal(self, op: MatMul, soc: Soc) -> str | None:
        if op.matrix or op.trans_a or not op.trans_b:
            return "b must be a transposed tensor, and a none"
        rows = Problem.of(op).m
        return f"rows must be {MOST_ROWS} at most, got {rows}" if rows > MOST_ROWS else refusal(op)

    def choices(self, op: MatMul, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def feature_columns(
        self, ops: MatMulColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        width, size = soc.gpu.vector_width, float(self.storage.element_bytes)
        blocks = columns.ceil_div(ops.n, width)
        items = columns.ceil_div(blocks, _strip(ops, soc)) * ops.products
        steps, lanes = np.floor(ops.k / width), columns.rest(ops.k, width)
        sums = blocks * ops.products * ops.m
        return {
            "padded_macs": sums * steps * width * width,
            "sums": sums,
            "rest_steps": sums * lanes,
            "loop_length": steps,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "output_bytes": size * ops.output_elements,
            **by_level("input", size * ops.input_elements, gpu_cache_bytes(soc)),
        }

    def plan(self, op: MatMul, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        problem, ops = Problem.of(op), MatMulColumns.of([op])
        strip = int(_strip(ops, soc)[0])
        launch = KernelLaunch(
            kernel="matmul_dots",
            global_size=(-(-problem.n // (strip * soc.gpu.vector_width)), problem.batches, 1),
            local_size=(1, 1, 1),
            args=(
                *(A, OUT, B, strip, problem.n, problem.k, *problem.inner),
                *problem.steps(problem.m * problem.k, problem.n * problem.k),
                float(op.alpha),
            ),
        )
        return KernelPlan(
            source="matmul/gpu_dots.cl",
            launches=(launch,),
            defines={**base_defines(op.activation, soc, self.storage), "ROWS": problem.m},
            storages=dict.fromkeys((A, B, OUT), self.storage),
            whole_batch=True,
        )


def _strip(ops: MatMulColumns, soc: Soc) -> Column:
    """Blocks of columns of a work-item."""
    blocks = columns.ceil_div(ops.n, soc.gpu.vector_width)
    return tiling_columns.strip(blocks, ops.products, blocks, soc)
