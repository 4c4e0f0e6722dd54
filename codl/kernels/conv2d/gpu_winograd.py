"""Winograd convolution on the GPU: products at points of tiles, fewer than taps of windows."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels.base import (
    WEIGHTED,
    Arg,
    Choice,
    ConstantArg,
    KernelLaunch,
    ScratchArg,
    TensorArg,
)
from codl.kernels.conv2d.gpu import GpuConv, Macros
from codl.kernels.conv2d.winograd import (
    SIDES,
    WinogradTiling,
    filter_points,
    filter_transform,
    sides_of,
    tile_counts,
)
from codl.kernels.cpu_device import registers
from codl.kernels.cpu_device.winograd_cuts import ranked_cuts
from codl.kernels.feature_columns import (
    THIRD_LEVEL,
    ChoiceColumns,
    beyond,
    by_level,
    gpu_cache_bytes,
    in_order,
    least,
    unique,
)
from codl.kernels.tiling import item_grid
from codl.kernels.window import whole
from codl.records.soc import Soc

#: Points at which a filter is far smaller than at others, where there are eight.
SMALL_POINTS = slice(3, 5)
#: Ops whose choices are compared at once: some megabytes of them.
AT_ONCE = 1024
#: Choices of each tile size that are worth trying.
TRIED = 8


class GpuWinograd(GpuConv):
    """Square windows, such as 3x3 with 16, 36 or 64 products for 4, 16 or 36 outputs."""

    base_name: ClassVar[str] = "gpu_winograd"
    source: ClassVar[str] = "conv2d/gpu_winograd.cl"
    #: There it reads a residual tile by tile, which takes longer than the add saves.
    adds_slowly_on: ClassVar[frozenset[str]] = frozenset({"cpu"})

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        square = op.kernel.h == op.kernel.w and op.stride.h == op.stride.w
        fits = square and (op.kernel.w, op.stride.w) in SIDES
        if fits and op.dilation == (1, 1) and op.groups == 1:
            return None
        return (
            "Winograd needs kernel=3x3 with stride=1 or 2, or kernel=5x5 or 7x7 with stride=1, "
            "and dilation=1 groups=1, got "
            f"kernel={op.kernel} stride={op.stride} dilation={op.dilation} groups={op.groups}"
        )

    def ranked(
        self, ops: ConvColumns, soc: Soc, blocks: int | None = None
    ) -> tuple[ChoiceColumns, Column]:
        """The tile's size, the tiles multiplied together by how many blocks of output channels,
        and the most tiles of a block.
        """
        if soc.gpu.is_cpu:
            return ranked_cuts(ops, soc, blocks)
        tile = (sides_of(ops) - ops.kw) / ops.sw + 1
        ones = np.ones_like(tile)
        choices = {"tile": tile, "together": 4 * ones, "outs": ones}
        order = np.where(np.isnan(tile), np.inf, np.abs(tile - 4))
        return {**choices, "most": tile_counts(ops, tile)[1]}, order

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        tried: Counter[int] = Counter()
        likely = []
        for choice in in_order(*self.ranked(ConvColumns.of([op]), soc)):
            tried[choice["tile"]] += 1
            if tried[choice["tile"]] <= TRIED:
                likely.append(choice)
        return unique([*likely, *(self.block_choice(op, soc, n) for n in self.block_counts(soc))])

    def block_counts(self, soc: Soc) -> tuple[int, ...]:
        return registers.block_counts(soc.gpu)

    def default_columns(
        self, ops: ConvColumns, soc: Soc, blocks: int | None = None
    ) -> ChoiceColumns:
        firsts = range(0, len(ops), AT_ONCE)
        parts = [ops.take(slice(first, first + AT_ONCE)) for first in firsts]
        found = [least(*self.ranked(part, soc, blocks)) for part in parts]
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def block_columns(self, ops: ConvColumns, soc: Soc, blocks: int) -> ChoiceColumns:
        return self.default_columns(ops, soc, blocks)

    def cut(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> WinogradTiling:
        return WinogradTiling.of(ops, soc, choice)

    def count(self, ops: ConvColumns, cut: WinogradTiling, soc: Soc) -> FeatureColumns:
        width, cache = soc.gpu.vector_width, gpu_cache_bytes(soc)
        out_channels = cut.padded_blocks * width
        odd = rest(cut.side, 2) > 0  # those of stride 2, with transforms of their own
        effort = np.where(cut.side < 6, 0.6, np.where(cut.side < 8, 0.8, 1.0))
        effort = effort * cut.points * cut.tiles
        into, out_of = effort * cut.in_blocks * cut.parts, effort * cut.out_blocks
        weights = self.storage.element_bytes * cut.weight_points * ops.ic * out_channels
        scratch = 4.0 * (cut.points_floats(width) + cut.sums_floats(width))
        passes = ceil_div(cut.computed, cut.together)
        moved = self.byte_columns(ops, soc)
        moved_bytes = moved["input_bytes"] + moved["output_bytes"] + weights
        far = THIRD_LEVEL * cache
        return {
            "padded_macs": cut.points * cut.computed * ops.ic * out_channels,
            "input_transforms": into * ~odd,
            "output_transforms": out_of * ~odd,
            "strided_input_transforms": into * odd,
            "strided_output_transforms": out_of * odd,
            "weight_passes": cut.points * cut.padded_blocks * ops.ic * passes,
            "weights_streamed": beyond(weights, cache) * cut.blocks,
            "weights_far": beyond(weights, far),
            "scratch_beyond": beyond(scratch, cache) / cut.most * cut.computed,
            "block_tiles": cut.most,
            "waves": ceil_div(cut.blocks, cut.workers),
            "output_bytes": moved["output_bytes"],
            "output_far": beyond(moved["output_bytes"], far),
            **by_level("moved", moved_bytes, cache),
        }

    def scratch(self, cut: WinogradTiling, soc: Soc) -> dict[str, int]:
        points, sums = _scratch_floats(cut, soc)
        parts, workers, out_blocks = whole(cut.parts, cut.workers, cut.out_blocks)
        if soc.gpu.is_cpu:
            return {"tiles": 4 * (points + sums) * parts * workers}
        return {"points": 4 * points, "sums": 4 * sums * out_blocks}

    def launches(self, op: Conv2d, cut: WinogradTiling, soc: Soc) -> tuple[KernelLaunch, ...]:
        """One persistent work-item for every worker and part of the output channels of a CPU.

        Elsewhere the input's transform, the products and the output's transform.
        """
        counts = whole(cut.most, cut.tiles, cut.tiles_w)
        in_blocks, out_blocks, parts, workers = whole(
            cut.in_blocks, cut.out_blocks, cut.parts, cut.workers
        )
        if soc.gpu.is_cpu:
            item_floats = sum(_scratch_floats(cut, soc))
            sizes = (item_floats, *counts, op.input.c, in_blocks, op.input.h, op.input.w)
            sizes = (*sizes, out_blocks, *op.out_hw, op.pad.top, op.pad.left)
            args = (*WEIGHTED, ScratchArg("tiles"), *sizes)
            return (KernelLaunch("conv2d_winograd", (parts, workers), args, (1, 1)),)
        source, target = TensorArg("input"), TensorArg("output")
        points, sums, bias = ScratchArg("points"), ScratchArg("sums"), ConstantArg("bias")
        (most, tiles, _), (together, points_a_tile) = counts, whole(cut.together, cut.points)
        window = (op.input.h, op.input.w, op.pad.top, op.pad.left)
        channels = (op.input.c, in_blocks, out_blocks)
        for_input, local = item_grid(tiles, in_blocks, soc)
        for_output, _ = item_grid(tiles, out_blocks, soc)
        for_product, _ = item_grid(most // together, out_blocks, soc)
        into: tuple[Arg, ...] = (source, points, *counts, in_blocks, *window)
        products: tuple[Arg, ...] = (points, sums, ConstantArg("weight"), most, *channels)
        out_of: tuple[Arg, ...] = (sums, target, bias, *counts, *op.out_hw)
        return (
            KernelLaunch("winograd_input", for_input, into, local),
            KernelLaunch("winograd_product", (*for_product, points_a_tile), products, (*local, 1)),
            KernelLaunch("winograd_output", for_output, out_of, local),
        )

    def macros(self, op: Conv2d, cut: WinogradTiling, soc: Soc) -> Macros:
        side, tile, together, outs = whole(cut.side, cut.tile, cut.together, cut.outs)
        sizes = {"SIDE": side, "TILE": tile, "STRIDE": op.stride.w}
        return {**sizes, "TOGETHER": together, "OUTS": outs}

    def pack(self, weight: Array, cut: WinogradTiling, soc: Soc) -> Array:
        """(oc, ic, k, k) -> [oc blocks / outs][point][ic][outs][lane of oc], flat.

        With eight points a side it is enlarged where it is smallest, which `SMALL` of the source
        takes back: there small weights would be too small for halves.
        """
        width, channels = soc.gpu.vector_width, weight.shape[1]
        side, tile, outs, blocks = whole(cut.side, cut.tile, cut.outs, cut.out_blocks)
        transform = filter_transform(side, weight.shape[3])
        if side == 8:
            transform[SMALL_POINTS] *= 2.0 ** (tile - 2)
        groups, count = -(-blocks // outs), len(transform) ** 2
        packed = np.zeros((groups, count, channels, outs, width), np.float32)
        for first, points in filter_points(weight, transform, width):
            block = first // width
            place = packed[block // outs, :, :, block % outs, : len(points)]
            place[...] = points.transpose(2, 1, 0)
        return packed.reshape(-1)


def _scratch_floats(cut: WinogradTiling, soc: Soc) -> tuple[int, ...]:
    """For points, and for sums of `outs` blocks: a work-item's on a CPU, otherwise the image's."""
    width = soc.gpu.vector_width
    return whole(cut.points_floats(width), cut.sums_floats(width))
