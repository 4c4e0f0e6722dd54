"""Convolution in ONNX Runtime: of batches, which ncnn refuses."""

from __future__ import annotations

from codl.ir.ops.convolution import Conv2d
from codl.kernels.ort import CpuOrt, OrtPlan, node


def _plan(op: Conv2d) -> OrtPlan:
    conv = node(
        "Conv",
        ("x0", "weight", "bias"),
        kernel_shape=list(op.kernel),
        strides=list(op.stride),
        dilations=list(op.dilation),
        pads=[op.pad.top, op.pad.left, op.pad.bottom, op.pad.right],
        group=op.groups,
    )
    return OrtPlan((conv,), op.inputs, op.output)


VARIANT = CpuOrt("conv2d", _plan)
