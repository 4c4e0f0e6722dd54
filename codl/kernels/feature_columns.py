"""Features shared by kernels, over columns of ops: vector steps, cache misses, and choices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from codl.ir.columns import Column, FeatureColumns, rest
from codl.ir.records.soc import Soc
from codl.ir.records.tuned import Choice


def halvings(sizes: Column, width: int) -> Column:
    """Steps through `sizes` elements: vectors of `width`, then ever narrower ones for the rest."""
    steps = np.floor(sizes / width)
    left = sizes - steps * width
    while width > 1:
        width //= 2
        fits = left >= width
        steps += fits
        left -= fits * float(width)
    return steps


def packed_vectors(channels: Column, width: int) -> Column:
    """Vectors of ncnn's packed layout, of 16, 8 or 4 channels if these divide all, else of 1."""
    vectors = channels
    for lanes in (4, 8, 16):
        if lanes <= width:
            vectors = np.where(rest(channels, lanes) == 0, channels / lanes, vectors)
    return vectors


#: Bytes of a first-level cache, and the third-level cache in units of the second level. These are
#: usual values; SoC files have none.
FIRST_LEVEL, THIRD_LEVEL = 1 << 15, 16


def beyond(amount: Column, cache_bytes: float) -> Column:
    """Bytes that miss a cache when `amount` bytes are read repeatedly.

    None up to half the cache, all from one and a half times the cache, or if its size is 0
    (unknown).
    """
    result: Column = amount * np.clip(amount / max(cache_bytes, 1.0) - 0.5, 0.0, 1.0)
    return result


def by_level(name: str, amount: Column, cache_bytes: float) -> FeatureColumns:
    """Total bytes, bytes from beyond the second-level cache, and bytes from memory."""
    return {
        f"{name}_bytes": amount,
        f"{name}_beyond": beyond(amount, cache_bytes),
        f"{name}_far": beyond(amount, THIRD_LEVEL * cache_bytes),
    }


def gpu_cache_bytes(soc: Soc) -> float:
    """Bytes of a core's second-level cache on a CPU, or of the GPU's global cache."""
    if soc.gpu.is_cpu:
        return float(soc.cpu.l2_cache_bytes)
    return float(max(soc.gpu.global_mem_cache_size, FIRST_LEVEL))


def single(features: Mapping[str, Column]) -> dict[str, float]:
    """The features of one op, from columns of length 1."""
    return {name: float(values[0]) for name, values in features.items()}


#: Tuning parameters by name: a column with a value per op, or a number for all ops.
ChoiceColumns = Mapping[str, Any]


def unique(choices: Iterable[Choice | None]) -> tuple[Choice, ...]:
    distinct: list[Choice] = []
    for choice in choices:
        if choice is not None and choice not in distinct:
            distinct.append(choice)
    return tuple(distinct)


def first_choice(choice: ChoiceColumns) -> dict[str, int]:
    return {name: int(np.ravel(values)[0]) for name, values in choice.items()}


def least(choices: ChoiceColumns, cost: Column) -> ChoiceColumns:
    """The cheapest choice of each op; choices and cost are shaped (..., ops)."""
    best = np.argmin(cost.reshape(-1, cost.shape[-1]), axis=0)
    at = (*np.unravel_index(best, cost.shape[:-1]), np.arange(cost.shape[-1]))
    return {name: np.broadcast_to(rows, cost.shape)[at] for name, rows in choices.items()}


def in_order(choices: ChoiceColumns, cost: Column) -> tuple[Choice, ...]:
    """The first op's choices of finite cost, the cheapest first."""
    costs = cost[..., 0].ravel()
    table = {k: np.broadcast_to(rows, cost.shape)[..., 0].ravel() for k, rows in choices.items()}
    order = [row for row in np.argsort(costs, kind="stable") if np.isfinite(costs[row])]
    return unique({name: int(rows[row]) for name, rows in table.items()} for row in order)
