"""Predictor features that GPU kernels share, over columns of ops: vectors, caches, and choices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from codl.ir.columns import Column, FeatureColumns, rest
from codl.records.soc import Soc
from codl.records.tuned import Choice


def halvings(sizes: Column, width: int) -> Column:
    """Steps through `sizes` elements, `width` at a time and the rest by ever narrower vectors."""
    steps = np.floor(sizes / width)
    left = sizes - steps * width
    while width > 1:
        width //= 2
        fits = left >= width
        steps += fits
        left -= fits * float(width)
    return steps


def packed_vectors(channels: Column, width: int) -> Column:
    """Vectors of ncnn's packed layout: as wide as divides the channels, 4 at least, or 1."""
    vectors = channels
    for lanes in (4, 8, 16):
        if lanes <= width:
            vectors = np.where(rest(channels, lanes) == 0, channels / lanes, vectors)
    return vectors


#: Bytes of a core's first-level cache, and caches of the second level that the third is worth:
#: what is larger streams from memory. SoC files do not say; these are usual.
FIRST_LEVEL, THIRD_LEVEL = 1 << 15, 16


def beyond(amount: Column, cache_bytes: float) -> Column:
    """The bytes of something that is read again and again and does not stay in a cache.

    None where it fills half the cache, all where it is half as large again, or where the cache is
    not known (0).
    """
    result: Column = amount * np.clip(amount / max(cache_bytes, 1.0) - 0.5, 0.0, 1.0)
    return result


def by_level(name: str, amount: Column, cache_bytes: float) -> FeatureColumns:
    """Bytes, those from beyond the second-level cache, and those that are far away, in memory."""
    return {
        f"{name}_bytes": amount,
        f"{name}_beyond": beyond(amount, cache_bytes),
        f"{name}_far": beyond(amount, THIRD_LEVEL * cache_bytes),
    }


def gpu_cache_bytes(soc: Soc) -> float:
    """What a core, or the whole GPU, has before the memory or a cache that others share."""
    if soc.gpu.is_cpu:
        return float(soc.cpu.l2_cache_bytes)
    return float(max(soc.gpu.global_mem_cache_size, FIRST_LEVEL))


def single(features: Mapping[str, Column]) -> dict[str, float]:
    """The features of one op from columns of one."""
    return {name: float(values[0]) for name, values in features.items()}


#: Values of tuning parameters: a column for every op its own, a number for all ops the same.
ChoiceColumns = Mapping[str, Any]


def unique(choices: Iterable[Choice | None]) -> tuple[Choice, ...]:
    """Every choice once, in their order."""
    distinct: list[Choice] = []
    for choice in choices:
        if choice is not None and choice not in distinct:
            distinct.append(choice)
    return tuple(distinct)


def first_choice(choice: ChoiceColumns) -> dict[str, int]:
    """The choice of the first op of columns."""
    return {name: int(np.ravel(values)[0]) for name, values in choice.items()}


def least(choices: ChoiceColumns, cost: Column) -> ChoiceColumns:
    """Of choices by name, shaped (..., ops) as their cost is, the cheapest one of each op."""
    best = np.argmin(cost.reshape(-1, cost.shape[-1]), axis=0)
    at = (*np.unravel_index(best, cost.shape[:-1]), np.arange(cost.shape[-1]))
    return {name: np.broadcast_to(rows, cost.shape)[at] for name, rows in choices.items()}


def in_order(choices: ChoiceColumns, cost: Column) -> tuple[Choice, ...]:
    """The choices of the first op, the cheapest first; what costs infinitely much is none."""
    costs = cost[..., 0].ravel()
    table = {k: np.broadcast_to(rows, cost.shape)[..., 0].ravel() for k, rows in choices.items()}
    order = [row for row in np.argsort(costs, kind="stable") if np.isfinite(costs[row])]
    return unique({name: int(rows[row]) for name, rows in table.items()} for row in order)
