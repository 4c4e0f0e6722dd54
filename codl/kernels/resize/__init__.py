"""Resize on the GPU, with tables of the rows and columns that every output pixel is made of."""

from __future__ import annotations

from dataclasses import replace

from codl.ir.ops.base import Array, Weights
from codl.ir.ops.resize import Resize
from codl.kernels.base import ENDS, Choice, ConstantArg, KernelPlan
from codl.kernels.kernel import BLOCKS, Grid, Kernel, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.strided import as_ints
from codl.records.soc import Soc

#: Taps that one work-item of a CPU takes at most: a few us.
LONGEST_STRIP = 4096
TABLES = ("rows", "row_weights", "columns", "column_weights")


class GpuDirect(Kernel):
    """Every mode."""

    op_kind = "resize"
    source = "resize/gpu_direct.cl"
    storages = BLOCKS

    def counts(self, op: Resize, soc: Soc, choice: Choice) -> dict[str, float]:
        blocks, pixels = soc.gpu.blocks(op.input.c), op.size.h * op.size.w
        channels = self.stored(blocks * soc.gpu.vector_width)
        return {
            "tap_blocks": pixels * blocks * op.taps**2,
            "output_blocks": pixels * blocks,
            **_grid(op, soc).features,
            "input_bytes": channels * op.input.h * op.input.w,
            "output_bytes": channels * pixels,
        }

    def build(self, op: Resize, soc: Soc, choice: Choice) -> KernelPlan:
        grid = _grid(op, soc)
        resize = launch(
            "resize_direct",
            grid.sizes,
            *ENDS,
            *map(ConstantArg, TABLES),
            outside=float(op.outside),
            strip=grid.strip,
            in_w=op.input.w,
            out_w=op.size.w,
            pixels=op.size.h * op.size.w,
        )

        def pack(weights: Weights) -> dict[str, Array]:
            rows, columns = op.rows, op.columns
            row_tables = (as_ints(rows.indices), rows.weights)
            tables = (*row_tables, as_ints(columns.indices), columns.weights)
            return dict(zip(TABLES, tables, strict=True))

        plan = self.assemble(op, soc, resize, macros={"TAPS": op.taps})
        return replace(plan, pack=pack)  # tables stay floats beside halves


def _grid(op: Resize, soc: Soc) -> Grid:
    most = max(1, LONGEST_STRIP // op.taps**2)
    return Grid.of(op.size.h * op.size.w, soc.gpu.blocks(op.input.c), most, soc)


register(*of_every_storage(GpuDirect))
