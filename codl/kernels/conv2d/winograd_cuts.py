"""How a Winograd convolution of the GPU is cut: its tile, and blocks of tiles that fit caches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from codl.ir import columns
from codl.ir.columns import (
    Column,
)
from codl.ir.ops.convolution import (
    ConvColumns,
)
from codl.kernels import registers
from codl.kernels.base import Choice
from codl.kernels.feature_columns import (
    ChoiceColumns,
)
from codl.records.soc import GpuSide, Soc

#: Points a side by window and stride, each with another tile; see the source.
SIDES = {(3, 1): (4, 6, 8), (5, 1): (6, 8), (7, 1): (8,), (3, 2): (5, 9)}
#: Tiles that are multiplied at once on a CPU by one block of output channels, by vector width: as
#: many as registers hold sums. Fewer than `registers.FEWEST_SUMS` are for the smallest images.
TOGETHER = {16: (4, 8, 9, 12, 16, 20, 25), 8: (4, 8, 10, 12), 4: (4, 8)}
#: The most by several blocks, where the registers hold them.
MOST_TOGETHER = 14
#: Share of the second-level cache that the scratch memory of a block of tiles should take, and the
#: fewest tiles for which weights should be read.
SCRATCH_SHARE, FEWEST = 0.35, 16
#: What things cost on a CPU, in multiplications of vectors: an element of either transform; a pass
#: over a weight vector, and every tile that it is for; and the share more that all of it costs
#: where scratch memory fills the second-level cache.
TRANSFORM, PASS, WIDTH, STRAIN = 8, 0.2, 0.003, 0.1
#: The first pass over a weight vector costs so much more than others, and takes at least so long:
#: from the cache beyond the second, and from memory, where the weights are many times as large.
BEYOND, MEMORY, MANY = (1, 8), (1.5, 12), 12
#: Ops whose choices are compared at once: some megabytes of them.
AT_ONCE = 1024
#: Choices of each tile size that are worth trying.
TRIED = 8


@dataclass(frozen=True)
class WinogradTiling:
    """How convolutions are cut; all that the plan and the features have in common."""

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

    @classmethod
    def of(cls, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> WinogradTiling:
        """Columns shaped (ops), or (choices, ops) where the choices' are (choices, ops)."""
        tile, together, outs, limit = (
            np.asarray(choice[name], np.float64) for name in ("tile", "together", "outs", "most")
        )
        tiles_w, tiles = _tiles(ops, tile)
        units = float(soc.gpu.compute_units)
        limits = columns.ceil_div(tiles, limit)
        workers = np.minimum(units, limits) if soc.gpu.is_cpu and units > 1 else np.ones_like(tiles)
        # Blocks of equal size, as many for every worker.
        rounds = columns.ceil_div(limits, workers) if units > 1 else limits
        out_blocks = columns.ceil_div(ops.oc, soc.gpu.vector_width)
        return cls(
            side=(tile - 1) * ops.sw + ops.kw,
            tile=tile,
            tiles=tiles,
            tiles_w=tiles_w,
            together=together,
            outs=outs,
            most=columns.round_up(columns.ceil_div(tiles, rounds * workers), together),
            parts=np.minimum(np.floor(units / workers), columns.ceil_div(out_blocks, outs)),
            workers=workers,
            in_blocks=columns.ceil_div(ops.ic, soc.gpu.vector_width),
            out_blocks=out_blocks,
        )

    def first(self, width: int) -> WinogradCut:
        """How the first op is cut."""
        whole = {name: int(values.flat[0]) for name, values in vars(self).items()}
        points, sums = self.points_floats(width), self.sums_floats(width)
        return WinogradCut(
            **whole, points_floats=int(points.flat[0]), sums_floats=int(sums.flat[0])
        )

    @property
    def points(self) -> Column:
        return self.side**2

    @property
    def weight_points(self) -> Column:
        """Points of the filter: those of stride 2 for odd inputs are one."""
        return np.where(columns.rest(self.side, 2) > 0, (self.tile + 2) ** 2, self.points)

    @property
    def blocks(self) -> Column:
        return columns.ceil_div(self.tiles, self.most)

    @property
    def padded_blocks(self) -> Column:
        """Blocks of output channels that are multiplied: as many as fill the last `outs`."""
        return columns.round_up(self.out_blocks, self.outs)

    @property
    def computed(self) -> Column:
        """Tiles that are multiplied: every block is filled up to a multiple of `together`.

        Whole blocks are such multiples already.
        """
        return columns.round_up(self.tiles, self.together)

    def points_floats(self, width: int) -> Column:
        """Scratch for the transformed input of a block of tiles; `POINT_STRIDE` in the source."""
        return self.points * _odd(self.in_blocks * self.most) * width

    def sums_floats(self, width: int) -> Column:
        """Scratch for the sums of `outs` blocks of output channels; see `SUM_STRIDE`."""
        return self.outs * self.points * _odd(self.most) * width

    def cost(self, ops: ConvColumns, soc: Soc) -> Column:
        """Multiplications of vectors on a CPU, and what takes as long.

        A block of tiles reads its weights once from where they are, and then from the cache.
        """
        cache, width = soc.cpu.l2_cache_bytes, soc.gpu.vector_width
        vectors = ops.ic * self.padded_blocks
        spreading = registers.spreading(soc.gpu)
        a_tile = 1 + spreading / self.outs + max(PASS, spreading) / self.together
        products = self.computed * (a_tile + WIDTH * self.together)
        weight_bytes = 4 * self.weight_points * vectors * width
        few = weight_bytes <= MANY * cache
        more, least = (np.where(few, near, far) for near, far in zip(BEYOND, MEMORY, strict=True))
        first_passes = self.blocks * (more + np.maximum(0, least - self.together))
        products = products + first_passes * (weight_bytes > cache)
        transforms = TRANSFORM * self.tiles * (self.in_blocks + self.out_blocks)
        scratch_tiles = _odd(self.in_blocks * self.most)
        scratch_tiles += self.outs * _odd(self.most)
        filled = np.multiply(4 * width / cache * self.points, scratch_tiles, out=scratch_tiles)
        strained = 1 + STRAIN * np.minimum(1, filled, out=filled)
        result: Column = vectors * products
        result += transforms
        result *= self.points
        result *= strained
        return result


@dataclass(frozen=True)
class WinogradCut:
    """A `WinogradTiling` of one op, in whole numbers."""

    side: int
    tile: int
    tiles: int
    tiles_w: int
    together: int
    outs: int
    most: int
    parts: int
    workers: int
    in_blocks: int
    out_blocks: int
    points_floats: int
    sums_floats: int

    @property
    def points(self) -> int:
        return self.side**2


def _odd(sizes: Column) -> Column:
    """The same size, or one more: strides that are powers of two share the cache's sets."""
    result: Column = np.floor(sizes / 2)
    result *= 2
    result += 1
    return result


def _tiles(ops: ConvColumns, tile: Column) -> tuple[Column, Column]:
    """Tiles of a row, and of the output."""
    in_row = columns.ceil_div(ops.ow, tile)
    return in_row, in_row * columns.ceil_div(ops.oh, tile)


def choices(op: ConvColumns, soc: Soc) -> tuple[Choice, ...]:
    """The ways to cut one op that are worth trying, likely ones first."""
    found, cost = cuts(op, soc)
    tried: Counter[int] = Counter()
    kept = []
    for row in sorted(np.flatnonzero(np.isfinite(cost[:, 0])), key=lambda row: cost[row, 0]):
        choice = {name: int(rows[row, 0]) for name, rows in found.items()}
        tried[choice["tile"]] += 1
        if tried[choice["tile"]] <= TRIED:
            kept.append(choice)
    return tuple(kept)


def default_choice(ops: ConvColumns, soc: Soc, blocks: int | None = None) -> ChoiceColumns:
    """The first of `choices` for every op, or the first with so many blocks."""
    parts = []
    for first in range(0, len(ops), AT_ONCE):
        found, cost = _cuts(ops.take(slice(first, first + AT_ONCE)), soc, blocks)
        best = np.unravel_index(np.argmin(cost.reshape(-1, cost.shape[-1]), 0), cost.shape[:-1])
        at = (*best, np.arange(cost.shape[-1]))
        parts.append({name: np.broadcast_to(rows, cost.shape)[at] for name, rows in found.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def cuts(ops: ConvColumns, soc: Soc) -> tuple[dict[str, Column], Column]:
    """Ways to cut the tiles into blocks, by name, and what each costs, all shaped (cuts, ops).

    What is no way for an op, or not worth trying, costs infinitely much.
    """
    found, cost = _cuts(ops, soc)
    shape = (-1, cost.shape[-1])
    flat = {k: np.broadcast_to(rows, cost.shape).reshape(shape) for k, rows in found.items()}
    return flat, cost.reshape(shape)


def _cuts(
    ops: ConvColumns, soc: Soc, blocks: int | None = None
) -> tuple[dict[str, Column], Column]:
    """As `cuts`, shaped (sizes of tiles, tiles together, times these, ops) or 1 where all agree."""
    window = ops.kw + 100 * ops.sw
    sides = np.full((max(map(len, SIDES.values())), 1, 1, ops.kw.size), np.nan)
    for (size, stride), known in SIDES.items():
        sides[: len(known), ..., window == size + 100 * stride] = np.reshape(known, (-1, 1, 1, 1))
    tile = (sides - ops.kw) / ops.sw + 1
    tiles = _tiles(ops, tile)[1]
    if not soc.gpu.is_cpu:
        one = np.ones_like(tile)
        found = {"tile": tile, "together": 4 * one, "outs": one, "most": tiles}
        return found, np.where(np.isnan(tile), np.inf, np.abs(tile - 4))
    width = soc.gpu.vector_width
    tile_bytes = 4 * sides**2 * width * (columns.ceil_div(ops.ic, width) + 1)
    fitting = np.floor(SCRATCH_SHARE * soc.cpu.l2_cache_bytes / tile_bytes)
    fitting = np.minimum(np.maximum(FEWEST, fitting), tiles)
    pairs = np.array(_register_tiles(soc.gpu, blocks), np.float64)
    together, outs = pairs.T[..., None, None, None].swapaxes(1, 2)
    short = np.maximum(1, np.floor(fitting / together)) * together
    most = short * np.reshape((1.0, 4.0), (-1, 1))
    found = {"tile": tile, "together": together, "outs": outs, "most": most}
    cost = WinogradTiling.of(ops, soc, found).cost(ops, soc)
    few = (together * outs < registers.FEWEST_SUMS) & (together < tiles)
    return found, np.where(few | np.isnan(tile), np.inf, cost)


def _register_tiles(gpu: GpuSide, blocks: int | None) -> list[tuple[int, int]]:
    """Tiles that are multiplied at once, and the blocks of output channels that they are for."""
    counts = {1, registers.usual_blocks(gpu)} if blocks is None else {blocks}
    alone = [(together, 1) for together in TOGETHER[gpu.vector_width]]
    several = [own for own in registers.tiles(gpu, MOST_TOGETHER) if own[1] > 1]
    return [own for own in alone + several if own[1] in counts]
