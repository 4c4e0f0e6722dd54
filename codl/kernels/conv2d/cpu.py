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

from codl.ir.columns import (
    Column,
    FeatureColumns,
    ceil_div,
    rest,
    round_up,
)
from codl.ir.ops.convolution import (
    Conv2d,
    ConvColumns,
)
from codl.kernels.conv2d import window_sums
from codl.kernels.conv2d.cpu_direct_columns import direct_columns
from codl.kernels.conv2d.cpu_tiles import usual_tile
from codl.kernels.feature_columns import (
    beyond,
    by_level,
    halvings,
    packed_vectors,
)
from codl.kernels.ncnn import (
    NO_GEMM,
    NO_WINOGRAD,
    SHAPE_HINT,
    NcnnLayer,
    NcnnValue,
    fused_activation,
    left_over,
)
from codl.kernels.variant import ByColumns
from codl.records.soc import Soc

#: Up to this many channels on both sides ncnn keeps to its direct kernels, whatever is asked.
SMALL = 16

WEIGHTS = ("weight", "bias")

#: Output channels of one block of a matrix product.
MOST_ROWS = 64


@dataclass(frozen=True)
class _CpuConv(ByColumns):
    """What the algorithms share: the layer, and the bytes that any of them moves."""

    op_kind: ClassVar[str] = "conv2d"
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns
    algorithm: ClassVar[str]
    switched_off: ClassVar[int] = 0

    packed: bool = True

    @property
    def name(self) -> str:
        return f"cpu_{self.algorithm}" + ("" if self.packed else "_unpacked")

    @property
    def is_plannable(self) -> bool:
        return self.packed

    @property
    def options(self) -> Mapping[str, bool]:
        return {"use_packing_layout": self.packed}

    def plan(self, op: Conv2d, soc: Soc) -> NcnnLayer:
        weight_size = op.out_channels * (op.input.c // op.groups) * op.kernel.h * op.kernel.w
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
        if not self.packed and op.dilation != (1, 1):
            # It crashes where the output is smaller than the dilation.
            return f"ncnn dilates only packed channels safely, got dilation={op.dilation}"
        return None


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
    block_m: Column
    block_n: Column

    @classmethod
    def of(cls, m: Column, n: Column, k: Column, soc: Soc) -> _Blocks:
        lanes, room = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes / 4
        block_m = round_up(ceil_div(m, ceil_div(m, MOST_ROWS)), lanes)
        block_n = np.maximum(4, np.floor((room - block_m * k) / k / 4) * 4)
        block_n = np.minimum(block_n, round_up(ceil_div(n, ceil_div(n, block_n)), 4))
        return cls(m, n, ceil_div(m, block_m), ceil_div(n, block_n), block_m, block_n)

    def steps(self, soc: Soc) -> Column:
        """Runs of the micro-kernel, each over all K."""
        whole = (self.blocks_n - 1) * halvings(self.block_n, 8)
        rest = halvings(self.n - (self.blocks_n - 1) * self.block_n, 8)
        return halvings(self.m, soc.cpu.simd_floats) * (whole + rest)


@dataclass(frozen=True)
class _PointBlocks:
    """How ncnn blocks the products of Winograd: M x K, K x N and M x N share the cache.

    A third of it limits M, what is left beside M limits K, and both limit N. A micro-kernel takes a
    vector of the M and 12 of the N, fewer at the end: `steps_n` of them, which take as long as
    `waited_n` of the N, as fewer than 4 sums wait for themselves.
    """

    blocks_m: Column
    steps_n: Column
    waited_n: Column

    @classmethod
    def of(cls, m: Column, n: Column, k: Column, soc: Soc) -> _PointBlocks:
        lanes, floats = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes / 4
        most = max(lanes, np.floor(np.sqrt(floats / 3) / lanes) * lanes)
        block_m = _even(m, np.full_like(m, most), lanes)
        left = np.floor(np.sqrt(floats) - block_m)
        block_k = _even(k, np.maximum(lanes, np.floor(left / lanes) * lanes), lanes)
        room = np.floor((floats - block_m * block_k) / (block_m + block_k))
        block_n = _even(n, np.maximum(4, np.floor(room / 4) * 4), 4)
        whole = ceil_div(n, block_n) - 1
        last = n - whole * block_n
        steps = whole * _twelves(block_n) + _twelves(last)
        waited = whole * _waited(block_n) + _waited(last)
        return cls(ceil_div(m, block_m), steps, waited)


def _even(size: Column, most: Column, unit: int) -> Column:
    """The size of blocks of about the same size, multiples of `unit` up to `most`."""
    result: Column = np.minimum(most, round_up(ceil_div(size, ceil_div(size, most)), unit))
    return result


def _twelves(size: Column) -> Column:
    """Steps of 12, and of 8, 4, 2 and 1 for the rest."""
    result: Column = np.floor(size / 12) + halvings(rest(size, 12), 8)
    return result


def _waited(size: Column) -> Column:
    """The same where a step of 2 or of 1 takes as long as one of 4."""
    few = rest(rest(size, 12), 4)
    result: Column = size - few + 4 * halvings(few, 2)
    return result


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
        return direct_columns(ops, soc)


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


#: Outputs on a side of a tile; ncnn calls F(2x2, 3x3) "winograd23".
WinogradTile = Literal[2, 4, 6]
TILES: tuple[WinogradTile, ...] = (2, 4, 6)


#: What a point of a tile costs either transform, beside one of F(4x4); by the order of `TILES`.
EFFORTS = (0.5, 1.0, 1.4)


@dataclass(frozen=True)
class CpuWinograd(_CpuConv):
    """F(2x2), F(4x4) or F(6x6) of 3x3 windows; without a `tile` ncnn picks by the shape.

    Larger windows are sums of such (`window_sums`).
    """

    algorithm: ClassVar[str] = "winograd"

    tile: WinogradTile | None = None

    @property
    def name(self) -> str:
        tile = "" if self.tile is None else f"{self.tile}3"
        return f"cpu_winograd{tile}" + ("" if self.packed else "_unpacked")

    @property
    def is_plannable(self) -> bool:
        return self.packed and self.tile is None

    @property
    def options(self) -> Mapping[str, bool]:
        allowed = TILES if self.tile is None else (self.tile,)
        tiles = {f"use_winograd{tile}3_convolution": tile in allowed for tile in TILES}
        return {**super().options, **tiles}

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if (reason := self._cannot(op)) is not None:
            return reason
        apart = op.stride != (1, 1) or op.dilation != (1, 1) or op.groups != 1
        if apart or not (op.kernel == (3, 3) or window_sums.is_sum(op)):
            return (
                "Winograd needs a kernel of 3x3, or above it both ways, and stride=1 dilation=1 "
                f"groups=1, got kernel={op.kernel} stride={op.stride} dilation={op.dilation} "
                f"groups={op.groups}"
            )
        if window_sums.inner(op).input.c <= SMALL and op.out_channels <= SMALL:
            return f"ncnn uses Winograd from more than {SMALL} input or output channels"
        return None

    def plan(self, op: Conv2d, soc: Soc) -> NcnnLayer:
        layer = super().plan(window_sums.inner(op), soc)
        return window_sums.summed(layer, op) if window_sums.is_sum(op) else layer

    def feature_columns(self, ops: ConvColumns, soc: Soc) -> FeatureColumns:
        """Transforms into points, a matrix product at each point, and transforms out of sums.

        Points of all tiles are made first, and read again for every block of output channels.
        """
        lanes, cache = soc.cpu.simd_floats, soc.cpu.l2_cache_bytes
        copies, ops = window_sums.copies(ops, soc), window_sums.inner_columns(ops)
        tile = usual_tile(ops) if self.tile is None else np.full_like(ops.ic, self.tile)
        points = (tile + 2) ** 2
        tiles = ceil_div(ops.oh, tile) * ceil_div(ops.ow, tile)
        blocks = _PointBlocks.of(ops.oc, tiles, ops.ic, soc)
        effort = np.select([tile == 2, tile == 4], EFFORTS[:2], EFFORTS[2]) * points * tiles
        products = points * halvings(ops.oc, lanes) * ops.ic
        point_bytes, weight_bytes = (4.0 * points * ops.ic * size for size in (tiles, ops.oc))
        output_bytes = 4.0 * ops.oc * ops.pixels
        padded_bytes = 4.0 * ops.ic * ops.padded_h * ops.padded_w
        moved = 2 * (padded_bytes + point_bytes) + weight_bytes + output_bytes
        return {
            "padded_macs": products * lanes * tiles,
            "waiting_macs": products * lanes * blocks.waited_n,
            "kernel_steps": products * blocks.steps_n,
            "input_transforms": effort * packed_vectors(ops.ic, lanes),
            "output_transforms": effort * packed_vectors(ops.oc, lanes),
            "points_again": beyond(point_bytes, cache) * (blocks.blocks_m - 1),
            "output_bytes": output_bytes,
            "output_far": by_level("output", output_bytes, cache)["output_far"],
            **by_level("weight", weight_bytes, cache),
            **by_level("moved", moved, cache),
            **copies,
        }
