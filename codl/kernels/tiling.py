"""Arithmetic of tiles, work-items and work-groups, used by all GPU variants.

Written for whole numbers, and for columns of them as `codl.ir.columns` has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import log2
from typing import Any, overload

import numpy as np

from codl.ir import columns
from codl.ir.columns import Column
from codl.ir.ops.base import Activation, Array
from codl.ir.types import BLOCKED, Storage
from codl.kernels.activation import activation_defines
from codl.kernels.architecture import most_items
from codl.records.soc import Soc

#: Work-items of a work-group on a device that runs them in lockstep, where its waves are no larger.
GROUP = 64
#: What idle lanes a work-group half or twice as wide as wished for is worth.
OCTAVE = 0.1
#: What a group costs beside its lanes, in these.
GROUP_LANES = 8
#: Work-items that every compute unit should get, so that none idles for long at the end.
ITEMS_PER_UNIT = 8
#: Channels of a texel.
TEXEL = 4


def power_of_two(value: int) -> int:
    """The largest that is at most `value`, 1 for less than that."""
    return 1 << max(value.bit_length() - 1, 0)


@overload
def ceil_div(a: int, b: int) -> int: ...
@overload
def ceil_div(a: Column | float, b: Column | float) -> Column: ...
def ceil_div(a: Column | float, b: Column | float) -> Column | int:
    return -(-a // b) if isinstance(a, int) and isinstance(b, int) else columns.ceil_div(a, b)


@overload
def round_up(a: int, b: int) -> int: ...
@overload
def round_up(a: Column | float, b: Column | float) -> Column: ...
def round_up(a: Column | float, b: Column | float) -> Column | int:
    return ceil_div(a, b) * b


def base_defines(
    activation: Activation, soc: Soc, storage: Storage = BLOCKED
) -> dict[str, int | float | str]:
    """The macros of `common.cl`; in images a block of channels is a texel."""
    width = TEXEL if storage.layout == "image" else soc.gpu.vector_width
    defines = {"V": width, **activation_defines(activation)}
    if storage.element == "float16":
        defines["HALF"] = 1
    return {**defines, "ONE_ITEM": 1} if soc.gpu.is_cpu else defines


@overload
def waves(items: int, soc: Soc) -> float: ...
@overload
def waves(items: Column, soc: Soc) -> Column: ...
def waves(items: Column | int, soc: Soc) -> Column | float:
    """Rounds in which the compute units get through `items` work-items in a row."""
    return rounds(ceil_div(items, 1 if soc.gpu.is_cpu else group_items(soc)), soc)


@overload
def rounds(groups: int, soc: Soc) -> float: ...
@overload
def rounds(groups: Column, soc: Soc) -> Column: ...
def rounds(groups: Column | int, soc: Soc) -> Column | float:
    """Rounds in which the compute units get through `groups` work-groups."""
    return 1.0 * ceil_div(groups, soc.gpu.compute_units)


@overload
def strip(tiles: int, others: int, most: int, soc: Soc) -> int: ...
@overload
def strip(tiles: Column, others: Column, most: Column | float, soc: Soc) -> Column: ...
def strip(
    tiles: Column | int, others: Column | int, most: Column | float, soc: Soc
) -> Column | int:
    """Consecutive tiles for one work-item, at most `most`, where `others` items share each strip.

    On a CPU a long strip saves work-groups (10 ns each) and keeps its input in the cache, but there
    must be enough strips for all compute units. A GPU wants as many work-items as there are.
    """
    if not soc.gpu.is_cpu:
        return 1 + 0 * tiles
    units = soc.gpu.compute_units
    wanted = 1 if units == 1 else ceil_div(ITEMS_PER_UNIT * units, others)
    fitting = ceil_div(tiles, wanted)
    if isinstance(fitting, int):
        return max(1, min(int(most), fitting))
    result: Column = np.maximum(1, np.minimum(most, fitting))
    return result


def group_items(soc: Soc) -> int:
    """Work-items of the usual work-group: whole waves, as many as the device has room for."""
    return min(max(GROUP, soc.gpu.wave_size), most_items(soc.gpu))


@lru_cache(maxsize=1 << 16)
def group_shape(
    strips: int, others: int, *, items: int, wave: int, deep: int = 1, wide: int = GROUP
) -> tuple[int, int]:
    """Width and height of a work-group for `strips` x `others` work-items: `items` at most.

    The third dimension has `deep`. Its height is a part of `others`, so kernels need not look
    whether a work-item exists there. Few lanes of waves idle; among shapes with as few, the one
    closest to `wide` is taken: neighbours in the first dimension read neighbouring pixels.
    """
    room, others = max(1, items // deep), max(1, others)
    highs = [high for high in range(1, min(room, others) + 1) if others % high == 0]
    shapes = [(width, high) for high in highs for width in _widths(strips, room // high)]

    def cost(shape: tuple[int, int]) -> float:
        width, high = shape
        lanes = ceil_div(strips, width) * (others // high)
        lanes *= round_up(width * high * deep, wave) + GROUP_LANES
        return lanes * (1 + OCTAVE * abs(log2(width / wide)))

    return min(shapes, key=cost)


def _widths(strips: int, most: int) -> Iterable[int]:
    """All strips where they fit, else powers of two: groups begin where vectors of memory do."""
    return (strips,) if strips <= most else (1 << (most.bit_length() - 1),)


def group_shapes(
    strips: Any, others: Any, teams: Any, soc: Soc, *, wide: int = GROUP
) -> tuple[Column, Column]:
    """The same for columns, as a device wants it where so many `teams` share the sums of a tile.

    With teams half as wide.
    """
    columns_of = np.broadcast_arrays(strips, others, teams)
    flat = np.stack([np.ravel(column) for column in columns_of]).astype(np.int64)
    cases, places = np.unique(flat, axis=1, return_inverse=True)
    shapes = [
        group_shape(
            strips, others, items=group_items(soc), wave=soc.gpu.wave_size, deep=teams,
            wide=wide if teams == 1 else max(1, wide // 2),
        )
        for strips, others, teams in cases.T.tolist()
    ]  # fmt: skip
    width, high = np.array(shapes, np.float64)[np.ravel(places)].T
    shape = columns_of[0].shape
    return width.reshape(shape), high.reshape(shape)


def item_grid(
    strips: int, others: int, soc: Soc, *, shape: tuple[int, int] | None = None
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Global and local size for `strips` x `others` work-items, and how many of them have work.

    On a CPU `others` (the channel blocks) is the fast dimension, so that consecutive work-items
    reuse a strip of the input; on a GPU neighbours take neighbouring pixels, and work-groups have
    the `shape` that is told, or the one that fits best.
    """
    if soc.gpu.is_cpu:
        return (others, strips), (1, 1), (others, strips)
    items, wave = group_items(soc), soc.gpu.wave_size
    width, high = shape or group_shape(strips, others, items=items, wave=wave)
    launched = round_up(strips, width), round_up(others, high)
    return launched, (width, high), (strips, others)


def grid_rounds(strips: Any, others: Any, soc: Soc) -> Any:
    """The waves of such a grid, of whole work-groups."""
    if soc.gpu.is_cpu:
        return rounds(strips * others, soc)
    width, high = group_shapes(strips, others, 1, soc)
    return rounds(ceil_div(strips, width) * (others / high), soc)


def pack_bias(bias: Array, width: int, *, blocks_of_zeros: int = 0) -> Array:
    """The bias as whole blocks of channels, followed by blocks of zeros."""
    size = (ceil_div(bias.size, width) + blocks_of_zeros) * width
    packed = np.zeros(size, np.float32)
    packed[: bias.size] = bias.reshape(-1)
    return packed
