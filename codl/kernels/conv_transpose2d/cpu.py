"""Transposed convolution on the CPU: ncnn's deconvolution."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.convolution import ConvTranspose2d
from codl.kernels.ncnn import NcnnLayer, NcnnValue, fused_activation, left_over, round_up
from codl.kernels.variant import OnCpu
from codl.records.soc import Soc


class CpuDirect(OnCpu):
    """What the whole result is cut to must begin inside it."""

    name: ClassVar[str] = "cpu_direct"
    op_kind: ClassVar[str] = "conv_transpose2d"

    def refusal(self, op: ConvTranspose2d, soc: Soc) -> str | None:
        if min(op.crop) < 0:
            return f"crop must not be negative, got {op.crop}"
        return None

    def plan(self, op: ConvTranspose2d, soc: Soc) -> NcnnLayer:
        below, beside = _cut_after(op)
        parameters: dict[int, NcnnValue] = {
            0: op.out_channels,
            1: op.kernel.w,
            11: op.kernel.h,
            2: op.dilation.w,
            12: op.dilation.h,
            3: op.stride.w,
            13: op.stride.h,
            4: op.crop.w,
            15: max(beside, 0),
            14: op.crop.h,
            16: max(below, 0),
            18: max(-beside, 0),
            19: max(-below, 0),
            5: 1,
            6: op.out_channels * (op.input.c // op.groups) * op.kernel.h * op.kernel.w,
            **fused_activation(op.activation),
        }
        kind = "Deconvolution"
        if op.groups > 1:
            parameters[7], kind = op.groups, "DeconvolutionDepthWise"
        weights, after = ("weight", "bias"), left_over(op.activation)
        # ncnn cuts groups out of the input by its own channel step.
        cut = op.groups > 1 and not op.is_depthwise
        return NcnnLayer(kind, parameters, weights, after=after, copies_input=cut)

    def features(self, op: ConvTranspose2d, soc: Soc) -> dict[str, float]:
        lanes = soc.cpu.simd_floats
        oc, per_group = round_up(op.out_channels, lanes), op.input.c // op.groups
        taps = op.kernel.h * op.kernel.w
        return {
            "padded_macs": float(op.input.h * op.input.w * oc * per_group * taps),
            "output_blocks": float(op.size.h * op.size.w * oc // lanes),
            "depthwise": float(op.is_depthwise),
            "input_bytes": float(op.input.bytes),
            "weight_bytes": 4.0 * op.out_channels * per_group * taps,
            "output_bytes": float(op.output.bytes),
        }


def _cut_after(op: ConvTranspose2d) -> tuple[int, int]:
    """Rows and columns of the whole result behind the output; negative where it is too short."""
    whole = [(n - 1) * s + extent for n, s, extent
             in zip((op.input.h, op.input.w), op.stride, op.extent, strict=True)]  # fmt: skip
    below, beside = (w - crop - n for w, crop, n in zip(whole, op.crop, op.size, strict=True))
    return below, beside
