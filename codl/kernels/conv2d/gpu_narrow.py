"""Convolution to few channels on the GPU: vectors hold input channels, so that none is padding."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import (
    Conv2d,
    ConvColumns,
)
from codl.kernels import registers, tiling_columns
from codl.kernels.base import WEIGHTED, Choice, KernelLaunch, KernelPlan
from codl.kernels.conv2d.gpu_direct import byte_columns, pack_bias
from codl.kernels.feature_columns import (
    ChoiceColumns,
)
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

#: Pixels of a tile at most.
WIDEST = 8
#: Tiles that one work-item of a CPU takes at most.
LONGEST_STRIP = 64


class GpuNarrow(ForStorage, ByChoiceColumns):
    """Any window, stride, padding and dilation with at most half a block of output channels."""

    op_kind: ClassVar[str] = "conv2d"
    base_name: ClassVar[str] = "gpu_narrow"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu"})
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.groups != 1:
            return f"groups must be 1, got {op.groups}"
        most = soc.gpu.vector_width // 2
        if op.out_channels > most:
            return f"output channels must be at most {most}, got {op.out_channels}"
        return None

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a row whose sums are kept in registers."""
        widest = min(WIDEST, registers.most_sums(soc.gpu) // op.out_channels)
        return tuple({"pixels": pixels} for pixels in range(widest, widest // 2, -1))

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        sums = registers.most_sums(soc.gpu)
        return {"pixels": np.minimum(WIDEST, np.floor(sums / ops.oc))}

    def feature_columns(
        self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        width = soc.gpu.vector_width
        pixels = (choice or self.default_columns(ops, soc))["pixels"]
        tiles = ops.oh * columns.ceil_div(ops.ow, pixels)
        length = tiling_columns.strip(tiles, np.ones_like(tiles), LONGEST_STRIP, soc)
        items = columns.ceil_div(tiles, length)
        steps = ops.window * columns.ceil_div(ops.ic, width)
        return {
            "padded_macs": tiles * pixels * steps * width * ops.oc,
            "pixel_steps": tiles * pixels * steps,
            "tile_steps": tiles * steps,
            "lane_sums": tiles * pixels * ops.oc,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "flops": ops.flops,
            **byte_columns(ops, soc, self.storage),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        pixels = (choice or self.choices(op, soc)[0])["pixels"]
        tiles = op.output.h * ceil_div(op.output.w, pixels)
        length = strip(tiles, 1, LONGEST_STRIP, soc)
        width = soc.gpu.vector_width
        global_size, local_size = item_grid(ceil_div(tiles, length), 1, soc)
        sizes = (
            length,
            tiles,
            soc.gpu.blocks(op.input.c),
            op.input.h,
            op.input.w,
            op.output.w,
            *op.kernel,
            op.stride.h,
            op.pad.top,
            op.pad.left,
            *op.dilation,
        )
        launch = KernelLaunch(
            kernel="conv2d_narrow",
            global_size=global_size,
            local_size=local_size,
            args=(*WEIGHTED, *sizes),
        )
        return KernelPlan(
            source="conv2d/gpu_narrow.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "PIXELS": pixels,
                "OUTS": op.out_channels,
                "STRIDE_W": op.stride.w,
            },
            pack=lambda weights: {
                "weight": _pack(weights["weight"], width),
                "bias": pack_bias(weights["bias"], width),
            },
        ).stored_as(self.storage)


def _pack(weight: Array, width: int) -> Array:
    """(oc, ic, kh, kw) -> [ic block][kh][kw][oc][lane of ic], flat."""
    outs, channels, height, columns = weight.shape
    packed = np.zeros((ceil_div(channels, width) * width, outs, height, columns), np.float32)
    packed[:channels] = weight.swapaxes(0, 1)
    packed = packed.reshape(-1, width, outs, height, columns).transpose(0, 3, 4, 2, 1)
    return np.ascontiguousarray(packed).reshape(-1)
