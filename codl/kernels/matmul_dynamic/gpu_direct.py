"""Products of rows rounded to 8 bits on CPU runtimes: register tiles of sums of whole numbers."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import Column, FeatureColumns
from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import merged
from codl.ir.ops.matmul_quantized import PER_WORD, MatMulDynamic, MatMulDynamicColumns
from codl.ir.types import ConstantArray
from codl.kernels import tiling_columns
from codl.kernels.base import Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import ChoiceColumns, first_choice, unique
from codl.kernels.matmul.gpu_direct import NARROW_ROWS, USUAL, WIDE, fitting_rows, usual_rows
from codl.kernels.matmul.problem import OUT, A, B
from codl.kernels.matmul_dynamic.rounding import MATRIX, ROUNDED, Rounding, refusal
from codl.kernels.tiling import base_defines
from codl.kernels.variant import ByChoiceColumns, ForPlanar
from codl.records.soc import Soc

#: Bytes of a rounded number: two of them are multiplied in each lane.
NUMBER_BYTES = 2
#: The order of the numbers of a word in which those that a mask leaves are neighbours.
PAIRED = (0, 2, 1, 3)


class GpuDirect(ForPlanar, ByChoiceColumns):
    """Any rows."""

    base_name: ClassVar[str] = "gpu_direct"
    op_kind: ClassVar[str] = "matmul_dynamic"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu"})
    op_columns: ClassVar[type[MatMulDynamicColumns]] = MatMulDynamicColumns

    def refusal(self, op: MatMulDynamic, soc: Soc) -> str | None:
        return refusal(op)

    def choices(self, op: MatMulDynamic, soc: Soc) -> tuple[Choice, ...]:
        default = first_choice(self.default_columns(self.op_columns.of([op]), soc))
        found = [default, {**default, "columns": USUAL}, {**default, "columns": WIDE}]
        if merged(op)[0] > default["rows"]:
            found += [{**default, "rows": rows} for rows in fitting_rows(soc.gpu)[:2]]
        return unique(found)

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        rows = usual_rows(ops.m, soc.gpu)
        wide = np.where(rows <= NARROW_ROWS, WIDE, USUAL)
        wide = np.minimum(wide, columns.ceil_div(ops.n, soc.gpu.vector_width))
        return {"rows": rows, "columns": wide.astype(np.float64)}

    def feature_columns(
        self, ops: Any, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        choice = choice or self.default_columns(ops, soc)
        tiles, panels, strip = _tiles(ops, soc, choice)
        rows, wide = (np.asarray(choice[name], np.float64) for name in ("rows", "columns"))
        items = panels * columns.ceil_div(tiles, strip)
        return {
            "padded_macs": tiles * rows * panels * wide * soc.gpu.vector_width * ops.k,
            "tiles": tiles * panels,
            "loop_length": ops.k,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "rounded": ops.m * ops.k,
            "weight_bytes": 4.0 * ops.weight_elements,
            "output_bytes": float(self.storage.element_bytes) * ops.output_elements,
        }

    def plan(self, op: MatMulDynamic, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        tiles, panels, strip = (int(x[0]) for x in _tiles(self.op_columns.of([op]), soc, choice))
        rounding = Rounding(op, soc, NUMBER_BYTES)
        multiply = KernelLaunch(
            kernel="matmul_dynamic",
            global_size=(panels, -(-tiles // strip), 1),
            local_size=(1, 1, 1),
            args=(OUT, *ROUNDED, *MATRIX, strip, rounding.rows, op.n, rounding.depth),
        )
        return KernelPlan(
            source="matmul_dynamic/gpu_direct.cl",
            launches=(rounding.launch, multiply),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **rounding.grid.defines,
                "ROWS": choice["rows"],
                "COLUMNS": choice["columns"],
            },
            pack=partial(_packed, op, soc.gpu.vector_width),
            scratch=rounding.scratch,
            storages=dict.fromkeys((A, B, OUT), self.storage),
            whole_batch=True,
        )


def _tiles(ops: Any, soc: Soc, choice: ChoiceColumns) -> tuple[Column, Column, Column]:
    """Tiles of rows, panels of columns, and how many tiles of a panel a work-item has."""
    tiles = columns.ceil_div(ops.m, np.asarray(choice["rows"], np.float64))
    wide = soc.gpu.vector_width * np.asarray(choice["columns"], np.float64)
    panels = columns.ceil_div(ops.n, wide)
    return tiles, panels, tiling_columns.strip(tiles, panels, tiles, soc)


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
