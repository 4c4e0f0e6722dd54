"""Winograd convolution on the GPU: products at points of tiles, fewer than the window's taps.

`winograd.cl` has the transforms of inputs and sums. (Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest, round_up
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.records.soc import GpuSide, Soc
from codl.kernels import base, tiling
from codl.kernels.base import WEIGHTED, Choice, ConstantArg, KernelLaunch, KernelPlan, ScratchArg
from codl.kernels.conv2d.gpu import WIDE, GpuConv, byte_columns, team_macros
from codl.kernels.kernel import REAL_GPU, Grid, launch
from codl.kernels.tiling import (
    THIRD_LEVEL,
    ChoiceColumns,
    beyond,
    by_level,
    first_choice,
    gpu_cache_bytes,
    in_order,
    is_card,
    least,
    rounds,
    unique,
)

#: Points per side by window and stride, one for each tile size; see the source.
SIDES = {(3, 1): (4, 6, 8), (5, 1): (6, 8), (7, 1): (8,), (3, 2): (5, 9)}
#: Interpolation points of stride 1: the first SIDE - 1, and infinity.
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
#: The most points per side on a phone's GPU, and the most kept in registers: more means as many
#: pending loads, each with an address.
MOST_SIDE, MOST_IN_REGISTERS = 8, 6


def is_in_place(side: int, gpu: GpuSide) -> bool:
    """True where a half-transformed tile is kept in memory, and not in registers."""
    return side > MOST_IN_REGISTERS and not (gpu.is_cpu or is_card(gpu))


def refuse_window(op: Conv2d) -> str | None:
    if op.kernel == (3, 3) and op.stride == op.dilation == (1, 1) and op.groups == 1:
        return None
    return (
        "Winograd needs kernel=3x3 stride=1 dilation=1 groups=1, got "
        f"kernel={op.kernel} stride={op.stride} dilation={op.dilation} groups={op.groups}"
    )


def filter_transform(side: int, window: int) -> NDArray[np.float64]:
    """Matrix (points, taps) that transforms a filter along one axis; see `TO_POINTS`."""
    if side == 5:
        return np.array([[1, 0, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0]], np.float64)
    if side == 9:
        taps = [[1, 0, 0], [1, 0, 1], [1, 0, -1], [1, 0, 2], [0, 0, 1], [0, 1, 0]]
        return np.array(taps, np.float64) / [[2], [-2], [-6], [6], [1], [1]]
    points = np.array(POINTS[: side - 1])
    # The product of distances to the other points; the input transform has the sign at 0.
    scale = np.array([np.prod(p - points[points != p]) for p in points])
    scale[0] = abs(scale[0])
    rows = points[:, None] ** np.arange(window) / scale[:, None]
    return np.vstack([rows, np.eye(window)[-1]])


def filter_points(weight: Array, transform: NDArray[np.float64]) -> Array:
    """(oc, ic, k, k) -> (oc, ic, points), some output channels at a time."""
    both, (outs, ins) = np.kron(transform, transform).T, weight.shape[:2]
    points = np.empty((outs, ins, both.shape[1]), np.float32)
    for first in range(0, outs, 64):
        taps = weight[first : first + 64].reshape(-1, both.shape[0])
        points[first : first + 64] = (taps @ both).reshape(-1, ins, both.shape[1])
    return points


def _filter_points(tile: Column, side: Column) -> Column:
    """Points of a filter; with stride 2, points of odd inputs are shared."""
    return np.where(rest(side, 2) > 0, (tile + 2) ** 2, side**2)


class OfPoints:
    """Base of kernels that store transformed filters; one of their choices is the `tile`."""

    transforms_weights = True

    def weight_growth(self, ops: ConvColumns, choice: ChoiceColumns) -> Column:
        """Transformed points per filter element, shaped (ops)."""
        tile = choice["tile"]
        result: Column = _filter_points(tile, (tile - 1) * ops.sw + ops.kw) / (ops.kh * ops.kw)
        return result


def input_args(op: Conv2d) -> dict[str, int]:
    return {"in_h": op.input.h, "in_w": op.input.w, "pad_top": op.pad.top, "pad_left": op.pad.left}


@dataclass(frozen=True)
class WinogradTiling:
    """The tiles of convolutions, as used by plans and features.

    Columns are shaped (ops), or (..., ops) as the choices.
    """

    side: Column
    tile: Column
    tiles: Column
    tiles_w: Column
    together: Column
    outs: Column
    most: Column
    parts: Column
    workers: Column
    in_blocks: Column
    out_blocks: Column
    soc: Soc
    teams: Any

    @classmethod
    def of(cls, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> WinogradTiling:
        tile, together, outs = choice["tile"], choice["together"], choice["outs"]
        tiles_w, tiles = tile_counts(ops, tile)
        units = float(soc.gpu.compute_units)
        limits = ceil_div(tiles, choice["most"])
        workers = np.minimum(units, limits) if soc.gpu.is_cpu and units > 1 else np.ones_like(tiles)
        # Blocks of equal size, equally many per worker.
        rounds = ceil_div(limits, workers) if units > 1 else limits
        out_blocks = ceil_div(ops.oc, soc.gpu.vector_width)
        return cls(
            side=(tile - 1) * ops.sw + ops.kw,
            tile=tile,
            tiles=tiles,
            tiles_w=tiles_w,
            together=together,
            outs=outs,
            most=round_up(ceil_div(tiles, rounds * workers), together),
            parts=np.minimum(np.floor(units / workers), ceil_div(out_blocks, outs)),
            workers=workers,
            in_blocks=ceil_div(ops.ic, soc.gpu.vector_width),
            out_blocks=out_blocks,
            soc=soc,
            teams=choice.get("teams", 1),
        )

    @property
    def grid(self) -> Grid:
        """The grid of the products on a GPU: groups of tiles, by blocks of points."""
        strips, others = np.floor(self.most / self.together), self.points * self.out_blocks
        return Grid.of(strips, others, 1, self.soc, choice={"teams": self.teams}, wide=WIDE)

    @property
    def points(self) -> Column:
        return self.side**2

    @property
    def weight_points(self) -> Column:
        return _filter_points(self.tile, self.side)

    @property
    def blocks(self) -> Column:
        return ceil_div(self.tiles, self.most)

    @property
    def padded_blocks(self) -> Column:
        """Multiplied blocks of output channels: rounded up to a multiple of `outs`."""
        return round_up(self.out_blocks, self.outs)

    @property
    def computed(self) -> Column:
        """Multiplied tiles: rounded up to a multiple of `together`, as whole blocks are."""
        return round_up(self.tiles, self.together)

    def points_floats(self, width: int) -> Column:
        """Scratch floats for the transformed input of a block of tiles (`POINT_STRIDE`)."""
        return self.points * odd(self.in_blocks * self.most) * width

    def sums_floats(self, width: int) -> Column:
        """Scratch floats for sums of `outs` blocks of output channels (`SUM_STRIDE`)."""
        return self.outs * self.points * odd(self.most) * width


def tile_counts(ops: ConvColumns, tile: Column) -> tuple[Column, Column]:
    """Tiles of a row, and tiles of the output."""
    in_row = ceil_div(ops.ow, tile)
    return in_row, in_row * ceil_div(ops.oh, tile)


def sides_of(ops: ConvColumns) -> Column:
    """Points per side that each op can use, shaped (sizes, 1, 1, ops), padded with NaN."""
    window = ops.kw + 100 * ops.sw
    sides = np.full((max(map(len, SIDES.values())), 1, 1, ops.kw.size), np.nan)
    for (size, stride), of_window in SIDES.items():
        here = window == size + 100 * stride
        sides[: len(of_window), ..., here] = np.reshape(of_window, (-1, 1, 1, 1))
    return sides


def odd(sizes: Column) -> Column:
    """The size made odd, because strides of powers of two share cache sets."""
    result: Column = np.floor(sizes / 2)
    result *= 2
    result += 1
    return result


# On a CPU: blocks of tiles that fit its caches, and sums that fit its registers.


#: Tiles multiplied together by one block of output channels, by vector width: as many as registers
#: hold sums. Fewer than `tiling.FEWEST_SUMS` are for the smallest images.
TOGETHER = {16: (4, 8, 9, 12, 16, 20, 25), 8: (4, 8, 10, 12), 4: (4, 8)}
#: The most tiles with several blocks, where registers hold them.
MOST_TOGETHER = 14
#: Share of the second-level cache for the scratch memory of a block of tiles, and the fewest tiles
#: per read of the weights.
SCRATCH_SHARE, FEWEST = 0.35, 16
#: Costs in multiplications of vectors: an element of either transform; a pass over a weight vector,
#: and each tile of the pass; and the relative extra if scratch memory fills the cache.
TRANSFORM, PASS, WIDTH, STRAIN = 8, 0.2, 0.003, 0.1
#: Extra cost, and least cost, of the first pass over a weight vector: from beyond the second-level
#: cache, and from memory, where weights are many times larger than the cache.
BEYOND, MEMORY, MANY = (1, 8), (1.5, 12), 12


def ranked_cuts(
    ops: ConvColumns, soc: Soc, blocks: int | None = None
) -> tuple[ChoiceColumns, Column]:
    """Choices of tiles and blocks by name, and their cost; infinite where invalid.

    Shaped (sizes of tiles, tiles together, factors of these, ops), or 1 where all agree. `blocks`,
    if given, fixes the output blocks that share a tile.
    """
    sides = sides_of(ops)
    tile = (sides - ops.kw) / ops.sw + 1
    tiles = tile_counts(ops, tile)[1]
    width = soc.gpu.vector_width
    tile_bytes = 4 * sides**2 * width * (ceil_div(ops.ic, width) + 1)
    fitting = np.floor(SCRATCH_SHARE * soc.cpu.l2_cache_bytes / tile_bytes)
    fitting = np.minimum(np.maximum(FEWEST, fitting), tiles)
    pairs = np.array(_register_tiles(soc.gpu, blocks), np.float64)
    together, outs = pairs.T[..., None, None, None].swapaxes(1, 2)
    short = np.maximum(1, np.floor(fitting / together)) * together
    most = short * np.reshape((1.0, 4.0), (-1, 1))
    choices = {"tile": tile, "together": together, "outs": outs, "most": most}
    cost = _cost(WinogradTiling.of(ops, soc, choices), ops, soc)
    few = (together * outs < tiling.FEWEST_SUMS) & (together < tiles)
    return choices, np.where(few | np.isnan(tile), np.inf, cost)


def _register_tiles(gpu: GpuSide, blocks: int | None) -> list[tuple[int, int]]:
    """Pairs of tiles multiplied together and their blocks of output channels."""
    counts = {1, tiling.usual_blocks(gpu)} if blocks is None else {blocks}
    alone = [(together, 1) for together in TOGETHER[gpu.vector_width]]
    several = [pair for pair in tiling.register_tiles(gpu, MOST_TOGETHER) if pair[1] > 1]
    return [pair for pair in alone + several if pair[1] in counts]


def _cost(cut: WinogradTiling, ops: ConvColumns, soc: Soc) -> Column:
    """Cost in multiplications of vectors.

    A block of tiles reads its weights once from memory or a farther cache, and then from the cache.
    """
    cache, width = soc.cpu.l2_cache_bytes, soc.gpu.vector_width
    vectors = ops.ic * cut.padded_blocks
    spreading = tiling.spreading(soc.gpu)
    a_tile = 1 + spreading / cut.outs + max(PASS, spreading) / cut.together
    products = cut.computed * (a_tile + WIDTH * cut.together)
    weight_bytes = 4 * cut.weight_points * vectors * width
    few = weight_bytes <= MANY * cache
    more, least = (np.where(few, near, far) for near, far in zip(BEYOND, MEMORY, strict=True))
    first_passes = cut.blocks * (more + np.maximum(0, least - cut.together))
    products = products + first_passes * (weight_bytes > cache)
    transforms = TRANSFORM * cut.tiles * (cut.in_blocks + cut.out_blocks)
    scratch_tiles = odd(cut.in_blocks * cut.most)
    scratch_tiles += cut.outs * odd(cut.most)
    filled = np.multiply(4 * width / cache * cut.points, scratch_tiles, out=scratch_tiles)
    strained = 1 + STRAIN * np.minimum(1, filled, out=filled)
    result: Column = vectors * products
    result += transforms
    result *= cut.points
    result *= strained
    return result


# The kernels.


#: Points with much smaller filter values than others, in tiles of eight points a side.
SMALL_POINTS = slice(3, 5)
#: Ops whose choices are ranked together, in some megabytes.
AT_ONCE = 1024
#: Choices to try per tile size.
TRIED = 8
#: Tiles that a work-item of a GPU multiplies together.
GPU_TOGETHER = 4


class GpuWinograd(OfPoints, GpuConv):
    """Square windows; 3x3 windows take 16, 36 or 64 products for 4, 16 or 36 outputs."""

    base_name = "gpu_winograd"
    source = "conv2d/gpu_winograd.cl"
    #: No fused add on a CPU, where reading the residual by tiles costs more than the add.
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

    def ranked(self, ops: ConvColumns, soc: Soc) -> tuple[ChoiceColumns, Column]:
        """Choices of the tile size, of tiles and output blocks multiplied together, and of the most
        tiles of a block.
        """
        if soc.gpu.is_cpu:
            return ranked_cuts(ops, soc)
        tile = (sides_of(ops) - ops.kw) / ops.sw + 1
        ones = np.ones_like(tile)
        choices = {"tile": tile, "together": GPU_TOGETHER * ones, "outs": ones}
        order = np.where(np.isnan(tile), np.inf, np.abs(tile - 4))
        order = np.where((sides_of(ops) <= MOST_SIDE) | is_card(soc.gpu), order, np.inf)
        return {**choices, "most": tile_counts(ops, tile)[1]}, order

    def cut(self, ops: ConvColumns, soc: Soc, choice: Any) -> WinogradTiling:
        return WinogradTiling.of(ops, soc, choice)

    def team_blocks(self, ops: ConvColumns) -> Column:
        return ceil_div(ops.ic, 4)

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        if not soc.gpu.is_cpu:
            return super().choices(op, soc)
        tried: Counter[int] = Counter()
        likely, ops = [], ConvColumns.of([op])
        for choice in in_order(*self.ranked(ops, soc)):
            tried[choice["tile"]] += 1
            if tried[choice["tile"]] <= TRIED:
                likely.append(choice)
        best = (ranked_cuts(ops, soc, n) for n in tiling.block_counts(soc.gpu))
        return unique([*likely, *(first_choice(least(*cuts)) for cuts in best)])

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        firsts = range(0, len(ops), AT_ONCE)
        parts = [ops.take(slice(first, first + AT_ONCE)) for first in firsts]
        chosen = [least(*self.ranked(part, soc)) for part in parts]
        usual = {name: np.concatenate([part[name] for part in chosen]) for name in chosen[0]}
        return self.with_teams(ops, soc, usual)

    def counts(self, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> FeatureColumns:
        t = WinogradTiling.of(ops, soc, choice)
        width, cache = soc.gpu.vector_width, gpu_cache_bytes(soc)
        out_channels = t.padded_blocks * width
        odd = rest(t.side, 2) > 0  # tiles of stride 2 have transforms of their own
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
            else rounds(t.grid.groups, soc),
            "output_bytes": moved["output_bytes"],
            "output_far": beyond(moved["output_bytes"], far),
            **by_level("moved", moved_bytes, cache),
        }

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = WinogradTiling.of(*self.alone(op, soc, choice)), soc.gpu.vector_width
        # Per work-item on a CPU, else per image: points, and sums of `outs` blocks.
        points, sums = 4 * t.points_floats(width), 4 * t.sums_floats(width)
        scratch = {"points": points, "sums": sums * t.out_blocks}
        if soc.gpu.is_cpu:
            scratch = {"tiles": (points + sums) * t.parts * t.workers}
        return self.convolved(
            op,
            soc,
            *_launches(op, t, soc),
            macros={
                **({} if soc.gpu.is_cpu else team_macros(t.grid)),
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


def _launches(op: Conv2d, t: WinogradTiling, soc: Soc) -> tuple[KernelLaunch, ...]:
    """Launches of the input transform, the products and the output transform.

    On a CPU one kernel does all: a persistent work-item per worker and part of the output channels.
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
    source, target = base.ENDS
    points, sums, bias = ScratchArg("points"), ScratchArg("sums"), ConstantArg("bias")
    # A work-item transforms one channel of one tile.
    lanes = tiles * soc.gpu.vector_width
    for_input, for_output = (
        Grid.of(lanes, in_blocks, 1, soc).sizes,
        Grid.of(lanes, out_blocks, 1, soc).sizes,
    )
    for_product, product = t.grid.sizes, {"most": most, **blocks}
    before = {"in_blocks": in_blocks, **before}
    return (
        launch("winograd_input", for_input, source, points, **counts, **before),
        launch("winograd_product", for_product, points, sums, ConstantArg("weight"), **product),
        launch("winograd_output", for_output, sums, target, bias, **counts, **after),
    )


def _in_channels(op: Conv2d, soc: Soc) -> int:
    """Input channels of the products; on a GPU whole blocks."""
    return op.input.c if soc.gpu.is_cpu else round_up(op.input.c, soc.gpu.vector_width)


def _whole(weight: Array, op: Conv2d, soc: Soc) -> Array:
    """A filter padded with zeros to the input channels of the products."""
    beyond = _in_channels(op, soc) - weight.shape[1]
    return np.pad(weight, ((0, 0), (0, beyond), (0, 0), (0, 0)))


def _pack(weight: Array, width: int, side: int, choice: Choice) -> Array:
    """(oc, ic, k, k) -> [oc blocks / outs][point][ic][outs][lane of oc], flat.

    With eight points a side, the smallest values are scaled up against float16 underflow; `SMALL`
    of the source reverses it.
    """
    transform, outs = filter_transform(side, weight.shape[3]), choice["outs"]
    if side == 8:
        transform[SMALL_POINTS] *= 2.0 ** (choice["tile"] - 2)
    groups = -(-weight.shape[0] // (outs * width))
    packed = np.zeros((groups, len(transform) ** 2, weight.shape[1], outs, width), np.float32)
    points = filter_points(weight, transform)
    for first in range(0, len(points), width):
        group, out = divmod(first // width, outs)
        some = points[first : first + width]
        packed[group, :, :, out, : len(some)] = some.transpose(2, 1, 0)
    return packed.reshape(-1)
