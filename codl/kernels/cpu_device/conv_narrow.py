"""Convolution to few channels, on a CPU: vectors hold input channels, so that none is padding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels import tiling
from codl.kernels.base import WEIGHTED, Choice, KernelPlan
from codl.kernels.conv2d.gpu import GpuConv, byte_columns
from codl.kernels.cpu_device import registers
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.kernel import CPU_DEVICE, launch
from codl.kernels.window import RowTiles, window_args
from codl.records.soc import Soc

#: Pixels of a tile at most, and tiles of a work-item.
WIDEST, LONGEST_STRIP = 8, 64


class GpuNarrow(GpuConv):
    """Any window, stride, padding and dilation with at most half a block of output channels."""

    base_name = "gpu_narrow"
    source = "cpu_device/conv_narrow.cl"
    meant_for = CPU_DEVICE

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
            macros={
                "PIXELS": choice["pixels"],
                "OUTS": op.out_channels,
                "STRIDE_W": op.stride.w,
            },
            pack=lambda weight: _pack(weight, width),
        )


def _pack(weight: Array, width: int) -> Array:
    """(oc, ic, kh, kw) -> [ic block][kh][kw][oc][lane of ic], flat."""
    outs, channels, height, columns = weight.shape
    packed = np.zeros((tiling.round_up(channels, width), outs, height, columns), np.float32)
    packed[:channels] = weight.swapaxes(0, 1)
    packed = packed.reshape(-1, width, outs, height, columns).transpose(0, 3, 4, 2, 1)
    return np.ascontiguousarray(packed).reshape(-1)
