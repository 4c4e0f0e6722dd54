"""Products of a few rows with packed matrices on CPU runtimes, at the speed of the memory.

So are those of a language model that writes word by word: every number is read once. Either numbers
become floats in registers, or the rows become whole numbers, of which a CPU multiplies and adds two
in each lane at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir import columns
from codl.ir.columns import Column, FeatureColumns
from codl.ir.ops.matmul import merged
from codl.ir.ops.matmul_quantized import MatMulNBits, MatMulNBitsColumns
from codl.kernels import tiling_columns
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import (
    ChoiceColumns,
    by_level,
    first_choice,
    gpu_cache_bytes,
    unique,
)
from codl.kernels.matmul_nbits.packing import matrix_args, matrix_defines, pack_matrix
from codl.kernels.tiling import base_defines
from codl.kernels.variant import ByChoiceColumns, ForPlanar
from codl.records.soc import Soc

#: With more rows, tiles that are unpacked once for many rows are faster.
MOST_ROWS = 4
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


class GpuVector(ForPlanar, ByChoiceColumns):
    """Up to four rows."""

    base_name: ClassVar[str] = "gpu_vector"
    op_kind: ClassVar[str] = "matmul_nbits"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu"})
    op_columns: ClassVar[type[MatMulNBitsColumns]] = MatMulNBitsColumns

    def refusal(self, op: MatMulNBits, soc: Soc) -> str | None:
        rows = merged(op)[0]
        return f"rows must be {MOST_ROWS} at most, got {rows}" if rows > MOST_ROWS else None

    def choices(self, op: MatMulNBits, soc: Soc) -> tuple[Choice, ...]:
        ways = (PAIRS, FLOATS) if self._fits(self.op_columns.of([op]), soc)[0] else (FLOATS,)
        default = first_choice(self.default_columns(self.op_columns.of([op]), soc))
        return unique([default, *({"panels": p, "by": way} for way in ways for p in PANELS)])

    def default_columns(self, ops: Any, soc: Soc) -> ChoiceColumns:
        wide = soc.gpu.vector_width >= PAIRS_WIDTH
        by = np.where(wide & self._fits(ops, soc), float(PAIRS), float(FLOATS))
        return {"panels": np.full_like(ops.k, PANELS[0]), "by": by}

    def _fits(self, ops: MatMulNBitsColumns, soc: Soc) -> NDArray[np.bool_]:
        """Whether local memory holds the rows as whole numbers."""
        each = ELEMENT_BYTES * ops.block + BLOCK_BYTES
        fits: NDArray[np.bool_] = ops.m * ops.blocks * each <= LOCAL_SHARE * soc.gpu.local_mem_bytes
        return fits

    def feature_columns(
        self, ops: MatMulNBitsColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        choice = choice or self.default_columns(ops, soc)
        groups, strip = _groups(ops, soc, choice)
        items = columns.ceil_div(groups, strip)
        lanes, depth = columns.round_up(ops.n, soc.gpu.vector_width), ops.blocks * ops.block
        by_pairs = np.asarray(choice["by"]) == PAIRS
        return {
            "padded_macs": lanes * ops.m * depth,
            "float_macs": lanes * ops.m * depth * ~by_pairs,
            "unpacked": lanes * depth,
            "rounded": items * ops.m * depth * by_pairs,
            "blocks": lanes * ops.blocks,
            "loop_length": ops.k,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "output_bytes": self.storage.element_bytes * ops.output_elements,
            **by_level("weight", 4.0 * ops.weight_elements, gpu_cache_bytes(soc)),
        }

    def plan(self, op: MatMulNBits, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        choice = choice or self.choices(op, soc)[0]
        by_pairs = choice["by"] == PAIRS
        groups, strip = (int(x[0]) for x in _groups(self.op_columns.of([op]), soc, choice))
        launch = KernelLaunch(
            kernel="matmul_pairs" if by_pairs else "matmul_vector",
            global_size=(-(-groups // strip), 1, 1),
            local_size=(1, 1, 1),
            args=(*ENDS, *matrix_args(op), strip, op.n, op.k),
        )
        return KernelPlan(
            source=f"matmul_nbits/gpu_{'pairs' if by_pairs else 'vector'}.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **matrix_defines(op),
                "ROWS": merged(op)[0],
                "PANELS": choice["panels"],
                **({"DEPTH": op.blocks * op.block} if by_pairs else {}),
            },
            pack=partial(pack_matrix, width=soc.gpu.vector_width, panel=soc.gpu.vector_width),
            storages=dict.fromkeys(ENDS, self.storage),
            whole_batch=True,
        )


def _groups(ops: MatMulNBitsColumns, soc: Soc, choice: ChoiceColumns) -> tuple[Column, Column]:
    """Groups of panels that are gone through side by side, and how many a work-item has."""
    groups = columns.ceil_div(ops.n, soc.gpu.vector_width * np.asarray(choice["panels"], float))
    return groups, tiling_columns.strip(groups, np.ones_like(groups), groups, soc)
