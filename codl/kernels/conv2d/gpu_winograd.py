"""Winograd convolution on the GPU: products at points of tiles, fewer than taps of windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels.architecture import is_card
from codl.kernels.base import (
    ENDS,
    WEIGHTED,
    Choice,
    ConstantArg,
    KernelLaunch,
    KernelPlan,
    ScratchArg,
)
from codl.kernels.conv2d.gpu import WIDE, GpuConv, byte_columns, team_macros
from codl.kernels.conv2d.winograd import (
    MOST_SIDE,
    SIDES,
    WinogradTiling,
    filter_growth,
    filter_points,
    filter_transform,
    input_args,
    is_in_place,
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
from codl.kernels.kernel import REAL_GPU, Grid, launch
from codl.kernels.tiling import item_grid, round_up, rounds
from codl.records.soc import Soc

#: Points at which a filter is far smaller than at others, where there are eight.
SMALL_POINTS = slice(3, 5)
#: Ops whose choices are compared at once: some megabytes of them.
AT_ONCE = 1024
#: Choices of each tile size that are worth trying.
TRIED = 8
#: Tiles that a work-item of a GPU multiplies at once.
TOGETHER = 4


class GpuWinograd(GpuConv):
    """Square windows, such as 3x3 with 16, 36 or 64 products for 4, 16 or 36 outputs."""

    base_name = "gpu_winograd"
    source = "conv2d/gpu_winograd.cl"
    transforms_weights = True
    #: On a CPU it reads a residual tile by tile, which takes longer than the add saves.
    adds_on = REAL_GPU

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
        choices = {"tile": tile, "together": TOGETHER * ones, "outs": ones}
        order = np.where(np.isnan(tile), np.inf, np.abs(tile - 4))
        order = np.where((sides_of(ops) <= MOST_SIDE) | is_card(soc.gpu), order, np.inf)
        return {**choices, "most": tile_counts(ops, tile)[1]}, order

    def grid(self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> Grid:
        t = WinogradTiling.of(ops, soc, choice)
        return _product_grid(t, soc, choice)

    def team_blocks(self, ops: ConvColumns) -> Column:
        return ceil_div(ops.ic, 4)

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        if not soc.gpu.is_cpu:
            return super().choices(op, soc)
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
        chosen = [least(*self.ranked(part, soc, blocks)) for part in parts]
        usual = {name: np.concatenate([part[name] for part in chosen]) for name in chosen[0]}
        return usual if soc.gpu.is_cpu else self.grouped(ops, soc, usual)

    def block_columns(self, ops: ConvColumns, soc: Soc, blocks: int) -> ChoiceColumns:
        return self.default_columns(ops, soc, blocks)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = WinogradTiling.of(ops, soc, choice)
        width, cache = soc.gpu.vector_width, gpu_cache_bytes(soc)
        out_channels = t.padded_blocks * width
        odd = rest(t.side, 2) > 0  # those of stride 2, with transforms of their own
        effort = np.where(t.side < 6, 0.6, np.where(t.side < 8, 0.8, 1.0))
        effort = effort * t.points * t.tiles
        into, out_of = effort * t.in_blocks * t.parts, effort * t.out_blocks
        weights = self.storage.element_bytes * t.weight_points * ops.ic * out_channels
        scratch = 4.0 * (t.points_floats(width) + t.sums_floats(width))
        passes = ceil_div(t.computed, t.together)
        moved = byte_columns(self, ops, soc)
        moved_bytes = moved["input_bytes"] + moved["output_bytes"] + weights
        far = THIRD_LEVEL * cache
        return {
            "padded_macs": t.points * t.computed * ops.ic * out_channels,
            "input_transforms": into * ~odd,
            "output_transforms": out_of * ~odd,
            "strided_input_transforms": into * odd,
            "strided_output_transforms": out_of * odd,
            "weight_passes": t.points * t.padded_blocks * ops.ic * passes,
            "weights_streamed": beyond(weights, cache) * t.blocks,
            "weights_far": beyond(weights, far),
            "scratch_beyond": beyond(scratch, cache) / t.most * t.computed,
            "block_tiles": t.most,
            "waves": ceil_div(t.blocks, t.workers)
            if soc.gpu.is_cpu
            else rounds(_product_grid(t, soc, choice).groups, soc),
            "output_bytes": moved["output_bytes"],
            "output_far": beyond(moved["output_bytes"], far),
            **by_level("moved", moved_bytes, cache),
        }

    def weight_growth(self, ops: ConvColumns, choice: ChoiceColumns) -> Column:
        return filter_growth(ops, choice["tile"])

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = WinogradTiling.of(*self.alone(op, soc, choice)), soc.gpu.vector_width
        # A work-item's on a CPU, otherwise the image's: for points, and sums of `outs` blocks.
        points, sums = 4 * t.points_floats(width), 4 * t.sums_floats(width)
        scratch = {"points": points, "sums": sums * t.out_blocks}
        if soc.gpu.is_cpu:
            scratch = {"tiles": (points + sums) * t.parts * t.workers}
        return self.convolved(
            op,
            soc,
            *_launches(op, t, soc, choice),
            macros={
                **({} if soc.gpu.is_cpu else team_macros(_product_grid(t, soc, choice))),
                "SIDE": int(t.side[0]),
                "IN_PLACE": is_in_place(int(t.side[0]), soc.gpu),
                "TILE": choice["tile"],
                "STRIDE": op.stride.w,
                "TOGETHER": choice["together"],
                "OUTS": choice["outs"],
            },
            pack=lambda weight: _pack(_whole(weight, op, soc), width, int(t.side[0]), choice),
            scratch={name: int(size[0]) for name, size in scratch.items()},
        )


def _product_grid(t: WinogradTiling, soc: Soc, choice: Mapping[str, Any]) -> Grid:
    """Work-items of the products on a GPU: tiles multiplied together, by the blocks of points."""
    strips = np.floor(t.most / t.together)
    return Grid.of(strips, t.points * t.out_blocks, 1, soc, choice=choice, wide=WIDE)


def _launches(op: Conv2d, t: WinogradTiling, soc: Soc, choice: Choice) -> tuple[KernelLaunch, ...]:
    """The input's transform, the products and the output's transform.

    On a CPU all in one: a persistent work-item for every worker and part of the output channels.
    """
    most, tiles, in_blocks, out_blocks, parts, workers = (
        int(column[0])
        for column in (t.most, t.tiles, t.in_blocks, t.out_blocks, t.parts, t.workers)
    )
    counts = {"most": most, "tiles": tiles, "tiles_w": t.tiles_w}
    blocks = {
        "in_channels": _in_channels(op, soc),
        "in_blocks": in_blocks,
        "out_blocks": out_blocks,
    }
    before, after = input_args(op), {"out_h": op.output.h, "out_w": op.output.w}
    if soc.gpu.is_cpu:
        floats = t.points_floats(soc.gpu.vector_width) + t.sums_floats(soc.gpu.vector_width)
        grid = ((parts, workers), (1, 1))
        args, sizes = (*WEIGHTED, ScratchArg("tiles")), {"item_floats": floats, **counts, **blocks}
        return (launch("conv2d_winograd", grid, *args, **sizes, **before, **after),)
    source, target = ENDS
    points, sums, bias = ScratchArg("points"), ScratchArg("sums"), ConstantArg("bias")
    # A work-item transforms one channel of a tile.
    lanes = tiles * soc.gpu.vector_width
    for_input, for_output = item_grid(lanes, in_blocks, soc), item_grid(lanes, out_blocks, soc)
    for_product, product = _product_grid(t, soc, choice).sizes, {"most": most, **blocks}
    before = {"in_blocks": in_blocks, **before}
    return (
        launch("winograd_input", for_input, source, points, **counts, **before),
        launch("winograd_product", for_product, points, sums, ConstantArg("weight"), **product),
        launch("winograd_output", for_output, sums, target, bias, **counts, **after),
    )


def _in_channels(op: Conv2d, soc: Soc) -> int:
    """Input channels of the products: those of whole blocks on a GPU, which multiplies blocks."""
    return op.input.c if soc.gpu.is_cpu else round_up(op.input.c, soc.gpu.vector_width)


def _whole(weight: Array, op: Conv2d, soc: Soc) -> Array:
    """A filter with zeros for the input channels that products have beside its own."""
    beyond = _in_channels(op, soc) - weight.shape[1]
    return np.pad(weight, ((0, 0), (0, beyond), (0, 0), (0, 0)))


def _pack(weight: Array, width: int, side: int, choice: Choice) -> Array:
    """(oc, ic, k, k) -> [oc blocks / outs][point][ic][outs][lane of oc], flat.

    With eight points a side it is enlarged where it is smallest, which `SMALL` of the source takes
    back: there small weights would be too small for halves.
    """
    transform, outs = filter_transform(side, weight.shape[3]), choice["outs"]
    if side == 8:
        transform[SMALL_POINTS] *= 2.0 ** (choice["tile"] - 2)
    groups = -(-weight.shape[0] // (outs * width))
    packed = np.zeros((groups, len(transform) ** 2, weight.shape[1], outs, width), np.float32)
    for first, points in filter_points(weight, transform, width):
        group, out = divmod(first // width, outs)
        packed[group, :, :, out, : len(points)] = points.transpose(2, 1, 0)
    return packed.reshape(-1)
