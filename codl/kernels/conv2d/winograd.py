"""Winograd convolution on the GPU: transforms of filters, and how outputs are cut into tiles.

`winograd.cl` has the transforms of inputs and of sums. (Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, ceil_div, rest, round_up
from codl.ir.ops.base import Array
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.kernels.architecture import is_card
from codl.records.soc import GpuSide, Soc

#: Points a side by window and stride, each with another tile; see the source.
SIDES = {(3, 1): (4, 6, 8), (5, 1): (6, 8), (7, 1): (8,), (3, 2): (5, 9)}
#: Where the transforms of stride 1 interpolate, infinity aside: the first SIDE - 1.
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
#: Points a side that a phone's GPU transforms at most, and those of which it has all in registers:
#: more are so many loads on their way, each with an address.
MOST_SIDE, MOST_IN_REGISTERS = 8, 6


def is_in_place(side: int, gpu: GpuSide) -> bool:
    """Whether a tile that is half way transformed lies in memory, and not in registers."""
    return side > MOST_IN_REGISTERS and not (gpu.is_cpu or is_card(gpu))


def refuse_window(op: Conv2d) -> str | None:
    """Why an op has no window of 3x3 that takes every pixel."""
    if op.kernel == (3, 3) and op.stride == op.dilation == (1, 1) and op.groups == 1:
        return None
    return (
        "Winograd needs kernel=3x3 stride=1 dilation=1 groups=1, got "
        f"kernel={op.kernel} stride={op.stride} dilation={op.dilation} groups={op.groups}"
    )


def filter_transform(side: int, window: int) -> NDArray[np.float64]:
    """From the taps of a window to the points of the filter, in one dimension; see `TO_POINTS`."""
    if side == 5:
        return np.array([[1, 0, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0]], np.float64)
    if side == 9:
        taps = [[1, 0, 0], [1, 0, 1], [1, 0, -1], [1, 0, 2], [0, 0, 1], [0, 1, 0]]
        return np.array(taps, np.float64) / [[2], [-2], [-6], [6], [1], [1]]
    points = np.array(POINTS[: side - 1])
    # What the other points' polynomial is at each; the input's transform has the sign at 0.
    scale = np.array([np.prod(p - points[points != p]) for p in points])
    scale[0] = abs(scale[0])
    rows = points[:, None] ** np.arange(window) / scale[:, None]
    return np.vstack([rows, np.eye(window)[-1]])


def filter_points(
    weight: Array, transform: NDArray[np.float64], together: int = 64
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """(oc, ic, k, k) -> the first of some output channels, and their (oc, ic, points).

    At most `together` at a time, as their copies are large.
    """
    both, (outs, ins) = np.kron(transform, transform).T, weight.shape[:2]
    for first in range(0, outs, together):
        taps = weight[first : first + together].astype(np.float64).reshape(-1, both.shape[0])
        yield first, (taps @ both).reshape(-1, ins, both.shape[1])


def _filter_points(tile: Column, side: Column) -> Column:
    """Points of a filter: those of stride 2 for odd inputs are one."""
    return np.where(rest(side, 2) > 0, (tile + 2) ** 2, side**2)


def filter_growth(ops: ConvColumns, tile: Column) -> Column:
    """How many times as many points a filter has as elements, shaped (ops)."""
    result: Column = _filter_points(tile, (tile - 1) * ops.sw + ops.kw) / (ops.kh * ops.kw)
    return result


def input_args(op: Conv2d) -> dict[str, int]:
    """What the transform of an input is told of it."""
    return {"in_h": op.input.h, "in_w": op.input.w, "pad_top": op.pad.top, "pad_left": op.pad.left}


@dataclass(frozen=True)
class WinogradTiling:
    """How convolutions are cut; all that the plan and the features have in common.

    Columns shaped (ops), or (..., ops) where the choices' are.
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

    @classmethod
    def of(cls, ops: ConvColumns, soc: Soc, choice: Mapping[str, Column]) -> WinogradTiling:
        tile, together, outs = choice["tile"], choice["together"], choice["outs"]
        tiles_w, tiles = tile_counts(ops, tile)
        units = float(soc.gpu.compute_units)
        limits = ceil_div(tiles, choice["most"])
        workers = np.minimum(units, limits) if soc.gpu.is_cpu and units > 1 else np.ones_like(tiles)
        # Blocks of equal size, as many for every worker.
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
        )

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
        """Blocks of output channels that are multiplied: as many as fill the last `outs`."""
        return round_up(self.out_blocks, self.outs)

    @property
    def computed(self) -> Column:
        """Tiles that are multiplied: every block is filled up to a multiple of `together`.

        Whole blocks are such multiples already.
        """
        return round_up(self.tiles, self.together)

    def points_floats(self, width: int) -> Column:
        """Scratch for the transformed input of a block of tiles; `POINT_STRIDE` in the source."""
        return self.points * odd(self.in_blocks * self.most) * width

    def sums_floats(self, width: int) -> Column:
        """Scratch for the sums of `outs` blocks of output channels; see `SUM_STRIDE`."""
        return self.outs * self.points * odd(self.most) * width


def tile_counts(ops: ConvColumns, tile: Column) -> tuple[Column, Column]:
    """Tiles of a row, and of the output."""
    in_row = ceil_div(ops.ow, tile)
    return in_row, in_row * ceil_div(ops.oh, tile)


def sides_of(ops: ConvColumns) -> Column:
    """Points a side that each op may have, shaped (sizes, 1, 1, ops); NaN where it has fewer."""
    window = ops.kw + 100 * ops.sw
    sides = np.full((max(map(len, SIDES.values())), 1, 1, ops.kw.size), np.nan)
    for (size, stride), of_window in SIDES.items():
        here = window == size + 100 * stride
        sides[: len(of_window), ..., here] = np.reshape(of_window, (-1, 1, 1, 1))
    return sides


def odd(sizes: Column) -> Column:
    """The same size, or one more: strides that are powers of two share the cache's sets."""
    result: Column = np.floor(sizes / 2)
    result *= 2
    result += 1
    return result
