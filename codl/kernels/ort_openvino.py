"""The ops that OpenVINO runs on the CPU, where it is installed, by the nodes of ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.movement import PadNd
from codl.ir.ops.pooling import MaxIndices

# What stands in them must be registered before.
from codl.kernels import ort_ops
from codl.kernels.conv2d import cpu  # noqa: F401
from codl.kernels.ort import CpuOrt, OrtPlan
from codl.kernels.registry import VARIANTS, register

CPU_OPENVINO = "cpu_openvino"
#: Ops whose nodes are ONNX's own, or others here, and computed as exactly.
KINDS = (
    "attention",
    "concat",
    "concat_nd",
    "conv2d",
    "conv_transpose2d",
    "eltwise",
    "fc",
    "gather",
    "matmul",
    "max_indices",
    "norm",
    "pad",
    "pooling",
    "reduce",
    "reshape",
    "resize",
    "slice",
    "softmax",
    "tile",
    "transpose",
    "windows",
)


#: Nodes in the place of ONNX Runtime's own, which OpenVINO has not or cannot read.
DESCRIBED: Mapping[str, Callable[[Any], OrtPlan]] = {
    "norm": partial(ort_ops.norm_plan, has_simplified=False)
}


@cache
def _is_installed() -> bool:
    try:
        return find_spec("openvino") is not None
    except ImportError:
        return False


#: Modes of `eltwise` that OpenVINO rounds to 2^-18: far below zero they are negative.
COARSE = ("softplus", "mish")


def _refuse_wrong(op: Any) -> str | None:
    """What OpenVINO does not read, or computes otherwise than ONNX says."""
    if op.activation.kind == "hard_sigmoid" and 0 in op.activation.parameters:
        return f"OpenVINO takes a parameter of 0 for its default, got {op.activation}"
    if isinstance(op, Eltwise) and op.mode == "selu" and 0 in op.parameters:
        return f"OpenVINO takes a parameter of 0 for its default, got {op.parameters}"
    if isinstance(op, Eltwise) and op.mode in COARSE:
        return f"OpenVINO's {op.mode} is negative far below zero"
    if isinstance(op, PadNd) and op.mode == "wrap":
        return f"OpenVINO has no padding of the mode {op.mode!r}"
    if isinstance(op, MaxIndices) and op.by_columns:
        return "OpenVINO counts indices row by row, got by_columns=1"
    return None


def _refusal(of_nodes: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    def refuse(op: Any) -> str | None:
        if not _is_installed():
            return "OpenVINO is not installed (`pip install openvino`)"
        return of_nodes(op) or _refuse_wrong(op)

    return refuse


def _of(kind: str) -> CpuOrt:
    ort = VARIANTS[f"{kind} {CpuOrt.name}"]
    assert isinstance(ort, CpuOrt)
    return replace(
        ort,
        name=CPU_OPENVINO,
        backend="openvino",
        describe=DESCRIBED.get(kind, ort.describe),
        refuse=_refusal(ort.refuse),
    )


register(*(_of(kind) for kind in KINDS))
