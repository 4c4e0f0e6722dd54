"""Transposed convolution in ONNX Runtime: all of it, of which the output is then cut out."""

from __future__ import annotations

import numpy as np

from codl.ir.ops.base import Weights
from codl.ir.ops.convolution import ConvTranspose2d
from codl.kernels.ort import CpuOrt, NamedArrays, OrtPlan, ints, node


def _plan(op: ConvTranspose2d) -> OrtPlan:
    """The bias comes last: rows and columns that are added around the result have it too."""
    axes = list(zip((op.input.h, op.input.w), op.stride, op.extent, op.crop, op.size, strict=True))
    behind = [(n - 1) * stride + extent - crop - size for n, stride, extent, crop, size in axes]
    conv = node(
        "ConvTranspose",
        ("x0", "weight"),
        "whole",
        kernel_shape=list(op.kernel),
        strides=list(op.stride),
        dilations=list(op.dilation),
        group=op.groups,
    )
    pads = ints(0, 0, *(-crop for crop in op.crop), 0, 0, *(-rest for rest in behind))
    nodes = (conv, node("Pad", ("whole", "pads"), "cut"), node("Add", ("cut", "bias")))

    def pack(weights: Weights) -> NamedArrays:
        """ONNX's weights have the input channels first, and its bias is stretched here."""
        per_group = op.out_channels // op.groups
        grouped = weights["weight"].reshape(op.groups, per_group, -1, *op.kernel).swapaxes(1, 2)
        weight = np.ascontiguousarray(grouped).reshape(-1, per_group, *op.kernel)
        return {"weight": weight, "bias": weights["bias"].reshape(-1, 1, 1)}

    return OrtPlan(nodes, op.inputs, op.output, {"pads": pads}, pack)


VARIANT = CpuOrt("conv_transpose2d", _plan)
