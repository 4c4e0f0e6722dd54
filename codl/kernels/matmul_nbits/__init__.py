"""Products with packed matrices: how kernels have these, and the GPU's kernels.

All have the words of every V columns one behind the other. Kernels for a device that is a CPU are
in `codl.kernels.cpu_device.matmul_nbits`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from codl.ir.columns import Column
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import merged
from codl.ir.ops.matmul_quantized import MatMulNBits, MatMulNBitsColumns
from codl.ir.types import ConstantArray
from codl.kernels.base import ENDS, Arg, Choice, ConstantArg, KernelPlan
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.kernel import REAL_GPU, ColumnKernel, launch, of_every_storage
from codl.kernels.matmul import GpuTiled
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div
from codl.records.soc import Soc

#: With more rows, tiles that are unpacked once for many rows are faster.
MOST_ROWS = 4
#: Work-items of a work-group, and vectors of columns that it has; the default first.
SHAPES = ((64, 1), (64, 2), (128, 1), (128, 2), (256, 1), (32, 2), (32, 1))


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


def refuse_rows(op: MatMulNBits) -> str | None:
    """Why kernels that go through the matrix once cannot take an op."""
    rows = merged(op)[0]
    return f"rows must be {MOST_ROWS} at most, got {rows}" if rows > MOST_ROWS else None


class GpuRows(ColumnKernel):
    """A few rows at the speed of the memory: a work-group has a few vectors of columns."""

    op_kind = "matmul_nbits"
    base_name = "gpu_rows"
    source = "matmul_nbits/gpu_rows.cl"
    meant_for = REAL_GPU
    op_columns = MatMulNBitsColumns

    def refuse(self, op: MatMulNBits, soc: Soc) -> str | None:
        most = soc.gpu.max_work_group_size
        too_small = most < 32 and f"work-groups of 32 are needed, got at most {most}"
        return refuse_rows(op) or too_small or None

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        most = soc.gpu.max_work_group_size
        return tuple({"items": items, "panels": n} for items, n in SHAPES if items <= most)

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        return self.choices(None, soc)[0]

    def counts(self, ops: MatMulNBitsColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        wide = choice["panels"] * soc.gpu.vector_width
        groups, words = ceil_div(ops.n, wide), ceil_div(ops.k, ops.depth_step)
        return {
            "padded_macs": groups * wide * words * ops.depth_step * ops.m,
            "loop_length": ceil_div(words, choice["items"]),
            "work_groups": groups,
            "waves": ceil_div(groups, soc.gpu.compute_units),
            "weight_bytes": 4.0 * ops.weight_elements,
            "input_bytes": self.stored(ops.input_elements),
            "output_bytes": self.stored(ops.output_elements),
        }

    def build(self, op: MatMulNBits, soc: Soc, choice: Choice) -> KernelPlan:
        items, panels, width = choice["items"], choice["panels"], soc.gpu.vector_width
        product = launch(
            "matmul_rows",
            ((ceil_div(op.n, width * panels) * items, 1, 1), (items, 1, 1)),
            *ENDS,
            *matrix_args(op),
            n=op.n,
            k=op.k,
        )
        macros = {"ROWS": merged(op)[0], "ITEMS": items, "PANELS": panels}
        return self.assemble(
            op,
            soc,
            product,
            macros={**matrix_macros(op), **macros},
            pack=partial(pack_matrix, width=width, panel=1),
        )


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


register(*of_every_storage(GpuRows, GpuTiledNBits))
