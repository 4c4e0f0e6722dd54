"""Convolution on the CPU: ncnn's direct, GEMM and Winograd algorithms, each chosen explicitly.

ncnn would pick the algorithm, the tile of Winograd and the packing of channels by itself. Here the
algorithm is a layer's parameter, and the tile and the packing are options of the net that holds the
layer. `packed`: channels lie in blocks as wide as the CPU's vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from codl.kernels.base import Processor
from codl.kernels.columns import ConvColumns, FeatureColumns, ceil_div, round_up, single
from codl.kernels.ncnn import (
    NO_GEMM,
    NO_WINOGRAD,
    SHAPE_HINT,
    NcnnLayer,
    Value,
    fused_activation,
    left_over,
    one_image,
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
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns
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

    def features(self, op: Conv2d, soc: Soc) -> dict[str, float]:
        return single(self.feature_columns(ConvColumns.of([op]), soc))

    def feature_columns(self, ops: ConvColumns, soc: Soc) -> FeatureColumns:
        raise NotImplementedError


def _bytes(ops: ConvColumns) -> FeatureColumns:
    return {
        "input_bytes": 4.0 * ops.ic * ops.padded_h * ops.padded_w,
        "weight_bytes": 4.0 * ops.oc * ops.ic * ops.window,
        "output_bytes": 4.0 * ops.images * ops.oc * ops.pixels,
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

    def feature_columns(self, ops: ConvColumns, soc: Soc) -> FeatureColumns:
        lanes = soc.cpu.simd_floats
        oc = round_up(ops.oc, lanes)
        return {
            "padded_macs": ops.pixels * oc * ops.group_ic * ops.window,
            "output_blocks": ops.pixels * oc / lanes,
            "rows": ops.oh * oc / lanes,
            "depthwise_macs": ops.is_depthwise * ops.pixels * oc * ops.window,
            **_bytes(ops),
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

    def feature_columns(self, ops: ConvColumns, soc: Soc) -> FeatureColumns:
        lanes = soc.cpu.simd_floats
        n, k = ops.pixels, ops.ic * ops.window
        m = round_up(ops.oc, lanes)
        return {
            "padded_macs": m * k * round_up(n, 8),
            "pack_elements": k * n,
            "output_blocks": n * m / lanes,
            "window_copies": np.where(ops.window > 1, k * n, 0.0),
            **_bytes(ops),
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

    def feature_columns(self, ops: ConvColumns, soc: Soc) -> FeatureColumns:
        oc = round_up(ops.oc, soc.cpu.simd_floats)
        values = _bytes(ops)
        for tile in (4, 6) if self.tile is None else (self.tile,):
            tiles = ceil_div(ops.oh, tile) * ceil_div(ops.ow, tile)
            points = (tile + 2) ** 2
            values |= {
                f"macs_f{tile}": points * tiles * ops.ic * oc,
                f"input_transforms_f{tile}": points * tiles * ops.ic,
                f"output_transforms_f{tile}": points * tiles * oc,
                f"weight_points_f{tile}": points * ops.ic * oc,
            }
        return values
