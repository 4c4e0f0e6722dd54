"""Max, average and global pooling on the GPU: a block of channels wide, a row's piece at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import (
    Column,
    FeatureColumns,
)
from codl.ir.ops.pooling import (
    Pool2d,
    PoolColumns,
)
from codl.kernels import tiling_columns
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan
from codl.kernels.feature_columns import (
    ChoiceColumns,
    by_level,
    gpu_cache_bytes,
)
from codl.kernels.tiling import base_defines, ceil_div, item_grid
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

#: Input columns that are collected at once at most, by vector width: as many as registers hold.
MOST_COLUMNS = {16: 24, 8: 12, 4: 16}
#: Input vectors that one work-item of a CPU takes at most: a few us.
LONGEST_STRIP = 4096
#: Pixels of a row that are taken at once, at most.
LONGEST_ROW = 16
#: The choice of a GPU for windows that are too wide.
ALONE: tuple[Choice, ...] = ({"pixels": 0, "strip": 1},)


@dataclass(frozen=True)
class _PoolTiling:
    """How poolings are cut; `pixels` is 0 where a window is too wide to be unrolled."""

    pixels: Column
    tiles: Column
    strip: Column
    steps: Column
    blocks: Column

    @classmethod
    def of(cls, ops: PoolColumns, soc: Soc, choice: ChoiceColumns) -> _PoolTiling:
        pixels = np.broadcast_to(np.asarray(choice["pixels"], np.float64), ops.ic.shape)
        blocks = columns.ceil_div(ops.ic, soc.gpu.vector_width)
        # Vectors that a tile reads, each from its own column and row of the window.
        steps = ops.kh * np.where(pixels > 0, _span(ops, pixels), ops.kw)
        tiles = ops.oh * columns.ceil_div(ops.ow, np.maximum(1, pixels))
        most = np.maximum(1, np.floor(choice["strip"] / steps))
        return cls(pixels, tiles, tiling_columns.strip(tiles, blocks, most, soc), steps, blocks)

    @property
    def strips(self) -> Column:
        return columns.ceil_div(self.tiles, self.strip)


class GpuDirect(ForStorage, ByChoiceColumns):
    """Any window, stride, padding and dilation."""

    op_kind: ClassVar[str] = "pooling"
    base_name: ClassVar[str] = "gpu_direct"
    takes_batch: ClassVar[bool] = True
    op_columns: ClassVar[type[PoolColumns]] = PoolColumns

    def choices(self, op: Pool2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a row at a time (0: one window at a time), and vectors of a strip."""
        most = MOST_COLUMNS[soc.gpu.vector_width]
        within = range(1, LONGEST_ROW + 1)
        fitting = [p for p in within if (p - 1) * op.stride.w + op.extent.w <= most]
        fitting.sort(key=lambda p: (ceil_div(op.output.w, p) * p, -p))  # least waste, then largest
        if not soc.gpu.is_cpu:
            return tuple({"pixels": p, "strip": 1} for p in (4, 2, 1) if p in fitting) or ALONE
        strips = (LONGEST_STRIP, LONGEST_STRIP // 4)
        return tuple({"pixels": p, "strip": s} for p in (*fitting[:4], 0) for s in strips)

    def default_columns(self, ops: PoolColumns, soc: Soc) -> ChoiceColumns:
        most, pixels = MOST_COLUMNS[soc.gpu.vector_width], np.zeros_like(ops.ow)
        if not soc.gpu.is_cpu:
            for size in (1, 2, 4):
                pixels = np.where(_span(ops, size) <= most, float(size), pixels)
            return {"pixels": pixels, "strip": np.ones_like(pixels)}
        least = np.full_like(ops.ow, np.inf)
        for size in range(1, LONGEST_ROW + 1):
            computed = columns.round_up(ops.ow, size)
            better = (_span(ops, size) <= most) & (computed <= least)
            pixels = np.where(better, float(size), pixels)
            least = np.where(better, computed, least)
        return {"pixels": pixels, "strip": np.full_like(pixels, LONGEST_STRIP)}

    def feature_columns(
        self, ops: PoolColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        t = _PoolTiling.of(ops, soc, choice or self.default_columns(ops, soc))
        rowwise, items = t.pixels > 0, t.strips * t.blocks
        # Tiles at the sides, and those above and below, check every column, or row.
        in_row = t.tiles / ops.oh
        ends = (ops.left > 0) + ((ops.ow - 1) * ops.sw + ops.extent_w > ops.iw + ops.left)
        whole_rows = ops.oh - (ops.oh * ops.kh - ops.tap_rows > 0) * (ops.oh > 1)
        edges = t.tiles - whole_rows * np.maximum(in_row - ends, 0)
        steps = t.steps / ops.kh * ops.tap_rows * in_row * t.blocks
        size, channels = float(self.storage.element_bytes), t.blocks * soc.gpu.vector_width
        moved = size * channels * (ops.ih * ops.iw + ops.pixels)
        return {
            "column_steps": np.where(rowwise, steps, 0.0),
            "edge_steps": np.where(rowwise, edges * t.steps * t.blocks, 0.0),
            "looped_steps": np.where(rowwise, 0.0, steps),
            "output_blocks": ops.pixels * t.blocks,
            "tiles": t.tiles * t.blocks,
            "single_pixel_tiles": t.tiles * t.blocks * (t.pixels == 1),
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            **by_level("moved", moved, gpu_cache_bytes(soc)),
        }

    def plan(self, op: Pool2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        tiling = _PoolTiling.of(PoolColumns.of([op]), soc, choice or self.choices(op, soc)[0])
        pixels, length, tiles = (int(v[0]) for v in (tiling.pixels, tiling.strip, tiling.tiles))
        global_size, local_size = item_grid(int(tiling.strips[0]), int(tiling.blocks[0]), soc)
        sizes = _row_sizes if pixels else _window_sizes
        launch = KernelLaunch(
            kernel="pool2d_rows" if pixels else "pool2d_window",
            global_size=global_size,
            local_size=local_size,
            args=(*ENDS, *sizes(op, length, tiles)),
        ).of_images(op.output.n, ENDS)
        return KernelPlan(
            source="pooling/gpu_direct.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **_mode(op),
                **_unrolled(op, pixels),
            },
            whole_batch=True,
        ).stored_as(self.storage)


def _span(ops: PoolColumns, pixels: Column | int) -> Column:
    """Input columns under `pixels` pixels of a row."""
    return (pixels - 1) * ops.sw + ops.extent_w


def _row_sizes(op: Pool2d, length: int, tiles: int) -> tuple[int, ...]:
    """The arguments of `pool2d_rows`."""
    sizes = (length, tiles, op.input.h, op.input.w, op.output.w)
    return (*sizes, op.stride.h, op.pad.top, op.pad.left)


def _window_sizes(op: Pool2d, length: int, tiles: int) -> tuple[int, ...]:
    """The arguments of `pool2d_window`."""
    sizes = (length, op.input.h, op.input.w, op.output.w, tiles)
    return (*sizes, *op.kernel, *op.stride, op.pad.top, op.pad.left, *op.dilation)


def _mode(op: Pool2d) -> dict[str, int]:
    if op.mode == "max":
        return {"MODE_MAX": 1}
    return {"COUNT_PAD": 1} if op.count_pad else {}


def _unrolled(op: Pool2d, pixels: int) -> dict[str, int]:
    if not pixels:
        return {}
    (height, width), (down, right) = op.kernel, op.dilation
    window = {"KERNEL_H": height, "KERNEL_W": width, "STRIDE_W": op.stride.w}
    return {"PIXELS": pixels, **window, "DILATION_H": down, "DILATION_W": right}
