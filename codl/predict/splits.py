"""What is held out: random rows, or whole op shapes. Indices only; nothing here sees a number."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SEED = 0
TEST_SHARE = 0.3
FOLDS = 5

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Fold:
    """Indices of the rows to fit on and of those held out; disjoint."""

    train: Indices
    test: Indices


def row_folds(rows: int) -> list[Fold]:
    """70 % of the rows at random to fit on, the rest held out; the same ones every time.

    None where there is one row only.
    """
    if rows < 2:
        return []
    order = np.random.default_rng(SEED).permutation(rows)
    held_out = min(max(1, round(TEST_SHARE * rows)), rows - 1)
    return [Fold(np.sort(order[held_out:]), np.sort(order[:held_out]))]


def shape_folds(groups: Indices, seed: int = SEED) -> list[Fold]:
    """Every group held out once, in up to five folds; none where there is one group only.

    Groups come in a random order, each into the fold with the fewest rows so far.
    """
    values, sizes = np.unique(groups, return_counts=True)
    count = min(FOLDS, len(values))
    if count < 2:
        return []
    chosen, filled = np.zeros(len(values), np.intp), np.zeros(count)
    order = np.random.default_rng(seed).permutation(len(values))
    for place, at in enumerate(order):
        # The first ones go round, so that no fold stays empty.
        chosen[at] = place if place < count else int(filled.argmin())
        filled[chosen[at]] += sizes[at]
    fold_of = chosen[np.searchsorted(values, groups)]
    return [
        Fold(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold))
        for fold in range(count)
    ]


def linked(labels: Sequence[Iterable[Hashable]]) -> Indices:
    """Group numbers such that rows with any label in common are in one group.

    A row is labelled with its op and with the part that ran, so neither the ratios of one op nor
    one part that two ops have in common ever stand on both sides of a split.
    """
    parent = list(range(len(labels)))
    first: dict[Hashable, int] = {}
    for row, own in enumerate(labels):
        for label in own:
            ends = sorted((_root(parent, row), _root(parent, first.setdefault(label, row))))
            parent[ends[1]] = ends[0]
    roots = [_root(parent, row) for row in range(len(labels))]
    return np.unique(np.array(roots, np.intp), return_inverse=True)[1].astype(np.intp)


def _root(parent: list[int], row: int) -> int:
    while parent[row] != row:
        parent[row] = parent[parent[row]]
        row = parent[row]
    return row
