"""Pooling on the GPU, and indices of maxima."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest, round_up
from codl.ir.ops.window import Pool2d, PoolColumns
from codl.ir.records.soc import Soc
from codl.kernels import tiling
from codl.kernels.base import ENDS, Choice, KernelPlan
from codl.kernels.cpu import CpuKernel, NcnnLayer, OrtPlan, node, of_onnx, window_attributes
from codl.kernels.kernel import (
    BLOCKS,
    IMAGES,
    REAL_GPU,
    ColumnKernel,
    Grid,
    Kernel,
    RowTiles,
    launch,
    of_every_storage,
    span,
    window_args,
    window_macros,
)
from codl.kernels.tiling import TEXEL, by_level, holds, packed_vectors

#: The most input columns collected together, by vector width: as many as fit the registers.
MOST_COLUMNS = {16: 24, 8: 12, 4: 16}
#: Registers per column on a GPU: the collected values, and the pending loads.
COLUMN = 8
#: The most input vectors of a work-item on a CPU: a few us.
LONGEST_STRIP = 4096
#: The most pixels of a row computed together.
LONGEST_ROW = 16


def _cut(ops: PoolColumns, soc: Soc, choice: Mapping[str, Column]) -> tuple[RowTiles, Column]:
    """The tiles of poolings, and the vectors that a tile reads: one per column and row.

    The choice of `pixels` is 0 where a window is too wide to unroll.
    """
    pixels, blocks = choice["pixels"], ceil_div(ops.ic, soc.gpu.vector_width)
    steps = ops.kh * np.where(pixels > 0, span(ops, pixels), ops.kw)
    most = np.maximum(1, np.floor(choice["strip"] / steps))
    return RowTiles.of(ops, soc, np.maximum(1, pixels), blocks, most), steps


def _mode(op: Pool2d) -> dict[str, bool]:
    return {"MODE_MAX": op.mode == "max", "COUNT_PAD": op.mode != "max" and op.count_pad}


def _refuse_sums(op: Pool2d) -> str | None:
    """The reason why a pooling gains nothing from float16; None for a maximum."""
    return None if op.mode == "max" else f"{op.mode} is summed as float32, mode must be max"


class GpuDirect(ColumnKernel):
    """Any window, stride, padding and dilation: some pixels of a row, a block of channels."""

    op_kind = "pooling"
    source = "pooling/gpu_direct.cl"
    multiplies_halves = True
    storages = BLOCKS
    batches = True
    op_columns = PoolColumns

    def refuse_halves(self, op: Pool2d) -> str | None:
        return _refuse_sums(op)

    def ranked(self, ops: PoolColumns, soc: Soc) -> tuple[tiling.ChoiceColumns, Column]:
        """Choices of pixels of a row (0: single windows), and of vectors of a strip.

        A CPU tries the four sizes with the least waste, the largest of equals first.
        """
        sizes = range(LONGEST_ROW, 0, -1) if soc.gpu.is_cpu else (4, 2, 1)
        pixels = np.array(sizes, np.float64)[:, None]
        columns = span(ops, pixels)
        fits = (columns <= MOST_COLUMNS[soc.gpu.vector_width]) & holds(soc.gpu, COLUMN * columns)
        waste = np.where(fits, round_up(ops.ow, pixels) if soc.gpu.is_cpu else 1.0, np.inf)
        rank = np.argsort(np.argsort(waste, axis=0, kind="stable"), axis=0)
        some = fits & (rank < 4)
        single = np.where(some.any(axis=0) & (not soc.gpu.is_cpu), np.inf, 4.0)
        order = np.vstack([np.where(some, rank, np.inf), single])[:, None]
        strips = (LONGEST_STRIP, LONGEST_STRIP // 4) if soc.gpu.is_cpu else (1,)
        choices = {
            "pixels": np.append(pixels, 0)[:, None, None],
            "strip": np.array(strips)[:, None],
        }
        return choices, 2 * order + np.arange(len(strips))[:, None]

    def counts(self, ops: PoolColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        t, steps_each = _cut(ops, soc, choice)
        rowwise = choice["pixels"] > 0
        # Tiles at the borders check every column or row.
        ends = (ops.left > 0) + ((ops.ow - 1) * ops.sw + ops.extent_w > ops.iw + ops.left)
        whole_rows = ops.oh - (ops.oh * ops.kh - ops.tap_rows > 0) * (ops.oh > 1)
        edges = t.tiles - whole_rows * np.maximum(t.in_row - ends, 0)
        steps = steps_each / ops.kh * ops.tap_rows * t.in_row * t.blocks
        moved = self.stored(t.blocks * soc.gpu.vector_width) * (ops.ih * ops.iw + ops.pixels)
        return {
            "column_steps": np.where(rowwise, steps, 0.0),
            "edge_steps": np.where(rowwise, edges * steps_each * t.blocks, 0.0),
            "looped_steps": np.where(rowwise, 0.0, steps),
            "output_blocks": ops.pixels * t.blocks,
            "tiles": t.tiles * t.blocks,
            "single_pixel_tiles": t.tiles * t.blocks * (choice["pixels"] == 1),
            **t.grid.features,
            **by_level("moved", moved, tiling.gpu_cache_bytes(soc)),
        }

    def build(self, op: Pool2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, _ = _cut(*self.alone(op, soc, choice))
        macros: dict[str, int | bool] = {**_mode(op)}
        kernel, tiles = "pool2d_window", "out_pixels"
        if choice["pixels"]:
            kernel, tiles = "pool2d_rows", "tiles"
            macros |= window_macros(op, choice["pixels"])
            if soc.gpu.is_cpu:
                macros |= {"KERNEL_H": op.kernel.h, "DILATION_H": op.dilation.h}
        pool = t.grid.launch(kernel, *ENDS, **{tiles: t.tiles}, **window_args(op))
        return self.assemble(op, soc, pool.of_images(op.output.n, ENDS), macros=macros)


class GpuGlobal(Kernel):
    """A window as large as the input, whose pixels a work-group shares."""

    op_kind = "pooling"
    base_name = "gpu_global"
    source = "pooling/gpu_global.cl"
    storages = BLOCKS
    meant_for = REAL_GPU
    batches = True
    #: Work-items of a work-group.
    tried = tuple({"items": items} for items in (64, 32, 128))

    def refuse(self, op: Pool2d, soc: Soc) -> str | None:
        if op.extent != (op.input.h, op.input.w) or op.dilation != (1, 1) or any(op.pad):
            return (
                "the window must be the whole input, without padding, "
                f"got kernel={op.kernel} pad={tuple(op.pad)} on {op.input.h}x{op.input.w}"
            )
        return None

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
    """Any window, stride, padding and dilation over images, one window of a texel at a time."""

    op_kind = "pooling"
    source = "pooling/gpu_image.cl"
    storages = IMAGES
    multiplies_halves = True

    def refuse_halves(self, op: Pool2d) -> str | None:
        return _refuse_sums(op)

    def counts(self, op: Pool2d, soc: Soc, choice: Choice) -> dict[str, float]:
        blocks, pixels = ceil_div(op.input.c, TEXEL), op.output.h * op.output.w
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
        grid = _windows(op, pixels, ceil_div(op.input.c, TEXEL), soc)
        pool = grid.launch("pool2d_image", *ENDS, out_pixels=pixels, **window_args(op))
        macros = {"MODE_MAX": op.mode == "max", "COUNT_PAD": op.count_pad}
        return self.assemble(op, soc, pool, macros=macros)


def _windows(op: Pool2d, windows: int, others: int, soc: Soc) -> Grid:
    """A grid of single windows, with a limited number of taps per work-item on a CPU."""
    most = max(1, LONGEST_STRIP // (op.kernel.h * op.kernel.w))
    return Grid.of(windows, others, most, soc)


# The CPU.


def _refuse_ncnn(op: Pool2d) -> str | None:
    if op.dilation != (1, 1):
        return f"ncnn's pooling has no dilation, got dilation={op.dilation}"
    return None


def _ncnn(op: Pool2d) -> NcnnLayer:
    parameters = {
        0: 0 if op.mode == "max" else 1,
        1: op.kernel.w,
        11: op.kernel.h,
        2: op.stride.w,
        12: op.stride.h,
        3: op.pad.left,
        14: op.pad.right,
        13: op.pad.top,
        15: op.pad.bottom,
        5: 1,
        6: int(op.count_pad),
    }
    return NcnnLayer("Pooling", parameters, after=op.activation)


def _count_ncnn(ops: PoolColumns, soc: Soc) -> FeatureColumns:
    """Features: vector reads of windows, and moved bytes.

    ncnn has faster kernels for 2x2 and 3x3 windows at stride 2. Padding is written first.
    """
    channels, packed = packed_vectors(ops.ic, soc.cpu.simd_floats), rest(ops.ic, 4) == 0
    outputs = ops.pixels * channels
    square = (ops.kh == ops.kw) & (ops.sh == 2) & (ops.sw == 2) & packed
    twos, threes = square & (ops.kh == 2), square & (ops.kh == 3)
    padded_bytes = 4.0 * ops.ic * ops.padded_h * ops.padded_w
    moved = 4.0 * ops.ic * (ops.ih * ops.iw + ops.pixels) + padded_bytes * ops.is_padded
    return {
        "steps_of_2": outputs * twos,
        "steps_of_3": outputs * threes,
        "steps": outputs * ops.window * (packed & ~(twos | threes)),
        "scalar_steps": outputs * ops.window * ~packed,
        "output_vectors": outputs,
        "rows": ops.oh * channels,
        "channels": channels,
        "padded_bytes": padded_bytes * ops.is_padded,
        **by_level("moved", moved, soc.cpu.l2_cache_bytes),
    }


def _refuse_pads(op: Any) -> str | None:
    pads = zip((op.pad.top, op.pad.left, op.pad.bottom, op.pad.right), op.kernel * 2, strict=True)
    if any(pad >= size for pad, size in pads):
        return f"ONNX Runtime pads by less than the window {op.kernel}, got pad={op.pad}"
    return None


def _onnx(op: Pool2d) -> OrtPlan:
    more: dict[str, Any] = {"count_include_pad": int(op.count_pad)} if op.mode == "avg" else {}
    kind = "MaxPool" if op.mode == "max" else "AveragePool"
    if op.kernel == (op.input.h, op.input.w) and not any(op.pad):
        return OrtPlan((node(f"Global{kind}"),), op.inputs, op.output)
    return OrtPlan((node(kind, **window_attributes(op), **more),), op.inputs, op.output)


VARIANTS = (
    CpuKernel("pooling", _ncnn, _count_ncnn, PoolColumns, _refuse_ncnn),
    *of_every_storage(GpuGlobal, GpuDirect, GpuImage),
    *of_onnx("pooling", _onnx, refuse=_refuse_pads),
)
