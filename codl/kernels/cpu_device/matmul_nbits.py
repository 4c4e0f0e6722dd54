"""Products with packed matrices on a CPU that plays the GPU.

A few rows go at the speed of the memory, as when a language model writes word by word: every number
is read once. Either numbers become floats in registers, or the rows become whole numbers, of which
a CPU multiplies and adds two in each lane at once. More rows have the tiles of other products.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import merged
from codl.ir.ops.matmul_quantized import MatMulNBits, MatMulNBitsColumns
from codl.ir.types import ConstantArray
from codl.kernels.base import ENDS, Arg, Choice, KernelPlan
from codl.kernels.cpu_device.matmul import INSIDE, GpuDirect
from codl.kernels.feature_columns import ChoiceColumns, by_level, gpu_cache_bytes
from codl.kernels.kernel import CPU_DEVICE, ColumnKernel, Grid, launch, of_every_storage
from codl.kernels.matmul import MOST_ROWS, refuse_rows
from codl.kernels.matmul_nbits import matrix_args, matrix_macros, pack_matrix
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div, round_up
from codl.records.soc import Soc

#: Panels of V columns side by side. One alone is read from a matrix's first word to its last, which
#: a CPU sees coming; several are as many streams, and a third slower where they are in no cache.
PANELS = (1, 2, 4)
#: How numbers are multiplied: as floats, or by pairs of whole numbers of 16 bits. x86 has an
#: instruction for those at any width.
FLOATS, PAIRS = 0, 1
PAIRS_WIDTH = 8
#: Of local memory, what rows as whole numbers may take, and what they take for an element: 4 bytes,
#: and of a block two floats.
LOCAL_SHARE, ELEMENT_BYTES, BLOCK_BYTES = 1 / 2, 4, 8


class GpuVector(ColumnKernel):
    """Up to four rows."""

    op_kind = "matmul_nbits"
    base_name = "gpu_vector"
    meant_for = CPU_DEVICE
    op_columns = MatMulNBitsColumns

    def refuse(self, op: MatMulNBits, soc: Soc) -> str | None:
        return refuse_rows(op)

    def alternatives(self, op: MatMulNBits, soc: Soc, first: Choice) -> Iterable[Choice]:
        by_pairs = self._fits(self.op_columns.of([op]), soc)[0]
        ways = (PAIRS, FLOATS) if by_pairs else (FLOATS,)
        return [{"panels": panels, "by": way} for way in ways for panels in PANELS]

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        wide = soc.gpu.vector_width >= PAIRS_WIDTH
        by = np.where(wide & self._fits(ops, soc), float(PAIRS), float(FLOATS))
        return {"panels": PANELS[0], "by": by}

    def _fits(self, ops: MatMulNBitsColumns, soc: Soc) -> NDArray[np.bool_]:
        """Whether local memory holds the rows as whole numbers."""
        each = ELEMENT_BYTES * ops.block + BLOCK_BYTES
        fits: NDArray[np.bool_] = ops.m * ops.blocks * each <= LOCAL_SHARE * soc.gpu.local_mem_bytes
        return fits

    def counts(self, ops: MatMulNBitsColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        grid, by_pairs = _groups(ops, soc, choice["panels"]), choice["by"] == PAIRS
        lanes, depth = round_up(ops.n, soc.gpu.vector_width), ops.blocks * ops.block
        return {
            "padded_macs": lanes * ops.m * depth,
            "float_macs": lanes * ops.m * depth * ~by_pairs,
            "unpacked": lanes * depth,
            "rounded": grid.strips * ops.m * depth * by_pairs,
            "blocks": lanes * ops.blocks,
            "loop_length": ops.k,
            **grid.features,
            "output_bytes": self.stored(ops.output_elements),
            **by_level("weight", 4.0 * ops.weight_elements, gpu_cache_bytes(soc)),
        }

    def build(self, op: MatMulNBits, soc: Soc, choice: Choice) -> KernelPlan:
        name = "pairs" if choice["by"] == PAIRS else "vector"
        ops, _, columns = self.alone(op, soc, choice)
        grid, width = _groups(ops, soc, columns["panels"]), soc.gpu.vector_width
        product = launch(
            f"matmul_{name}",
            ((int(grid.strips[0]), 1, 1), (1, 1, 1)),
            *ENDS,
            *matrix_args(op),
            strip=grid.strip,
            n=op.n,
            k=op.k,
        )
        macros = {
            "ROWS": merged(op)[0],
            "PANELS": choice["panels"],
            "DEPTH": name == "pairs" and op.blocks * op.block,
        }
        return self.assemble(
            op,
            soc,
            product,
            source=f"cpu_device/nbits_{name}.cl",
            macros={**matrix_macros(op), **macros},
            pack=partial(pack_matrix, width=width, panel=width),
        )


def _groups(ops: MatMulNBitsColumns, soc: Soc, panels: Column) -> Grid:
    """Groups of panels that are gone through side by side; work-items have some."""
    groups = ceil_div(ops.n, soc.gpu.vector_width * panels)
    return Grid.of(groups, np.ones_like(groups), groups, soc)


class GpuDirectNBits(GpuDirect):
    """More than a few rows; a work-item unpacks as much of its columns as a near cache holds."""

    op_kind = "matmul_nbits"
    op_columns = MatMulNBitsColumns
    source = "cpu_device/nbits.cl"

    def refuse(self, op: Any, soc: Soc) -> str | None:
        rows = merged(op)[0]
        if rows <= MOST_ROWS:
            return f"rows must be more than {MOST_ROWS}, which gpu_vector has, got {rows}"
        return super().refuse(op, soc)

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        return {**super().default_columns(ops, soc), "packed": INSIDE}

    def matrix_bytes(self, ops: MatMulNBitsColumns) -> Column:
        """Words, whatever other tensors are stored as."""
        return 4.0 * ops.weight_elements

    def more_macros(self, op: Any) -> dict[str, int | bool]:
        return matrix_macros(op)

    def right(self, op: Any, way: int | None) -> tuple[Arg, ...]:
        return matrix_args(op)

    def pack(self, op: Any, soc: Soc, panel: int, weights: Weights) -> dict[str, ConstantArray]:
        return pack_matrix(weights, width=soc.gpu.vector_width, panel=panel)


register(*of_every_storage(GpuVector, GpuDirectNBits))
