"""Products with packed matrices: how kernels have these, and the GPU's kernels.

All have the words of every V columns one behind the other. Kernels for a device that is a CPU are
in `codl.kernels.cpu_device.matmul_nbits`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codl.ir.columns import Column
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul_quantized import MatMulNBits, MatMulNBitsColumns
from codl.ir.types import ConstantArray
from codl.kernels.base import Arg, ConstantArg
from codl.kernels.kernel import of_every_storage
from codl.kernels.matmul import SHAPES, GpuRows, GpuTiled
from codl.kernels.registry import register
from codl.records.soc import Soc


def matrix_args(op: MatMulNBits) -> tuple[Arg, ...]:
    """The matrix and the bias, as `unpack.cl` and what includes it take them."""
    names = ("weight", "scales", *(["zero_points"] if op.zero_points else []), "bias")
    return tuple(ConstantArg(name) for name in names)


def matrix_macros(op: MatMulNBits) -> dict[str, int | bool]:
    return {"BITS": op.bits, "LENGTH": op.block, "ZERO_POINTS": op.zero_points}


def pack_matrix(weights: Weights, *, width: int, panel: int) -> dict[str, ConstantArray]:
    """Columns to whole vectors of `width`, zeros beyond the last; the bias to whole panels."""
    bias = weights["bias"]
    packed: dict[str, ConstantArray] = {"bias": np.pad(bias, (0, -len(bias) % panel))}
    for name, value in weights.items():
        if name == "bias":
            continue
        padded = np.pad(value, ((0, -len(value) % width), (0, 0)))
        turned = padded.reshape(-1, width, value.shape[1]).swapaxes(1, 2)
        packed[name] = np.ascontiguousarray(turned).reshape(-1)
    return packed


class GpuRowsNBits(GpuRows):
    """A few rows, whose matrix is unpacked as it is read."""

    op_kind = "matmul_nbits"
    source = "matmul_nbits/gpu_rows.cl"
    op_columns = MatMulNBitsColumns
    shapes = ((64, 1), *(shape for shape in SHAPES if shape != (64, 1)))

    def matrix_bytes(self, ops: MatMulNBitsColumns) -> Column:
        """Words, whatever tensors are stored as."""
        return 4.0 * ops.weight_elements

    def more_macros(self, op: Any) -> dict[str, int | bool]:
        return matrix_macros(op)

    def right(self, op: Any) -> tuple[Arg, ...]:
        return matrix_args(op)

    def pack(self, op: Any, soc: Soc, weights: Weights) -> dict[str, ConstantArray]:
        return pack_matrix(weights, width=soc.gpu.vector_width, panel=1)


class GpuTiledNBits(GpuTiled):
    """Any rows: every work-group unpacks the slices of its columns into its tiles."""

    op_kind = "matmul_nbits"
    source = "matmul_nbits/gpu_tiled.cl"

    def more_macros(self, op: Any) -> dict[str, int | bool]:
        return matrix_macros(op)

    def right(self, op: Any) -> tuple[Arg, ...]:
        return matrix_args(op)

    def pack(self, soc: Soc, weights: Weights) -> dict[str, ConstantArray]:
        return pack_matrix(weights, width=soc.gpu.vector_width, panel=1)


register(*of_every_storage(GpuRowsNBits, GpuTiledNBits))
