"""Convolution to few channels, on a CPU: vectors hold input channels, so that none is padding."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels import tiling
from codl.kernels.base import KernelLaunch
from codl.kernels.conv2d.gpu import GpuConv, Macros, one_launch
from codl.kernels.cpu_device import registers
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.window import RowTiles, whole, window_args
from codl.records.soc import Soc

#: Pixels of a tile at most, and tiles of a work-item.
WIDEST, LONGEST_STRIP = 8, 64


class GpuNarrow(GpuConv):
    """Any window, stride, padding and dilation with at most half a block of output channels."""

    base_name: ClassVar[str] = "gpu_narrow"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu"})
    source: ClassVar[str] = "cpu_device/conv_narrow.cl"

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        if op.groups != 1:
            return f"groups must be 1, got {op.groups}"
        most = soc.gpu.vector_width // 2
        if op.out_channels > most:
            return f"output channels must be at most {most}, got {op.out_channels}"
        return None

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Pixels of a row whose sums are kept in registers: as many as fit, or down to half."""
        widest = np.minimum(WIDEST, np.floor(registers.most_sums(soc.gpu) / ops.oc))
        pixels = np.arange(WIDEST, 0, -1, dtype=np.float64)[:, None]
        fits = (pixels <= widest) & (pixels > np.floor(widest / 2))
        return {"pixels": pixels}, np.where(fits, -pixels, np.inf)

    def cut(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> RowTiles:
        return RowTiles.of(ops, soc, choice["pixels"], np.ones_like(ops.oc), LONGEST_STRIP)

    def count(self, ops: ConvColumns, cut: RowTiles, soc: Soc) -> FeatureColumns:
        width, pixels = soc.gpu.vector_width, cut.tiles * cut.pixels
        steps = ops.window * ceil_div(ops.ic, width)
        return {
            "padded_macs": pixels * steps * width * ops.oc,
            "pixel_steps": pixels * steps,
            "tile_steps": cut.tiles * steps,
            "lane_sums": pixels * ops.oc,
            **cut.item_features(soc),
            "flops": ops.flops,
            **self.byte_columns(ops, soc),
        }

    def launches(self, op: Conv2d, cut: RowTiles, soc: Soc) -> tuple[KernelLaunch, ...]:
        in_blocks = soc.gpu.blocks(op.input.c)
        sizes = (*whole(cut.strip, cut.tiles), in_blocks, *window_args(op))
        return one_launch("conv2d_narrow", cut.grid(soc), sizes)

    def macros(self, op: Conv2d, cut: RowTiles, soc: Soc) -> Macros:
        return {"PIXELS": int(cut.pixels[0]), "OUTS": op.out_channels, "STRIDE_W": op.stride.w}

    def pack(self, weight: Array, cut: RowTiles, soc: Soc) -> Array:
        """(oc, ic, kh, kw) -> [ic block][kh][kw][oc][lane of ic], flat."""
        width, (outs, channels, height, columns) = soc.gpu.vector_width, weight.shape
        packed = np.zeros((tiling.round_up(channels, width), outs, height, columns), np.float32)
        packed[:channels] = weight.swapaxes(0, 1)
        packed = packed.reshape(-1, width, outs, height, columns).transpose(0, 3, 4, 2, 1)
        return np.ascontiguousarray(packed).reshape(-1)
