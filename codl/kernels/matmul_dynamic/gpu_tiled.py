"""Products of rows rounded to 8 bits on GPUs: tiles of words in local memory.

The tiles are those of `codl.kernels.matmul.gpu_tiled`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from codl.ir.ops.base import Weights
from codl.ir.ops.matmul_quantized import PER_WORD, MatMulDynamic
from codl.ir.types import ConstantArray
from codl.kernels.base import Choice, ConstantArg, KernelLaunch, KernelPlan
from codl.kernels.matmul.gpu_tiled import PER_ITEM, GpuTiled
from codl.kernels.matmul.problem import OUT, A, B
from codl.kernels.matmul_dynamic.rounding import MATRIX, ROUNDED, Rounding, refusal
from codl.kernels.tiling import base_defines, ceil_div
from codl.records.soc import Soc


class GpuTiledDynamic(GpuTiled):
    """Any rows."""

    op_kind: ClassVar[str] = "matmul_dynamic"
    source: ClassVar[str] = "matmul_dynamic/gpu_tiled.cl"
    depth: ClassVar[int] = 8 * PER_WORD

    def refusal(self, op: MatMulDynamic, soc: Soc) -> str | None:
        return refusal(op) or super().refusal(op, soc)

    def plan(self, op: MatMulDynamic, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        tile, rounding = choice["tile"], Rounding(op, soc, number_bytes=1)
        side, m, words = tile // PER_ITEM, rounding.rows, rounding.depth // PER_WORD
        multiply = KernelLaunch(
            kernel="matmul_dynamic",
            global_size=(ceil_div(op.n, tile) * side, ceil_div(m, tile) * side, 1),
            local_size=(side, side, 1),
            args=(OUT, *ROUNDED, *MATRIX, ConstantArg("column_sums"), m, op.n, words),
        )
        return KernelPlan(
            source=self.source,
            launches=(rounding.launch, multiply),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **rounding.grid.defines,
                "TILE": tile,
                "DEPTH": choice["depth"] // PER_WORD,
            },
            pack=partial(_packed, op),
            scratch=rounding.scratch,
            storages=dict.fromkeys((A, B, OUT), self.storage),
            whole_batch=True,
        )


def _packed(op: MatMulDynamic, weights: Weights) -> dict[str, ConstantArray]:
    """The words as they are, but for what lies beyond k: zeros."""
    numbers = op.numbers(weights)
    padded = np.pad(numbers, ((0, 0), (0, -op.k % PER_WORD)))
    found: dict[str, Any] = {name: np.ascontiguousarray(weights[name]) for name in weights}
    found["weight"] = padded.view("<u4").astype(np.uint32, copy=False)
    found["column_sums"] = numbers.sum(axis=1, dtype=np.uint32)
    return found
