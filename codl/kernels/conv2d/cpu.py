"""Convolution on the CPU: ncnn's direct, GEMM and Winograd algorithms, each chosen explicitly."""

from __future__ import annotations

from typing import ClassVar

from codl.kernels.base import Processor
from codl.kernels.ncnn import (
    NO_GEMM,
    NO_WINOGRAD,
    NcnnLayer,
    Value,
    fused_activation,
    left_over,
    one_image,
    round_up,
)
from codl.ops.conv2d import Conv2d
from codl.soc import Soc

#: Up to this many channels on both sides ncnn keeps to its direct kernels, whatever is asked.
SMALL = 16


class _CpuConv:
    """What the algorithms share: the layer, and the bytes that any of them moves."""

    op_kind: ClassVar[str] = "conv2d"
    processor: ClassVar[Processor] = "cpu"
    switched_off: ClassVar[int] = 0

    def plan(self, op: Conv2d, soc: Soc) -> NcnnLayer:
        weight_size = op.out_channels * (op.input.c // op.groups) * op.kernel.h * op.kernel.w
        parameters: dict[int, Value] = {
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
            6: weight_size,
            **fused_activation(op.activation),
        }
        after = left_over(op.activation)
        if self.switched_off:
            parameters[31] = self.switched_off
        if op.groups > 1:
            # ncnn cuts groups out of the input by its own channel step.
            cut = not op.is_depthwise
            parameters[7] = op.groups
            return NcnnLayer(
                "ConvolutionDepthWise", parameters, WEIGHTS, after=after, copies_input=cut
            )
        return NcnnLayer("Convolution", parameters, WEIGHTS, after=after)

    def _bytes(self, op: Conv2d) -> dict[str, float]:
        padded = (op.input.h + op.pad.top + op.pad.bottom) * (
            op.input.w + op.pad.left + op.pad.right
        )
        return {
            "input_bytes": 4.0 * op.input.c * padded,
            "weight_bytes": 4.0 * op.out_channels * op.input.c * op.kernel.h * op.kernel.w,
            "output_bytes": float(op.output.bytes),
        }


WEIGHTS = ("weight", "bias")


class CpuDirect(_CpuConv):
    """Sliding window over packed channels; also what ncnn does for grouped convolutions."""

    name: ClassVar[str] = "cpu_direct"
    switched_off: ClassVar[int] = NO_GEMM | NO_WINOGRAD

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.input.n != 1:
            return one_image(op)
        if op.kernel == (1, 1) and op.groups == 1:
            return "ncnn runs every 1x1 convolution as a matrix product"
        return None

    def features(self, op: Conv2d, soc: Soc) -> dict[str, float]:
        lanes = soc.cpu.simd_floats
        out = op.output.h * op.output.w
        ic, oc = op.input.c // op.groups, round_up(op.out_channels, lanes)
        window = op.kernel.h * op.kernel.w
        return {
            "padded_macs": float(out * oc * ic * window),
            "output_blocks": float(out * oc // lanes),
            "rows": float(op.output.h * oc // lanes),
            "depthwise_macs": float(out * oc * window) if op.is_depthwise else 0.0,
            **self._bytes(op),
        }


class CpuGemm(_CpuConv):
    """Matrix product of M = output channels, K = window x input channels, N = output pixels."""

    name: ClassVar[str] = "cpu_gemm"
    switched_off: ClassVar[int] = NO_WINOGRAD

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.input.n != 1:
            return one_image(op)
        if op.groups > 1:
            return f"groups must be 1, got {op.groups}"
        small = op.input.c <= SMALL and op.out_channels <= SMALL
        if small and op.kernel != (1, 1):
            return f"ncnn uses GEMM from more than {SMALL} input or output channels"
        return None

    def features(self, op: Conv2d, soc: Soc) -> dict[str, float]:
        lanes = soc.cpu.simd_floats
        n, k = op.output.h * op.output.w, op.input.c * op.kernel.h * op.kernel.w
        m = round_up(op.out_channels, lanes)
        return {
            "padded_macs": float(m * k * round_up(n, 8)),
            "pack_elements": float(k * n),
            "output_blocks": float(n * m // lanes),
            "window_copies": float(k * n) if op.kernel != (1, 1) else 0.0,
            **self._bytes(op),
        }


class CpuWinograd(_CpuConv):
    """F(2x2), F(4x4) or F(6x6) of 3x3 windows; ncnn picks the tile."""

    name: ClassVar[str] = "cpu_winograd"

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.input.n != 1:
            return one_image(op)
        if op.kernel != (3, 3) or op.stride != (1, 1) or op.dilation != (1, 1) or op.groups != 1:
            return (
                "Winograd needs kernel=3x3 stride=1 dilation=1 groups=1, got "
                f"kernel={op.kernel} stride={op.stride} dilation={op.dilation} groups={op.groups}"
            )
        if op.input.c <= SMALL and op.out_channels <= SMALL:
            return f"ncnn uses Winograd from more than {SMALL} input or output channels"
        return None

    def features(self, op: Conv2d, soc: Soc) -> dict[str, float]:
        oc = round_up(op.out_channels, soc.cpu.simd_floats)
        values = self._bytes(op)
        for tile in (4, 6):
            tiles = -(-op.output.h // tile) * -(-op.output.w // tile)
            points = (tile + 2) ** 2
            values |= {
                f"macs_f{tile}": float(points * tiles * op.input.c * oc),
                f"input_transforms_f{tile}": float(points * tiles * op.input.c),
                f"output_transforms_f{tile}": float(points * tiles * oc),
                f"weight_points_f{tile}": float(points * op.input.c * oc),
            }
        return values
