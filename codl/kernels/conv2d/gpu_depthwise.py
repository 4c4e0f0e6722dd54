"""Depthwise convolution on the GPU: one block of channels at a time, columns kept in registers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import (
    Column,
    FeatureColumns,
)
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import (
    Conv2d,
    ConvColumns,
)
from codl.kernels import feature_columns as caches
from codl.kernels import tiling_columns
from codl.kernels.base import ENDS, WEIGHTED, Choice, KernelLaunch, KernelPlan
from codl.kernels.conv2d.gpu_direct import byte_columns, pack_bias
from codl.kernels.feature_columns import (
    ChoiceColumns,
)
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip
from codl.kernels.tiling_columns import row_tile
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

#: Input columns x taps that are unrolled at most; a longer window gets a narrower tile.
MOST_UNROLLED = 240
#: Tiles that one work-item of a CPU takes at most: about 5 us.
LONGEST_STRIP = 64


#: Pixels of a tile worth trying, beside those that waste least.
CPU_TILES, GPU_TILES = (4, 6, 8, 10, 12, 14), (2, 8)


class GpuDepthwise(ForStorage, ByChoiceColumns):
    """A window for every channel alone; any window, stride, padding and dilation."""

    op_kind: ClassVar[str] = "conv2d"
    base_name: ClassVar[str] = "gpu_depthwise"
    takes_batch: ClassVar[bool] = True
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        return refuse_mixing(op)

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a tile, and the most tiles of a work-item."""
        default = int(row_tile(np.array([op.output.w], np.float64), soc)[0])
        sizes = sorted({default, *(CPU_TILES if soc.gpu.is_cpu else GPU_TILES)})
        most = MOST_UNROLLED // op.kernel.w
        fitting = [p for p in sizes if (p - 1) * op.stride.w + op.extent.w <= most] or [1]
        fitting.sort(key=lambda p: (abs(p - default), -p))
        strips = (LONGEST_STRIP, LONGEST_STRIP // 4) if soc.gpu.is_cpu else (1,)
        return tuple({"pixels": p, "strip": s} for p in fitting for s in strips)

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        default = row_tile(ops.ow, soc)
        sizes = sorted(CPU_TILES if soc.gpu.is_cpu else GPU_TILES)
        pixels = np.where(_span(ops, default) * ops.kw <= MOST_UNROLLED, default, 1)
        # What does not fit is replaced by what comes closest, the larger of equals.
        for size in sizes:
            fits = (_span(ops, size) * ops.kw <= MOST_UNROLLED) & (pixels != default)
            closer = np.abs(size - default) <= np.abs(pixels - default)
            pixels = np.where(fits & closer, size, pixels)
        return {"pixels": pixels, "strip": LONGEST_STRIP if soc.gpu.is_cpu else 1}

    def feature_columns(
        self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        choice = choice or self.default_columns(ops, soc)
        pixels, blocks = choice["pixels"], columns.ceil_div(ops.oc, soc.gpu.vector_width)
        tiles = ops.oh * columns.ceil_div(ops.ow, pixels)
        length = tiling_columns.strip(tiles, blocks, choice["strip"], soc)
        items = columns.ceil_div(tiles, length) * blocks
        in_row = columns.ceil_div(ops.ow, pixels)
        past = (in_row * pixels - 1) * ops.sw + ops.extent_w > ops.iw + ops.left
        at_border = np.minimum(in_row, (ops.left > 0) + 1.0 * past)
        # Rows of taps beside the input are left out.
        loads = ops.tap_rows * blocks * _span(ops, pixels)
        moved = byte_columns(ops, soc, self.storage)
        moved_bytes = moved["input_bytes"] + moved["output_bytes"]
        return {
            "padded_macs": ops.tap_rows * in_row * blocks * pixels * ops.kw * soc.gpu.vector_width,
            "tap_rows": ops.tap_rows * in_row * blocks,
            "column_loads": loads * in_row,
            "border_loads": loads * at_border,
            "stores": ops.pixels * blocks,
            "tile_pixels": np.broadcast_to(np.asarray(pixels, np.float64), ops.oc.shape),
            "tiles": tiles * blocks,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            **caches.by_level("moved", moved_bytes, caches.gpu_cache_bytes(soc)),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        pixels, tiles, length = _tiling(op, soc, choice or self.choices(op, soc)[0])
        width = soc.gpu.vector_width
        strips = ceil_div(tiles, length)
        global_size, local_size = item_grid(strips, soc.gpu.blocks(op.out_channels), soc)
        sizes = (
            length,
            tiles,
            op.input.h,
            op.input.w,
            op.output.w,
            op.kernel.h,
            op.stride.h,
            op.pad.top,
            op.pad.left,
            op.dilation.h,
        )
        launch = KernelLaunch(
            kernel="conv2d_depthwise",
            global_size=global_size,
            local_size=local_size,
            args=(*WEIGHTED, *sizes),
        ).of_images(op.output.n, ENDS)
        return KernelPlan(
            source="conv2d/gpu_depthwise.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "PIXELS": pixels,
                "KERNEL_W": op.kernel.w,
                "STRIDE_W": op.stride.w,
                "DILATION_W": op.dilation.w,
            },
            pack=lambda weights: {
                "weight": _pack_windows(weights["weight"], width),
                "bias": pack_bias(weights["bias"], width),
            },
            whole_batch=True,
        ).stored_as(self.storage)


def refuse_mixing(op: Conv2d) -> str | None:
    """Why an op is none that computes every channel from one alone."""
    if op.input.c == op.out_channels == op.groups:
        return None
    return (
        "groups, input and output channels must be equal, "
        f"got {op.groups}, {op.input.c} and {op.out_channels}"
    )


def _span(ops: ConvColumns, pixels: Column | int) -> Column:
    """Input columns under a tile."""
    return (pixels - 1) * ops.sw + ops.extent_w


def _tiling(op: Conv2d, soc: Soc, choice: Choice) -> tuple[int, int, int]:
    """Pixels of a tile, tiles of one block of channels, and tiles of a work-item."""
    tiles = op.output.h * ceil_div(op.output.w, choice["pixels"])
    length = strip(tiles, soc.gpu.blocks(op.out_channels), choice["strip"], soc)
    return choice["pixels"], tiles, length


def _pack_windows(weight: Array, width: int) -> Array:
    """(channels, 1, kh, kw) -> [block][kh][kw][lane], flat."""
    channels, window = weight.shape[0], weight.shape[2] * weight.shape[3]
    padded = np.zeros((ceil_div(channels, width) * width, window), np.float32)
    padded[:channels] = weight.reshape(channels, window)
    return np.ascontiguousarray(padded.reshape(-1, width, window).swapaxes(1, 2)).reshape(-1)
