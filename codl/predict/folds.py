"""Cross-validation folds: random rows, or whole op shapes. Indices only; no number is looked at."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from sklearn.model_selection import GroupKFold

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

    Groups are renamed at random: groups of the same size go to other folds with another seed.
    """
    values, names = np.unique(groups, return_inverse=True)
    renamed = np.random.default_rng(seed).permutation(len(values))[names]
    return _group_folds(renamed) if len(values) > 1 else []


def inner_folds(groups: Indices) -> list[Indices]:
    """Rows to hold out in turn: whole groups where there are several, else single rows.

    At least two folds for two rows or more; every row is in one.
    """
    if len(np.unique(groups)) < 2:
        groups = np.arange(len(groups))
    if len(groups) < 2:
        return [np.arange(len(groups))]
    return [fold.test for fold in _group_folds(groups)]


def _group_folds(groups: Indices) -> list[Fold]:
    """Folds of about as many rows each: the largest group goes to the smallest fold, and so on."""
    splitter = GroupKFold(min(FOLDS, len(np.unique(groups))))
    return [Fold(train, test) for train, test in splitter.split(groups, groups=groups)]


def connected_groups(labels: Sequence[Iterable[Hashable]]) -> Indices:
    """Group numbers such that rows with any label in common are in one group.

    A row is labelled with its op and with the part that ran, so neither the ratios of one op nor
    one part that two ops have in common ever stand on both sides of a split. Groups are the
    connected components of the graph of rows and labels.
    """
    numbers: dict[Hashable, int] = {}
    edges = [
        (row, len(labels) + numbers.setdefault(label, len(numbers)))
        for row, own in enumerate(labels)
        for label in own
    ]
    size = len(labels) + len(numbers)
    rows, columns = np.array(edges, np.intp).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges), np.int8), (rows, columns)), shape=(size, size))
    _, groups = connected_components(graph, directed=False)
    return np.unique(groups[: len(labels)], return_inverse=True)[1].astype(np.intp)
