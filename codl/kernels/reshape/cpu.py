"""Reshape on the CPU: ncnn's, on tensors as they lie."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.movement import Reshape
from codl.kernels.ncnn import NcnnLayer
from codl.kernels.variant import OnCpu
from codl.records.soc import Soc


class CpuCopy(OnCpu):
    """Every image to an image."""

    name: ClassVar[str] = "cpu_copy"
    op_kind: ClassVar[str] = "reshape"

    def refusal(self, op: Reshape, soc: Soc) -> str | None:
        if op.input.n != op.output.n:
            return f"the batch must stay, got {op.input.n} and {op.output.n}"
        return None

    def plan(self, op: Reshape, soc: Soc) -> NcnnLayer:
        sizes = {0: op.output.w, 1: op.output.h, 2: op.output.c}
        return NcnnLayer("Reshape", sizes, after=op.activation, copies_input=True)

    def features(self, op: Reshape, soc: Soc) -> dict[str, float]:
        return {"output_bytes": float(op.output.bytes)}
