"""Windows of convolution and pooling kernels: their arguments, and tiles of pixels of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from codl.ir.columns import Column, ceil_div
from codl.ir.ops.window import WindowColumns, WindowOp
from codl.kernels.kernel import Grid
from codl.kernels.source import MOST_UNROLLED
from codl.records.soc import Soc


def window_args(op: WindowOp) -> dict[str, int]:
    """The arguments that `WINDOW_ARGS` of `window.cl` declares, in its order."""
    shape = op.inputs[0]
    return {
        "in_h": shape.h,
        "in_w": shape.w,
        "out_w": op.out_hw.w,
        "kernel_h": op.kernel.h,
        "kernel_w": op.kernel.w,
        "stride_h": op.stride.h,
        "stride_w": op.stride.w,
        "pad_top": op.pad.top,
        "pad_left": op.pad.left,
        "dilation_h": op.dilation.h,
        "dilation_w": op.dilation.w,
    }


@dataclass(frozen=True)
class RowTiles:
    """How outputs are cut: tiles of `pixels` pixels of a row, by blocks of channels."""

    pixels: Column
    blocks: Column
    in_row: Column
    tiles: Column
    grid: Grid

    @classmethod
    def of(
        cls,
        ops: WindowColumns,
        soc: Soc,
        pixels: Column,
        blocks: Column,
        longest: Column | float,
        **grid: Any,
    ) -> RowTiles:
        """A work-item has a strip of consecutive tiles of one block, at most `longest`.

        `grid` is further arguments of `Grid.of`.
        """
        in_row = ceil_div(ops.ow, pixels)
        tiles = ops.oh * in_row
        return cls(pixels, blocks, in_row, tiles, Grid.of(tiles, blocks, longest, soc, **grid))


def span_macros(op: WindowOp, pixels: int) -> dict[str, int | bool]:
    """The input columns under `pixels` neighbours, and whether they are too many to be unrolled."""
    columns = (pixels - 1) * op.stride.w + (op.kernel.w - 1) * op.dilation.w + 1
    return {"SPAN": columns, "ROLLED": columns > MOST_UNROLLED}


def span(ops: WindowColumns, pixels: Column | float) -> Column:
    """Input columns under the windows of `pixels` neighbours."""
    return (pixels - 1) * ops.sw + ops.extent_w
