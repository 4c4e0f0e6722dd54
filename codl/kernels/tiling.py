"""The arithmetic of cutting work into tiles and work-items that all GPU variants share."""

from __future__ import annotations

from codl.ir.ops.base import Activation
from codl.ir.types import BLOCKED, Storage
from codl.kernels.activation import activation_defines
from codl.records.soc import Soc

#: Work-items of a work-group on a device that runs them in lockstep.
GROUP = 64
#: Work-items that every compute unit should get, so that none idles for long at the end.
ITEMS_PER_UNIT = 8


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return ceil_div(a, b) * b


def base_defines(
    activation: Activation, soc: Soc, storage: Storage = BLOCKED
) -> dict[str, int | float | str]:
    """The macros of `common.cl`."""
    defines = {"V": soc.gpu.vector_width, **activation_defines(activation)}
    if storage.element == "float16":
        defines["HALF"] = 1
    return {**defines, "ONE_ITEM": 1} if soc.gpu.is_cpu else defines


def waves(items: int, soc: Soc) -> float:
    """Rounds in which the compute units get through `items` work-items."""
    per_unit = 1 if soc.gpu.is_cpu else GROUP
    return float(ceil_div(ceil_div(items, per_unit), soc.gpu.compute_units))


def strip(tiles: int, others: int, most: int, soc: Soc) -> int:
    """Consecutive tiles for one work-item, at most `most`, where `others` items share each strip.

    On a CPU a long strip saves work-groups (10 ns each) and keeps its input in the cache, but there
    must be enough strips for all compute units. A GPU wants as many work-items as there are.
    """
    if not soc.gpu.is_cpu:
        return 1
    wanted = ceil_div(ITEMS_PER_UNIT * soc.gpu.compute_units, others)
    if soc.gpu.compute_units == 1:
        wanted = 1
    return max(1, min(most, ceil_div(tiles, wanted)))


def item_grid(strips: int, others: int, soc: Soc) -> tuple[tuple[int, int], tuple[int, int]]:
    """Global and local size for `strips` x `others` work-items.

    On a CPU `others` (the channel blocks) is the fast dimension, so that consecutive work-items
    reuse a strip of the input; on a GPU neighbours take neighbouring pixels.
    """
    if soc.gpu.is_cpu:
        return (others, strips), (1, 1)
    size = min(GROUP, soc.gpu.max_work_group_size)
    return (round_up(strips, size), others), (size, 1)
