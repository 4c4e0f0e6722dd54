"""Convolution on the CPU: ncnn's direct, GEMM and Winograd algorithms, each chosen explicitly.

ncnn would pick the algorithm, the tile of Winograd and the packing of channels by itself. Here the
algorithm is a layer's parameter, and the tile and the packing are options of the net that holds the
layer. `packed`: channels lie in blocks as wide as the CPU's vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from codl.kernels.base import Processor
from codl.kernels.ncnn import (
    NO_GEMM,
    NO_WINOGRAD,
    SHAPE_HINT,
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

WEIGHTS = ("weight", "bias")


@dataclass(frozen=True)
class _CpuConv:
    """What the algorithms share: the layer, and the bytes that any of them moves."""

    op_kind: ClassVar[str] = "conv2d"
    processor: ClassVar[Processor] = "cpu"
    algorithm: ClassVar[str]
    switched_off: ClassVar[int] = 0

    packed: bool = True

    @property
    def name(self) -> str:
        return f"cpu_{self.algorithm}" + ("" if self.packed else "_unpacked")

    @property
    def usual(self) -> bool:
        return self.packed

    @property
    def options(self) -> Mapping[str, bool]:
        return {"use_packing_layout": self.packed}

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
            # Without it ncnn picks a tile of Winograd by the channels alone.
            SHAPE_HINT: (3, op.output.w, op.output.h, op.output.c),
        }
        kind, cut = "Convolution", False
        if self.switched_off:
            parameters[31] = self.switched_off
        if op.groups > 1:
            # ncnn cuts groups out of the input by its own channel step, unless it packs channels.
            packs = self.packed and op.is_depthwise and op.input.c % 4 == 0
            kind, cut = "ConvolutionDepthWise", not packs
            parameters[7] = op.groups
        after = left_over(op.activation)
        return NcnnLayer(kind, parameters, WEIGHTS, after, cut, self.options)

    def _cannot(self, op: Conv2d) -> str | None:
        """What no algorithm does."""
        if op.input.n != 1:
            return one_image(op)
        if not self.packed and op.dilation != (1, 1):
            # It crashes where the output is smaller than the dilation.
            return f"ncnn dilates only packed channels safely, got dilation={op.dilation}"
        return None

    def _bytes(self, op: Conv2d) -> dict[str, float]:
        padded = (op.input.h + op.pad.top + op.pad.bottom) * (
            op.input.w + op.pad.left + op.pad.right
        )
        return {
            "input_bytes": 4.0 * op.input.c * padded,
            "weight_bytes": 4.0 * op.out_channels * op.input.c * op.kernel.h * op.kernel.w,
            "output_bytes": float(op.output.bytes),
        }


@dataclass(frozen=True)
class CpuDirect(_CpuConv):
    """Sliding window over packed channels; also what ncnn does for grouped convolutions."""

    algorithm: ClassVar[str] = "direct"
    switched_off: ClassVar[int] = NO_GEMM | NO_WINOGRAD

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if (reason := self._cannot(op)) is not None:
            return reason
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


@dataclass(frozen=True)
class CpuGemm(_CpuConv):
    """Matrix product of M = output channels, K = window x input channels, N = output pixels."""

    algorithm: ClassVar[str] = "gemm"
    switched_off: ClassVar[int] = NO_WINOGRAD

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if (reason := self._cannot(op)) is not None:
            return reason
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


#: Outputs on a side of a tile; ncnn calls F(2x2, 3x3) "winograd23".
Tile = Literal[2, 4, 6]
TILES: tuple[Tile, ...] = (2, 4, 6)


@dataclass(frozen=True)
class CpuWinograd(_CpuConv):
    """F(2x2), F(4x4) or F(6x6) of 3x3 windows; without a `tile` ncnn picks by the shape."""

    algorithm: ClassVar[str] = "winograd"

    tile: Tile | None = None

    @property
    def name(self) -> str:
        tile = "" if self.tile is None else f"{self.tile}3"
        return f"cpu_winograd{tile}" + ("" if self.packed else "_unpacked")

    @property
    def usual(self) -> bool:
        return self.packed and self.tile is None

    @property
    def options(self) -> Mapping[str, bool]:
        allowed = TILES if self.tile is None else (self.tile,)
        tiles = {f"use_winograd{tile}3_convolution": tile in allowed for tile in TILES}
        return {**super().options, **tiles}

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if (reason := self._cannot(op)) is not None:
            return reason
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
        for tile in (4, 6) if self.tile is None else (self.tile,):
            tiles = -(-op.output.h // tile) * -(-op.output.w // tile)
            points = (tile + 2) ** 2
            values |= {
                f"macs_f{tile}": float(points * tiles * op.input.c * oc),
                f"input_transforms_f{tile}": float(points * tiles * op.input.c),
                f"output_transforms_f{tile}": float(points * tiles * oc),
                f"weight_points_f{tile}": float(points * op.input.c * oc),
            }
        return values
