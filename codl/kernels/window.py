"""What kernels that slide a window share: the window's arguments, and tiles of pixels of a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div
from codl.ir.ops.window import WindowColumns, WindowOp
from codl.kernels.tiling import item_grid
from codl.kernels.tiling_columns import strip, waves
from codl.records.soc import Soc


def window_args(op: WindowOp) -> tuple[int, ...]:
    """The arguments that `WINDOW_ARGS` of `window.cl` declares, in its order."""
    sizes = (op.inputs[0].h, op.inputs[0].w, op.out_hw.w, *op.kernel, *op.stride)
    return (*sizes, op.pad.top, op.pad.left, *op.dilation)


@dataclass(frozen=True)
class RowTiles:
    """How outputs are cut: tiles of `pixels` pixels of a row, by blocks of channels.

    A work-item has a strip of consecutive tiles of one block.
    """

    pixels: Column
    blocks: Column
    in_row: Column
    tiles: Column
    strip: Column

    @classmethod
    def of(
        cls, ops: WindowColumns, soc: Soc, pixels: Column, blocks: Column, longest: Column | float
    ) -> RowTiles:
        """Strips have at most `longest` tiles; those of a GPU have one."""
        in_row = ceil_div(ops.ow, pixels)
        tiles = ops.oh * in_row
        return cls(pixels, blocks, in_row, tiles, strip(tiles, blocks, longest, soc))

    @property
    def strips(self) -> Column:
        return ceil_div(self.tiles, self.strip)

    @property
    def items(self) -> Column:
        return self.strips * self.blocks

    def item_features(self, soc: Soc) -> FeatureColumns:
        return {"work_items": self.items, "waves": waves(self.items, soc)}

    def grid(self, soc: Soc) -> tuple[tuple[int, int], tuple[int, int]]:
        """Global and local size for the first op."""
        strips, blocks = whole(self.strips, self.blocks)
        return item_grid(strips, blocks, soc)


def whole(*columns: Column) -> tuple[int, ...]:
    """What the first op has in each of some columns."""
    return tuple(int(np.ravel(column)[0]) for column in columns)


def span(ops: WindowColumns, pixels: Column | float) -> Column:
    """Input columns under the windows of `pixels` neighbours."""
    return (pixels - 1) * ops.sw + ops.extent_w
