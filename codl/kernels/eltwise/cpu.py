"""Element-wise operators on the CPU: ncnn's layers for one or two inputs."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.eltwise import (
    Eltwise,
    EltwiseColumns,
)
from codl.kernels.ncnn import NcnnLayer
from codl.kernels.variant import ByColumns
from codl.records.soc import Soc

#: ncnn's codes of BinaryOp.
CODES = {"add": 0, "sub": 1, "mul": 2}
#: What ncnn computes otherwise than IEEE 754 has it.
INEXACT = {
    "div": "a reciprocal and one step of Newton, which is no number where the divisor is 0",
    "max": "keeping the other where one is not a number",
    "min": "keeping the other where one is not a number",
    "pow": "exp(y log x), which is wrong where x is not above 0",
}


class CpuDirect(ByColumns):
    """Any two inputs: ncnn stretches axes of size 1 as the op does, whatever its packing."""

    name: ClassVar[str] = "cpu_direct"
    op_kind: ClassVar[str] = "eltwise"
    op_columns: ClassVar[type[EltwiseColumns]] = EltwiseColumns

    def refusal(self, op: Eltwise, soc: Soc) -> str | None:
        if op.mode in INEXACT:
            return f"ncnn computes {op.mode} by {INEXACT[op.mode]}"
        if op.mode not in CODES and op.mode != "identity":
            return f"ncnn has no layer for {op.mode}"
        return None

    def plan(self, op: Eltwise, soc: Soc) -> NcnnLayer:
        # With one input it runs in place, and ncnn crashes where it did not allocate that memory.
        parameters = (
            {0: CODES["add"], 1: 1, 2: 0.0} if op.mode == "identity" else {0: CODES[op.mode]}
        )
        return NcnnLayer("BinaryOp", parameters, after=op.activation, copies_input=True)

    def feature_columns(self, ops: EltwiseColumns, soc: Soc) -> FeatureColumns:
        return {
            "input_bytes": 4.0 * ops.input_elements,
            "output_bytes": 4.0 * ops.output_elements,
            "activations": ops.output_elements * ops.is_active,
        }
