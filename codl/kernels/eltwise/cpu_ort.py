"""Element-wise operators in ONNX Runtime: every mode, and operands that are stretched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codl.ir.ops.eltwise import UNARY, Eltwise
from codl.kernels.ort import CpuOrt, NamedArrays, OrtPlan, node, number

#: ONNX's nodes by mode, with the attributes that take `alpha` and `beta`.
_NODES: Mapping[str, tuple[str, ...]] = {
    "add": ("Add",),
    "sub": ("Sub",),
    "mul": ("Mul",),
    "div": ("Div",),
    "max": ("Max",),
    "min": ("Min",),
    "pow": ("Pow",),
    "identity": ("Identity",),
    "selu": ("Selu", "alpha", "gamma"),
    "celu": ("Celu", "alpha"),
    "thresholded_relu": ("ThresholdedRelu", "alpha"),
    "shrink": ("Shrink", "bias", "lambd"),
}


def _plan(op: Eltwise) -> OrtPlan:
    constants: NamedArrays = {}
    if op.mode == "prelu":  # ONNX's own stretches the slope alone
        constants = {"zero": number(0)}
        nodes = [
            node("Less", ("x0", "zero"), "below"),
            node("Mul", ("x0", "x1"), "scaled"),
            node("Where", ("below", "scaled", "x0")),
        ]
    else:
        kind, *named = _NODES.get(op.mode, (op.mode.capitalize(),))
        inputs = ("x0",) if op.mode in UNARY else ("x0", "x1")
        attributes: dict[str, Any] = dict(zip(named, op.parameters, strict=True))
        nodes = [node(kind, inputs, **attributes)]
    return OrtPlan(tuple(nodes), op.inputs, op.output, constants)


VARIANT = CpuOrt("eltwise", _plan)
