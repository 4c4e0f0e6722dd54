"""Fully connected layers in ONNX Runtime: of batches, which ncnn refuses."""

from __future__ import annotations

from codl.ir.ops.fully_connected import FullyConnected
from codl.kernels.ort import CpuOrt, OrtPlan, node


def _plan(op: FullyConnected) -> OrtPlan:
    gemm = node("Gemm", ("x0", "weight", "bias"), transB=1)
    flat = (op.input.n, op.in_features)
    return OrtPlan((gemm,), (flat,), (op.input.n, op.out_channels))


VARIANT = CpuOrt("fc", _plan)
