"""Pooling on the GPU, and the indices of its maxima."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from codl.ir.columns import Column
from codl.ir.ops.pooling import MaxIndices, Pool2d, PoolColumns
from codl.ir.types import PLANAR
from codl.kernels.architecture import holds
from codl.kernels.base import ENDS, Choice, KernelPlan
from codl.kernels.feature_columns import ChoiceColumns, by_level, gpu_cache_bytes
from codl.kernels.image import texels
from codl.kernels.kernel import (
    BLOCKS,
    IMAGES,
    REAL_GPU,
    ColumnKernel,
    Grid,
    Kernel,
    launch,
    of_every_storage,
)
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div, round_up
from codl.kernels.window import span, span_macros, window_args
from codl.records.soc import Soc

#: Input columns that are collected at once at most, by vector width: as many as registers hold.
MOST_COLUMNS = {16: 24, 8: 12, 4: 16}
#: Numbers of a column that a GPU has in registers: what is collected, and what is on its way.
COLUMN = 8
#: Input vectors that one work-item of a CPU takes at most: a few us.
LONGEST_STRIP = 4096
#: Pixels of a row that are taken at once, at most.
LONGEST_ROW = 16
#: Work-items of a work-group that shares a whole input, the default first.
ITEMS = (64, 32, 128)


@dataclass(frozen=True)
class _Tiling:
    """How poolings are cut; `pixels` is 0 where a window is too wide to be unrolled."""

    pixels: Column
    tiles: Column
    steps: Column
    blocks: Column
    grid: Grid

    @classmethod
    def of(cls, ops: PoolColumns, soc: Soc, choice: Mapping[str, Column]) -> _Tiling:
        pixels = choice["pixels"]
        blocks = ceil_div(ops.ic, soc.gpu.vector_width)
        # Vectors that a tile reads, each from its own column and row of the window.
        steps = ops.kh * np.where(pixels > 0, span(ops, pixels), ops.kw)
        tiles = ops.oh * ceil_div(ops.ow, np.maximum(1, pixels))
        most = np.maximum(1, np.floor(choice["strip"] / steps))
        return cls(pixels, tiles, steps, blocks, Grid.of(tiles, blocks, most, soc))


def _mode(op: Pool2d) -> dict[str, bool]:
    return {"MODE_MAX": op.mode == "max", "COUNT_PAD": op.mode != "max" and op.count_pad}


def _refuse_sums(op: Pool2d) -> str | None:
    """Why a pooling has no use for halves."""
    return None if op.mode == "max" else f"{op.mode} is summed as float32, mode must be max"


class GpuDirect(ColumnKernel):
    """Any window, stride, padding and dilation: a row's piece at a time, a block of channels."""

    op_kind = "pooling"
    source = "pooling/gpu_direct.cl"
    multiplies_halves = True
    storages = BLOCKS
    batches = True
    op_columns = PoolColumns

    def refuse_halves(self, op: Pool2d) -> str | None:
        return _refuse_sums(op)

    def alternatives(self, op: Pool2d, soc: Soc, first: Choice) -> Iterable[Choice]:
        """Pixels of a row at a time (0: one window at a time), and vectors of a strip."""
        most = MOST_COLUMNS[soc.gpu.vector_width]
        within = range(1, LONGEST_ROW + 1)
        spans = {p: (p - 1) * op.stride.w + op.extent.w for p in within}
        fitting = [p for p in within if spans[p] <= most and holds(soc.gpu, COLUMN * spans[p])]
        if not soc.gpu.is_cpu:
            return [{"pixels": p, "strip": 1} for p in (4, 2, 1) if p in fitting]
        fitting.sort(key=lambda p: (round_up(op.output.w, p), -p))  # least waste, then largest
        strips = (LONGEST_STRIP, LONGEST_STRIP // 4)
        return [{"pixels": p, "strip": s} for p in (*fitting[:4], 0) for s in strips]

    def default_columns(self, ops: PoolColumns, soc: Soc) -> ChoiceColumns:
        most, pixels = MOST_COLUMNS[soc.gpu.vector_width], np.zeros_like(ops.ow)
        if not soc.gpu.is_cpu:
            for size in (1, 2, 4):
                columns = span(ops, size)
                fits = (columns <= most) & holds(soc.gpu, COLUMN * columns)
                pixels = np.where(fits, float(size), pixels)
            return {"pixels": pixels, "strip": 1}
        least = np.full_like(ops.ow, np.inf)
        for size in range(1, LONGEST_ROW + 1):
            computed = round_up(ops.ow, size)
            better = (span(ops, size) <= most) & (computed <= least)
            pixels = np.where(better, float(size), pixels)
            least = np.where(better, computed, least)
        return {"pixels": pixels, "strip": LONGEST_STRIP}

    def counts(self, ops: PoolColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        t = _Tiling.of(ops, soc, choice)
        rowwise = t.pixels > 0
        # Tiles at the sides, and those above and below, check every column, or row.
        in_row = t.tiles / ops.oh
        ends = (ops.left > 0) + ((ops.ow - 1) * ops.sw + ops.extent_w > ops.iw + ops.left)
        whole_rows = ops.oh - (ops.oh * ops.kh - ops.tap_rows > 0) * (ops.oh > 1)
        edges = t.tiles - whole_rows * np.maximum(in_row - ends, 0)
        steps = t.steps / ops.kh * ops.tap_rows * in_row * t.blocks
        moved = self.stored(t.blocks * soc.gpu.vector_width) * (ops.ih * ops.iw + ops.pixels)
        return {
            "column_steps": np.where(rowwise, steps, 0.0),
            "edge_steps": np.where(rowwise, edges * t.steps * t.blocks, 0.0),
            "looped_steps": np.where(rowwise, 0.0, steps),
            "output_blocks": ops.pixels * t.blocks,
            "tiles": t.tiles * t.blocks,
            "single_pixel_tiles": t.tiles * t.blocks * (t.pixels == 1),
            **t.grid.features,
            **by_level("moved", moved, gpu_cache_bytes(soc)),
        }

    def build(self, op: Pool2d, soc: Soc, choice: Choice) -> KernelPlan:
        t = _Tiling.of(*self.alone(op, soc, choice))
        window = window_args(op)
        macros: dict[str, int | bool] = {**_mode(op)}
        kernel, tiles = "pool2d_window", "out_pixels"
        if choice["pixels"]:
            kernel, tiles = "pool2d_rows", "tiles"
            unrolled = ["kernel_w", "stride_w", "dilation_w"]
            unrolled += ["kernel_h", "dilation_h"] * soc.gpu.is_cpu
            macros |= {"PIXELS": choice["pixels"]} | {n.upper(): window[n] for n in unrolled}
            macros |= span_macros(op, int(choice["pixels"]))
        numbers = {"strip": t.grid.strip, tiles: t.tiles, **window}
        pool = launch(kernel, t.grid.sizes, *ENDS, **numbers)
        return self.assemble(op, soc, pool.of_images(op.output.n, ENDS), macros=macros)


class GpuGlobal(Kernel):
    """A window that is the whole input: the work-items of a group share its pixels."""

    op_kind = "pooling"
    base_name = "gpu_global"
    source = "pooling/gpu_global.cl"
    storages = BLOCKS
    meant_for = REAL_GPU
    batches = True

    def refuse(self, op: Pool2d, soc: Soc) -> str | None:
        if op.extent != (op.input.h, op.input.w) or op.dilation != (1, 1) or any(op.pad):
            return (
                "the window must be the whole input, without padding, "
                f"got kernel={op.kernel} pad={tuple(op.pad)} on {op.input.h}x{op.input.w}"
            )
        if not self.choices(op, soc):
            return f"work-groups of 32 are needed, got at most {soc.gpu.max_work_group_size}"
        return None

    def choices(self, op: Pool2d, soc: Soc) -> tuple[Choice, ...]:
        return tuple({"items": n} for n in ITEMS if n <= soc.gpu.max_work_group_size)

    def counts(self, op: Pool2d, soc: Soc, choice: Choice) -> dict[str, float]:
        blocks, pixels = soc.gpu.blocks(op.input.c), op.input.h * op.input.w
        channels = self.stored(blocks * soc.gpu.vector_width)
        return {
            "window_steps": pixels * blocks,
            "loop_length": ceil_div(pixels, choice["items"]),
            "work_groups": blocks,
            "waves": ceil_div(blocks, soc.gpu.compute_units),
            "flops": op.flops,
            "input_bytes": channels * pixels,
            "output_bytes": channels,
        }

    def build(self, op: Pool2d, soc: Soc, choice: Choice) -> KernelPlan:
        items = choice["items"]
        sizes = (soc.gpu.blocks(op.input.c) * items,), (items,)
        pool = launch("pool2d_global", sizes, *ENDS, pixels=op.input.h * op.input.w)
        macros = {"MODE_MAX": op.mode == "max", "ITEMS": items}
        return self.assemble(op, soc, pool.of_images(op.output.n, ENDS), macros=macros)


class GpuImage(Kernel):
    """Any window, stride, padding and dilation: a window at a time, a texel of channels wide."""

    op_kind = "pooling"
    source = "pooling/gpu_image.cl"
    storages = IMAGES
    multiplies_halves = True

    def refuse_halves(self, op: Pool2d) -> str | None:
        return _refuse_sums(op)

    def counts(self, op: Pool2d, soc: Soc, choice: Choice) -> dict[str, float]:
        blocks, pixels = texels(op.input.c), op.output.h * op.output.w
        channels = self.stored(4 * blocks)
        return {
            "texel_reads": pixels * blocks * op.kernel.h * op.kernel.w,
            "output_texels": pixels * blocks,
            **_windows(op, pixels, blocks, soc).features,
            "flops": op.flops,
            "input_bytes": channels * op.input.h * op.input.w,
            "output_bytes": channels * pixels,
        }

    def build(self, op: Pool2d, soc: Soc, choice: Choice) -> KernelPlan:
        pixels = op.output.h * op.output.w
        grid = _windows(op, pixels, texels(op.input.c), soc)
        pool = launch(
            "pool2d_image",
            grid.sizes,
            *ENDS,
            strip=grid.strip,
            out_pixels=pixels,
            **window_args(op),
        )
        macros = {"MODE_MAX": op.mode == "max", "COUNT_PAD": op.count_pad}
        return self.assemble(op, soc, pool, macros=macros)


class GpuIndices(Kernel):
    """Indices of maxima, of any window; halves count to 2048 alone."""

    op_kind = "max_indices"
    base_name = "gpu_indices"
    source = "pooling/gpu_indices.cl"
    storages = (PLANAR,)

    def counts(self, op: MaxIndices, soc: Soc, choice: Choice) -> dict[str, float]:
        return {
            "window_steps": op.flops,
            "output_bytes": op.output.bytes,
            **_windows(op, op.output.elements, 1, soc).features,
        }

    def build(self, op: MaxIndices, soc: Soc, choice: Choice) -> KernelPlan:
        grid, x = _windows(op, op.output.elements, 1, soc), op.pooling.input
        indices = launch(
            "max_indices",
            grid.sizes,
            *ENDS,
            strip=grid.strip,
            elements=op.output.elements,
            out_h=op.pooling.output.h,
            row_step=1 if op.by_columns else x.w,
            column_step=x.h if op.by_columns else 1,
            **window_args(op.pooling),
        )
        return self.assemble(op, soc, indices)


def _windows(op: Pool2d | MaxIndices, windows: int, others: int, soc: Soc) -> Grid:
    """One window after the other, of few taps for a work-item of a CPU."""
    most = max(1, LONGEST_STRIP // (op.kernel.h * op.kernel.w))
    return Grid.of(windows, others, most, soc)


register(*of_every_storage(GpuGlobal, GpuDirect, GpuImage, GpuIndices))
