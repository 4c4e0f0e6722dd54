"""Products of many rows with packed matrices on CPU runtimes: unpacked in the kernel.

The tiles are those of `codl.kernels.matmul.gpu_direct`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from codl.ir.columns import Column
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import merged
from codl.ir.ops.matmul_quantized import MatMulNBitsColumns
from codl.ir.types import ConstantArray
from codl.kernels.base import Arg
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.matmul.gpu_direct import INSIDE, GpuDirect
from codl.kernels.matmul_nbits.gpu_vector import MOST_ROWS
from codl.kernels.matmul_nbits.packing import matrix_args, matrix_defines, pack_matrix
from codl.records.soc import Soc


class GpuDirectNBits(GpuDirect):
    """More than a few rows; a work-item unpacks as much of its columns as a near cache holds."""

    op_kind: ClassVar[str] = "matmul_nbits"
    op_columns: ClassVar[type[MatMulNBitsColumns]] = MatMulNBitsColumns
    source: ClassVar[str] = "matmul_nbits/gpu_direct.cl"

    def refusal(self, op: Any, soc: Soc) -> str | None:
        rows = merged(op)[0]
        if rows <= MOST_ROWS:
            return f"rows must be more than {MOST_ROWS}, which gpu_vector has, got {rows}"
        return super().refusal(op, soc)

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        default = super().default_columns(ops, soc)
        return {**default, "packed": np.full_like(ops.k, INSIDE)}

    def matrix_bytes(self, ops: MatMulNBitsColumns) -> Column:
        """Words, whatever other tensors are stored as."""
        return 4.0 * ops.weight_elements

    def more_defines(self, op: Any) -> dict[str, int]:
        return matrix_defines(op)

    def right(self, op: Any, way: int | None) -> tuple[Arg, ...]:
        return matrix_args(op)

    def pack(self, op: Any, soc: Soc, panel: int, weights: Weights) -> dict[str, ConstantArray]:
        return pack_matrix(weights, width=soc.gpu.vector_width, panel=panel)
