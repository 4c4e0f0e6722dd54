"""Convolution on the CPU: ncnn's direct kernels and its matrix products, and ONNX Runtime.

ncnn would pick the algorithm and the tile of Winograd by itself. Here the algorithm is a layer's
parameter; what may be picked from is said by options of the net that holds the layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest, round_up
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels.conv2d.cpu_direct_columns import direct_columns
from codl.kernels.feature_columns import beyond, by_level, halvings, packed_vectors
from codl.kernels.ncnn import (
    NO_GEMM,
    NO_WINOGRAD,
    SHAPE_HINT,
    NcnnLayer,
    NcnnValue,
    fused_activation,
    left_over,
)
from codl.kernels.ort import CpuOrt, OrtPlan, node
from codl.kernels.variant import ByColumns
from codl.records.soc import Soc

#: Up to this many channels on both sides ncnn keeps to its direct kernels, whatever is asked.
SMALL = 16
#: Output channels of one block of a matrix product.
MOST_ROWS = 64


class CpuConv(ByColumns):
    """Base of ncnn's algorithms: the layer that all of them are."""

    op_kind: ClassVar[str] = "conv2d"
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns
    name: ClassVar[str]
    switched_off: ClassVar[int] = 0
    #: Channels lie in blocks as wide as the CPU's vectors.
    options: ClassVar[Mapping[str, bool]] = {"use_packing_layout": True}

    def plan(self, op: Conv2d, soc: Soc) -> NcnnLayer:
        parameters: dict[int, NcnnValue] = {
            0: op.out_channels,
            1: op.kernel.w,
            11: op.kernel.h,
            2: op.dilation.w,
            12: op.dilation.h,
            3: op.stride.w,
            13: op.stride.h,
            4: op.pad.left,
            15: op.pad.right,
            14: op.pad.top,
            16: op.pad.bottom,
            5: 1,
            6: op.out_channels * (op.input.c // op.groups) * op.kernel.h * op.kernel.w,
            **fused_activation(op.activation),
            # Without it ncnn picks a tile of Winograd by the channels alone.
            SHAPE_HINT: (3, op.output.w, op.output.h, op.output.c),
        }
        kind, copies_input = "Convolution", False
        if self.switched_off:
            parameters[31] = self.switched_off
        if op.groups > 1:
            # ncnn cuts groups out of the input by its own channel step, unless it packs channels.
            kind, copies_input = "ConvolutionDepthWise", not op.is_depthwise or op.input.c % 4 > 0
            parameters[7] = op.groups
        after = left_over(op.activation)
        return NcnnLayer(kind, parameters, ("weight", "bias"), after, copies_input, self.options)


class CpuDirect(CpuConv):
    """Sliding window over packed channels; also what ncnn does for grouped convolutions."""

    name: ClassVar[str] = "cpu_direct"
    switched_off: ClassVar[int] = NO_GEMM | NO_WINOGRAD

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.kernel == (1, 1) and op.groups == 1:
            return "ncnn runs every 1x1 convolution as a matrix product"
        return None

    def feature_columns(self, ops: ConvColumns, soc: Soc) -> FeatureColumns:
        return direct_columns(ops, soc)


class CpuGemm(CpuConv):
    """Matrix product of M = output channels, K = window x input channels, N = output pixels."""

    name: ClassVar[str] = "cpu_gemm"
    switched_off: ClassVar[int] = NO_WINOGRAD

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.groups > 1:
            return f"groups must be 1, got {op.groups}"
        small = op.input.c <= SMALL and op.out_channels <= SMALL
        if small and op.kernel != (1, 1):
            return f"ncnn uses GEMM from more than {SMALL} input or output channels"
        return None

    def feature_columns(self, ops: ConvColumns, soc: Soc) -> FeatureColumns:
        lanes, cache = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes
        m, n, k = ops.oc, ops.pixels, ops.ic * ops.window
        blocks = _Blocks.of(m, n, k, soc)
        copies = n * ops.window * packed_vectors(ops.ic, lanes)
        return {
            "padded_macs": round_up(m, lanes) * k * n,
            "kernel_steps": blocks.steps(soc) * k,
            "input_vectors": copies,
            "window_vectors": copies * (ops.window > 1),
            "scalar_inputs": n * k * (rest(ops.ic, 4) > 0),
            "output_vectors": n * packed_vectors(m, lanes),
            "scalar_outputs": n * m * (rest(m, 4) > 0),
            "weights_streamed": beyond(4.0 * m * k, cache) * blocks.blocks_n,
            "packed_streamed": beyond(4.0 * n * k, cache) * blocks.blocks_m,
            "blocks": blocks.blocks_m * blocks.blocks_n,
            **by_level("weight", 4.0 * m * k, cache),
            **by_level("packed", 4.0 * n * k, cache),
            "input_bytes": 4.0 * ops.ic * ops.ih * ops.iw,
            "padded_bytes": 4.0 * ops.ic * ops.padded_h * ops.padded_w * ops.is_padded,
            "output_bytes": 4.0 * m * n,
        }


@dataclass(frozen=True)
class _Blocks:
    """How ncnn blocks a matrix product of M x K by K x N so that a panel of each fits the cache.

    Blocks of up to 64 of the M, of all K, and of as many of the N as there is room for; within one
    a micro-kernel takes a vector of the M and 8 of the N, fewer at the end.
    """

    m: Column
    n: Column
    blocks_m: Column
    blocks_n: Column
    block_n: Column

    @classmethod
    def of(cls, m: Column, n: Column, k: Column, soc: Soc) -> _Blocks:
        lanes, room = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes / 4
        block_m = round_up(ceil_div(m, ceil_div(m, MOST_ROWS)), lanes)
        block_n = np.maximum(4, np.floor((room - block_m * k) / k / 4) * 4)
        block_n = np.minimum(block_n, round_up(ceil_div(n, ceil_div(n, block_n)), 4))
        return cls(m, n, ceil_div(m, block_m), ceil_div(n, block_n), block_n)

    def steps(self, soc: Soc) -> Column:
        """Runs of the micro-kernel, each over all K."""
        whole = (self.blocks_n - 1) * halvings(self.block_n, 8)
        last = halvings(self.n - (self.blocks_n - 1) * self.block_n, 8)
        return halvings(self.m, soc.cpu.simd_floats) * (whole + last)


def _onnx_plan(op: Conv2d) -> OrtPlan:
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


#: Of batches, which ncnn refuses.
ORT = CpuOrt("conv2d", _onnx_plan)
