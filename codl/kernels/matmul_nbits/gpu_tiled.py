"""Products of many rows with packed matrices on GPUs: unpacked into tiles in local memory.

The tiles are those of `codl.kernels.matmul.gpu_tiled`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from codl.ir.ops.base import Weights
from codl.ir.types import ConstantArray
from codl.kernels.base import Arg
from codl.kernels.matmul.gpu_tiled import GpuTiled
from codl.kernels.matmul_nbits.packing import matrix_args, matrix_defines, pack_matrix
from codl.records.soc import Soc


class GpuTiledNBits(GpuTiled):
    """Any rows; every work-group unpacks the slices of its columns."""

    op_kind: ClassVar[str] = "matmul_nbits"
    source: ClassVar[str] = "matmul_nbits/gpu_tiled.cl"

    def more_defines(self, op: Any) -> dict[str, int]:
        return matrix_defines(op)

    def right(self, op: Any) -> tuple[Arg, ...]:
        return matrix_args(op)

    def pack(self, soc: Soc, weights: Weights) -> dict[str, ConstantArray]:
        return pack_matrix(weights, width=soc.gpu.vector_width, panel=1)
