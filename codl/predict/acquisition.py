"""Acquisition function of active learning: which measurement would tell most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from codl.ir import Op
from codl.predict import features
from codl.predict.features import Item
from codl.predict.regret import Key, splits
from codl.records.soc import Soc

T = TypeVar("T")
Values = NDArray[np.float64]
#: The weight of a measurement that may change which split is chosen; others weigh 1.
CONTESTED = 2.0
#: Columns whose logarithms spread by less are taken for constant.
LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class Bounds:
    """Between these lies a part's latency in one kernel variant, in milliseconds."""

    low: float
    high: float


def is_random(item: Item) -> bool:
    """Whether an item is of the half that is always taken in random order.

    Its accuracy when held out is that of all; that of the rows which were chosen for being
    difficult is not. The item alone decides, so that a later run knows without being told.
    """
    return crc32(features.write(item).encode()) % 2 == 0


def farthest_first(known: Values, candidates: Values, weights: Values) -> list[int]:
    """Weighted farthest-point sampling: indices of all candidates, the farthest from `known` first.

    Distances are Euclidean, between the logarithms of features (items, features) in units of their
    spread, times the candidate's weight; a candidate that was taken counts as known.
    """
    logs = np.log1p(np.abs(np.vstack([known, candidates])))
    spread = logs.std(0)
    scaled = (logs / np.where(spread > LEAST_SPREAD, spread, np.inf)).astype(np.float64)
    old, new = scaled[: len(known)], scaled[len(known) :]
    away = np.full(len(new), np.inf)
    for row in old:
        np.minimum(away, ((new - row) ** 2).sum(1), out=away)
    order, left = [], np.ones(len(new), bool)
    for _ in range(len(new)):
        at = int(np.argmax(np.where(left, np.sqrt(away) * weights, -1.0)))
        order.append(at)
        left[at] = False
        np.minimum(away, ((new - new[at]) ** 2).sum(1), out=away)
    return order


def contested(
    ops: Iterable[Op], known: Mapping[Key, Sequence[Bounds]], soc: Soc
) -> dict[Key, float]:
    """The parts that the fastest split of an op may need, as far as the bounds tell.

    The variants of a part may be chosen whose lowest latency is below the value, in milliseconds.
    Parts of ops where one split is the fastest for certain are left out.
    """
    low = {key: min(one.low for one in own) for key, own in known.items()}
    high = {key: min(one.high for one in own) for key, own in known.items()}
    open_parts: dict[Key, float] = {}
    for op in ops:
        pairs = [keys for keys in splits(op, soc) if all(key in known for key in keys)]
        if not pairs:
            continue
        limit = min(max(high[key] for key in keys) for keys in pairs)
        open_pairs = [keys for keys in pairs if max(low[key] for key in keys) <= limit]
        is_decided = len(open_pairs) == 1 and all(_is_decided(known[k]) for k in open_pairs[0])
        if not is_decided:
            open_parts.update({key: high[key] for keys in open_pairs for key in keys})
    return open_parts


def _is_decided(own: Sequence[Bounds]) -> bool:
    """Whether one variant is the fastest for certain."""
    limit = min(one.high for one in own)
    return sum(one.low <= limit for one in own) == 1


def in_turns(streams: Iterable[Iterable[T]]) -> Iterator[T]:
    """The first of each, the second of each, and so on; those that are over drop out."""
    running = [iter(stream) for stream in streams]
    while running:
        still = []
        for stream in running:
            for value in stream:
                yield value
                still.append(stream)
                break
        running = still
