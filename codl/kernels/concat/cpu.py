"""Concatenation on the CPU: one copy of every input."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.concat import (
    Concat,
    ConcatColumns,
)
from codl.kernels.ncnn import NcnnLayer
from codl.kernels.variant import ByColumns
from codl.records.soc import Soc


class CpuCopy(ByColumns):
    name: ClassVar[str] = "cpu_copy"
    op_kind: ClassVar[str] = "concat"
    op_columns: ClassVar[type[ConcatColumns]] = ConcatColumns

    def plan(self, op: Concat, soc: Soc) -> NcnnLayer:
        return NcnnLayer("Concat", {0: 0}, after=op.activation, copies_input=True)

    def feature_columns(self, ops: ConcatColumns, soc: Soc) -> FeatureColumns:
        return {"inputs": ops.inputs, "output_bytes": 4.0 * ops.output_elements}
