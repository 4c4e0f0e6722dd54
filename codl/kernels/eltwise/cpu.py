"""Element-wise operators on the CPU: ncnn's layers for one or two inputs."""

from __future__ import annotations

from typing import ClassVar

from codl.kernels.base import Processor
from codl.kernels.columns import FeatureColumns, single
from codl.kernels.ncnn import NcnnLayer
from codl.kernels.tensor_columns import EltwiseColumns
from codl.ops.eltwise import Eltwise
from codl.soc import Soc

#: ncnn's codes of BinaryOp.
CODES = {"add": 0, "sub": 1, "mul": 2, "div": 3, "max": 4, "min": 5, "pow": 6}


class CpuDirect:
    """Inputs of one shape; ncnn has rules of its own for stretching others."""

    name: ClassVar[str] = "cpu_direct"
    op_kind: ClassVar[str] = "eltwise"
    processor: ClassVar[Processor] = "cpu"
    op_columns: ClassVar[type[EltwiseColumns]] = EltwiseColumns

    def refusal(self, op: Eltwise, soc: Soc) -> str | None:
        if len(set(op.inputs)) > 1:
            return f"the inputs must have one shape, got {op.inputs[0]} and {op.inputs[1]}"
        if op.mode not in CODES and op.mode != "identity":
            return f"ncnn has no layer for {op.mode}"
        return None

    def plan(self, op: Eltwise, soc: Soc) -> NcnnLayer:
        # With one input it runs in place, and ncnn crashes where that is memory of somebody else.
        parameters = (
            {0: CODES["add"], 1: 1, 2: 0.0} if op.mode == "identity" else {0: CODES[op.mode]}
        )
        return NcnnLayer("BinaryOp", parameters, after=op.activation, copies_input=True)

    def features(self, op: Eltwise, soc: Soc) -> dict[str, float]:
        return single(self.feature_columns(EltwiseColumns.of([op]), soc))

    def feature_columns(self, ops: EltwiseColumns, soc: Soc) -> FeatureColumns:
        return {
            "input_bytes": 4.0 * ops.input_elements,
            "output_bytes": 4.0 * ops.output_elements,
            "activations": ops.output_elements * ops.is_active,
        }
