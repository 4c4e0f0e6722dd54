"""Arithmetic of tiles, work-items and work-groups, used by all GPU variants.

Written for whole numbers, and for columns of them as `codl.ir.columns` has them.
"""

from __future__ import annotations

from typing import overload

import numpy as np

from codl.ir import columns
from codl.ir.columns import Column
from codl.ir.ops.base import Activation, Array
from codl.ir.types import BLOCKED, Storage
from codl.kernels.activation import activation_defines
from codl.records.soc import Soc

#: Work-items of a work-group on a device that runs them in lockstep.
GROUP = 64
#: Work-items that every compute unit should get, so that none idles for long at the end.
ITEMS_PER_UNIT = 8
#: Channels of a texel.
TEXEL = 4


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
    """Rounds in which the compute units get through `items` work-items."""
    groups = ceil_div(items, 1 if soc.gpu.is_cpu else GROUP)
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


def item_grid(strips: int, others: int, soc: Soc) -> tuple[tuple[int, int], tuple[int, int]]:
    """Global and local size for `strips` x `others` work-items.

    On a CPU `others` (the channel blocks) is the fast dimension, so that consecutive work-items
    reuse a strip of the input; on a GPU neighbours take neighbouring pixels.
    """
    if soc.gpu.is_cpu:
        return (others, strips), (1, 1)
    size = min(GROUP, soc.gpu.max_work_group_size)
    return (round_up(strips, size), others), (size, 1)


def pack_bias(bias: Array, width: int, *, blocks_of_zeros: int = 0) -> Array:
    """The bias as whole blocks of channels, followed by blocks of zeros."""
    size = (ceil_div(bias.size, width) + blocks_of_zeros) * width
    packed = np.zeros(size, np.float32)
    packed[: bias.size] = bias.reshape(-1)
    return packed
