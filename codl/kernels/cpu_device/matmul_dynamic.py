"""Products of rows rounded to 8 bits on a CPU that plays the GPU: sums of whole numbers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from codl.ir.columns import Column
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import merged
from codl.ir.ops.matmul_quantized import PER_WORD, MatMulDynamic, MatMulDynamicColumns
from codl.ir.types import ConstantArray
from codl.kernels.base import Choice, KernelPlan
from codl.kernels.cpu_device.matmul import NARROW_ROWS, USUAL, WIDE, fitting_rows, usual_rows
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.kernel import CPU_DEVICE, ColumnKernel, Grid, launch, of_every_storage
from codl.kernels.matmul import OUT
from codl.kernels.matmul_dynamic import MATRIX, ROUNDED, Rounding, refuse_depth
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div
from codl.records.soc import Soc

#: Bytes of a rounded number: two of them are multiplied in each lane.
NUMBER_BYTES = 2
#: The order of the numbers of a word in which those that a mask leaves are neighbours.
PAIRED = (0, 2, 1, 3)


class GpuDirect(ColumnKernel):
    """Any rows."""

    op_kind = "matmul_dynamic"
    source = "cpu_device/matmul_dynamic.cl"
    meant_for = CPU_DEVICE
    op_columns = MatMulDynamicColumns

    def refuse(self, op: MatMulDynamic, soc: Soc) -> str | None:
        return refuse_depth(op)

    def alternatives(self, op: MatMulDynamic, soc: Soc, first: Choice) -> Iterable[Choice]:
        yield from ({**first, "columns": wide} for wide in (USUAL, WIDE))
        if merged(op)[0] > first["rows"]:
            yield from ({**first, "rows": rows} for rows in fitting_rows(soc.gpu)[:2])

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        rows = usual_rows(ops.m, soc.gpu)
        wide = np.where(rows <= NARROW_ROWS, WIDE, USUAL)
        return {"rows": rows, "columns": np.minimum(wide, ceil_div(ops.n, soc.gpu.vector_width))}

    def counts(self, ops: Any, soc: Soc, choice: Any) -> dict[str, Column]:
        tiles, grid = _tiles(ops, soc, choice)
        panels, rows, wide = grid.others, choice["rows"], choice["columns"]
        return {
            "padded_macs": tiles * rows * panels * wide * soc.gpu.vector_width * ops.k,
            "tiles": tiles * panels,
            "loop_length": ops.k,
            **grid.features,
            "rounded": ops.m * ops.k,
            "weight_bytes": 4.0 * ops.weight_elements,
            "output_bytes": self.stored(ops.output_elements),
        }

    def build(self, op: MatMulDynamic, soc: Soc, choice: Choice) -> KernelPlan:
        _, grid = _tiles(*self.alone(op, soc, choice))
        rounding = Rounding(op, soc, NUMBER_BYTES)
        multiply = launch(
            "matmul_dynamic",
            ((int(grid.others[0]), int(grid.strips[0]), 1), (1, 1, 1)),
            *(OUT, *ROUNDED, *MATRIX),
            strip=grid.strip,
            m=rounding.rows,
            n=op.n,
            depth=rounding.depth,
        )
        macros = {"ROWS": choice["rows"], "COLUMNS": choice["columns"]}
        return self.assemble(
            op,
            soc,
            *(rounding.launch, multiply),
            macros={**rounding.grid.defines, **macros},
            pack=partial(_packed, op, soc.gpu.vector_width),
            scratch=rounding.scratch,
        )


def _tiles(ops: Any, soc: Soc, choice: Any) -> tuple[Column, Grid]:
    """Tiles of rows of a panel of columns; work-items have some of one panel."""
    tiles = ceil_div(ops.m, choice["rows"])
    panels = ceil_div(ops.n, soc.gpu.vector_width * choice["columns"])
    return tiles, Grid.of(tiles, panels, tiles, soc)


def _packed(op: MatMulDynamic, width: int, weights: Weights) -> dict[str, ConstantArray]:
    """Columns to whole vectors of `width`, zeros beyond the last."""
    ends = {name: np.pad(weights[name], (0, -op.n % width)) for name in weights}
    del ends["weight"]
    numbers = op.numbers(weights)
    padded = np.pad(numbers, ((0, -op.n % width), (0, -op.k % PER_WORD)))
    paired = padded.reshape(len(padded), -1, PER_WORD)[..., PAIRED]
    words = np.ascontiguousarray(paired).view("<u4")[..., 0].astype(np.uint32, copy=False)
    turned = words.reshape(-1, width, words.shape[1]).swapaxes(1, 2)
    return {**ends, "weight": np.ascontiguousarray(turned).reshape(-1)}


register(*of_every_storage(GpuDirect))
