"""Pooling in ONNX Runtime, and the indices of maxima."""

from __future__ import annotations

from typing import Any

from codl.ir.onnx_node import Node
from codl.ir.ops.pooling import MaxIndices, Pool2d
from codl.kernels.ort import TYPES, CpuOrt, OrtPlan, node


def _window(op: Any) -> dict[str, Any]:
    return {
        "kernel_shape": list(op.kernel),
        "strides": list(op.stride),
        "dilations": list(op.dilation),
        "pads": [op.pad.top, op.pad.left, op.pad.bottom, op.pad.right],
    }


def _refusal(op: Any) -> str | None:
    pads = zip((op.pad.top, op.pad.left, op.pad.bottom, op.pad.right), op.kernel * 2, strict=True)
    if any(pad >= size for pad, size in pads):
        return f"ONNX Runtime pads by less than the window {op.kernel}, got pad={op.pad}"
    return None


def _plan(op: Pool2d) -> OrtPlan:
    more: dict[str, Any] = {"count_include_pad": int(op.count_pad)} if op.mode == "avg" else {}
    kind = "MaxPool" if op.mode == "max" else "AveragePool"
    if op.kernel == (op.input.h, op.input.w) and not any(op.pad):
        return OrtPlan((node(f"Global{kind}"),), op.inputs, op.output)
    return OrtPlan((node(kind, **_window(op), **more),), op.inputs, op.output)


def _indices(op: MaxIndices) -> OrtPlan:
    pool = Node(
        "pool",
        "MaxPool",
        ("x0",),
        ("maxima", "indices"),
        {**_window(op), "storage_order": int(op.by_columns)},
    )
    nodes = (pool, node("Cast", ("indices",), to=TYPES["float32"]))
    return OrtPlan(nodes, op.inputs, op.out_sizes)


VARIANTS = (CpuOrt("pooling", _plan, _refusal), CpuOrt("max_indices", _indices, _refusal))
