"""The ops that OpenVINO runs on the CPU, where it is installed, by the nodes of ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

# What stands in them must be registered before.
from codl.kernels import ort_ops, ort_products  # noqa: F401
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
    "row_range",
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


def _refusal(of_nodes: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    def refuse(op: Any) -> str | None:
        if not _is_installed():
            return "OpenVINO is not installed (`pip install openvino`)"
        return of_nodes(op)

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
