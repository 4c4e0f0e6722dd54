"""Convolution on the GPU of depthwise windows, and to few channels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.records.soc import Soc
from codl.kernels import tiling
from codl.kernels.base import WEIGHTED, Choice, KernelPlan
from codl.kernels.conv2d.gpu import GpuConv, byte_columns, moved_columns
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.kernel import (
    CPU_DEVICE,
    REAL_GPU,
    RowTiles,
    launch,
    span,
    window_args,
    window_macros,
)
from codl.kernels.tiling import group_items, round_up, waves

#: The most unrolled input columns x taps; longer windows have narrower tiles.
MOST_UNROLLED = 240
#: The most tiles of a work-item on a CPU: about 5 us.
LONGEST_STRIP = 64
#: Pixels of a tile to try, besides the ones that waste least.
CPU_TILES, GPU_TILES = (4, 6, 8, 10, 12, 14), (2, 1, 8)
#: Work-items per compute unit before a work-item computes several pixels.
ITEMS_PER_UNIT = 1024
#: The most products of a channel summed in float16, with a relative error of 1.1e-3.
MOST_HALF_TAPS = 49
#: The most taps of a fully unrolled window.
MOST_TAPS = 49


def refuse_mixing(op: Conv2d) -> str | None:
    if op.input.c == op.out_channels == op.groups:
        return None
    return (
        "groups, input and output channels must be equal, "
        f"got {op.groups}, {op.input.c} and {op.out_channels}"
    )


def pack_windows(weight: Array, width: int) -> Array:
    """(channels, 1, kh, kw) -> (block of `width` channels; kh, kw; channel)."""
    channels, window = weight.shape[0], weight.shape[2] * weight.shape[3]
    padded = np.zeros((round_up(channels, width), window), np.float32)
    padded[:channels] = weight.reshape(channels, window)
    return np.ascontiguousarray(padded.reshape(-1, width, window).swapaxes(1, 2))


def row_tile(width: Column, soc: Soc) -> Column:
    """Pixels of a row's tile with the least waste, the largest of equals; 4 on a GPU."""
    if not soc.gpu.is_cpu:
        return np.full_like(width, 4)
    low, high = (7, 16) if tiling.assumed_registers(soc.gpu) >= 32 else (4, 10)
    sizes = np.arange(high, low - 1, -1, dtype=np.float64)
    least = sizes[np.argmin(round_up(width, sizes[:, None]), axis=0)]
    return np.where(width < low, float(low), least)


def refuse_taps(op: Conv2d) -> str | None:
    """The reason why a window's products cannot be summed in float16; None if they can."""
    if op.kernel.h * op.kernel.w > MOST_HALF_TAPS:
        return f"in half a window must have at most {MOST_HALF_TAPS} taps, got {op.kernel}"
    return None


class GpuDepthwise(GpuConv):
    """Depthwise windows for a block of channels, with input columns kept in registers."""

    base_name = "gpu_depthwise"
    source = "conv2d/gpu_depthwise.cl"
    multiplies_halves = True
    batches = True

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_mixing(op)

    def refuse_halves(self, op: Conv2d) -> str | None:
        return refuse_taps(op)

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Choices of pixels of a tile, by their distance from the least waste, larger ones first.

        A tile has 1 pixel where none fits.
        """
        likely, sizes = row_tile(ops.ow, soc), CPU_TILES if soc.gpu.is_cpu else GPU_TILES
        pixels = np.vstack([likely, *(np.full_like(likely, size) for size in (*sizes, 1))])
        cost = 100 * np.abs(pixels - likely) - pixels
        cost = cost + 1000 * self.smaller(ops, soc, {"pixels": pixels})
        cost = np.where(span(ops, pixels) * ops.kw <= MOST_UNROLLED, cost, np.inf)
        cost[-1] = np.where(np.isfinite(cost[:-1]).any(axis=0), np.inf, 0)
        return {"pixels": pixels}, cost

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> RowTiles:
        blocks = ceil_div(ops.oc, self.width(soc))
        return RowTiles.of(ops, soc, choice["pixels"], blocks, LONGEST_STRIP)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = self.cut(ops, soc, choice)
        past = (t.in_row * t.pixels - 1) * ops.sw + ops.extent_w > ops.iw + ops.left
        at_border = np.minimum(t.in_row, (ops.left > 0) + 1.0 * past)
        # Taps in rows outside of the input are skipped.
        rows = ops.tap_rows * t.in_row * t.blocks
        loads = ops.tap_rows * t.blocks * span(ops, t.pixels)
        return {
            "padded_macs": rows * t.pixels * ops.kw * self.width(soc),
            "tap_rows": rows,
            "column_loads": loads * t.in_row,
            "border_loads": loads * at_border,
            "stores": ops.pixels * t.blocks,
            "tile_pixels": t.pixels,
            "tiles": t.tiles * t.blocks,
            **t.grid.features,
            **moved_columns(self, ops, soc),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = self.cut(*self.alone(op, soc, choice)), self.width(soc)
        sizes = {"strip": t.grid.strip, "tiles": t.tiles, **window_args(op)}
        return self.convolved(
            op,
            soc,
            launch("conv2d_depthwise", t.grid.sizes, *WEIGHTED, **sizes),
            macros=window_macros(op, choice["pixels"]),
            pack=lambda weight: pack_windows(weight, width).reshape(-1),
        )


class GpuDepthwisePixels(GpuConv):
    """Depthwise windows on a GPU, fully unrolled if small enough."""

    base_name = "gpu_depthwise_pixels"
    source = "conv2d/gpu_depthwise_pixels.cl"
    multiplies_halves = True
    meant_for = REAL_GPU
    batches = True

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        if (reason := refuse_mixing(op)) is not None:
            return reason
        if op.groups == 1:
            return "groups must be more than 1, got 1"
        if op.kernel.h * op.kernel.w > MOST_TAPS:
            return f"the window must have at most {MOST_TAPS} taps, got {op.kernel}"
        return None

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        items = ops.pixels * ceil_div(ops.ic, self.width(soc))
        few = items < ITEMS_PER_UNIT * soc.gpu.compute_units
        order = np.where(few, [[0.0], [1.0], [2.0]], [[2.0], [0.0], [1.0]])
        return {"pixels": np.array([[1.0], [2.0], [4.0]])}, order

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> RowTiles:
        return RowTiles.of(ops, soc, choice["pixels"], ceil_div(ops.ic, self.width(soc)), 1)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = self.cut(ops, soc, choice)
        return {
            "padded_macs": t.grid.items * t.pixels * ops.window * self.width(soc),
            "work_items": t.grid.items,
            "waves": waves(t.grid.items, soc),  # in one row
            "flops": ops.flops,
            **byte_columns(self, ops, soc),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = self.cut(*self.alone(op, soc, choice)), self.width(soc)
        sizes = {"blocks": t.blocks, "tiles": t.tiles, "row_tiles": t.in_row, **window_args(op)}
        count, items = int(t.grid.items[0]), group_items(soc)
        grid = (round_up(count, items),), (items,), (count,)
        return self.convolved(
            op,
            soc,
            launch("conv2d_depthwise_pixels", grid, *WEIGHTED, **sizes),
            macros={"KERNEL_H": op.kernel.h, **window_macros(op, choice["pixels"])},
            pack=lambda weight: pack_windows(weight, width).reshape(-1),
        )


#: The most pixels of a tile of `GpuNarrow`.
WIDEST = 8


class GpuNarrow(GpuConv):
    """Any window, stride, padding and dilation with at most half a block of output channels."""

    base_name = "gpu_narrow"
    source = "conv2d/gpu_narrow.cl"
    meant_for = CPU_DEVICE

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        if op.groups != 1:
            return f"groups must be 1, got {op.groups}"
        most = soc.gpu.vector_width // 2
        if op.out_channels > most:
            return f"output channels must be at most {most}, got {op.out_channels}"
        return None

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Choices of pixels of a row: as many as registers have sums for, down to half."""
        widest = np.minimum(WIDEST, np.floor(tiling.most_sums(soc.gpu) / ops.oc))
        pixels = np.arange(WIDEST, 0, -1, dtype=np.float64)[:, None]
        fits = (pixels <= widest) & (pixels > np.floor(widest / 2))
        return {"pixels": pixels}, np.where(fits, -pixels, np.inf)

    def cut(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> RowTiles:
        return RowTiles.of(ops, soc, choice["pixels"], np.ones_like(ops.oc), LONGEST_STRIP)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t, width = self.cut(ops, soc, choice), soc.gpu.vector_width
        pixels, steps = t.tiles * t.pixels, ops.window * ceil_div(ops.ic, width)
        return {
            "padded_macs": pixels * steps * width * ops.oc,
            "pixel_steps": pixels * steps,
            "tile_steps": t.tiles * steps,
            "lane_sums": pixels * ops.oc,
            **t.grid.features,
            "flops": ops.flops,
            **byte_columns(self, ops, soc),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = self.cut(*self.alone(op, soc, choice)), soc.gpu.vector_width
        in_blocks = soc.gpu.blocks(op.input.c)
        sizes = {"strip": t.grid.strip, "tiles": t.tiles, "in_blocks": in_blocks}
        return self.convolved(
            op,
            soc,
            launch("conv2d_narrow", t.grid.sizes, *WEIGHTED, **sizes, **window_args(op)),
            macros={"PIXELS": choice["pixels"], "OUTS": op.out_channels, "STRIDE_W": op.stride.w},
            pack=lambda weight: _pack(weight, width),
        )


def _pack(weight: Array, width: int) -> Array:
    """(oc, ic, kh, kw) -> [ic block][kh][kw][oc][lane of ic], flat."""
    outs, channels, height, columns = weight.shape
    packed = np.zeros((round_up(channels, width), outs, height, columns), np.float32)
    packed[:channels] = weight.swapaxes(0, 1)
    packed = packed.reshape(-1, width, outs, height, columns).transpose(0, 3, 4, 2, 1)
    return np.ascontiguousarray(packed).reshape(-1)
