"""Products of a few rows with packed matrices on CPU runtimes, at the speed of the memory.

So are those of a language model that writes word by word: every number is read once.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import Column, FeatureColumns
from codl.ir.ops.matmul import merged
from codl.ir.ops.matmul_nbits import MatMulNBits, MatMulNBitsColumns
from codl.ir.soc import Soc
from codl.ir.types import PLANAR, Storage
from codl.kernels import tiling_columns
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import ChoiceColumns, by_level, gpu_cache_bytes
from codl.kernels.matmul_nbits.packing import matrix_args, matrix_defines, pack_matrix
from codl.kernels.tiling import base_defines
from codl.kernels.variant import ByChoiceColumns

#: With more rows, tiles that are unpacked once for many rows are faster.
MOST_ROWS = 4
#: Panels of V columns side by side.
PANELS = (2, 1, 4)


class GpuVector(ByChoiceColumns):
    """Up to four rows."""

    name: ClassVar[str] = "gpu_vector"
    op_kind: ClassVar[str] = "matmul_nbits"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu"})
    storage: ClassVar[Storage] = PLANAR
    op_columns: ClassVar[type[MatMulNBitsColumns]] = MatMulNBitsColumns

    def refusal(self, op: MatMulNBits, soc: Soc) -> str | None:
        rows = merged(op)[0]
        return f"rows must be {MOST_ROWS} at most, got {rows}" if rows > MOST_ROWS else None

    def choices(self, op: MatMulNBits, soc: Soc) -> tuple[Choice, ...]:
        return tuple({"panels": panels} for panels in PANELS)

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        return {"panels": np.full_like(ops.k, PANELS[0])}

    def feature_columns(
        self, ops: MatMulNBitsColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        groups, strip = _groups(ops, soc, choice or self.default_columns(ops, soc))
        items = columns.ceil_div(groups, strip)
        lanes = columns.round_up(ops.n, soc.gpu.vector_width)
        return {
            "padded_macs": lanes * ops.m * ops.blocks * ops.block,
            "unpacked": lanes * ops.blocks * ops.block,
            "blocks": lanes * ops.blocks,
            "loop_length": ops.k,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "output_bytes": 4.0 * ops.output_elements,
            **by_level("weight", 4.0 * ops.weight_elements, gpu_cache_bytes(soc)),
        }

    def plan(self, op: MatMulNBits, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        groups, strip = (int(x[0]) for x in _groups(self.op_columns.of([op]), soc, choice))
        launch = KernelLaunch(
            kernel="matmul_vector",
            global_size=(-(-groups // strip), 1, 1),
            local_size=(1, 1, 1),
            args=(*ENDS, *matrix_args(op), strip, op.n, op.k),
        )
        return KernelPlan(
            source="matmul_nbits/gpu_vector.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc),
                **matrix_defines(op),
                "ROWS": merged(op)[0],
                "PANELS": choice["panels"],
            },
            pack=partial(pack_matrix, width=soc.gpu.vector_width, panel=soc.gpu.vector_width),
            storages=dict.fromkeys(ENDS, PLANAR),
            whole_batch=True,
        )


def _groups(ops: MatMulNBitsColumns, soc: Soc, choice: ChoiceColumns) -> tuple[Column, Column]:
    """Groups of panels that are gone through side by side, and how many a work-item has."""
    groups = columns.ceil_div(ops.n, soc.gpu.vector_width * np.asarray(choice["panels"], float))
    return groups, tiling_columns.strip(groups, np.ones_like(groups), groups, soc)
