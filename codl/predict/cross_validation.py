"""Cross-validation: the accuracy of estimators on rows, or whole op shapes, that are held out."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.boundary import explained
from codl.errors import CodlError
from codl.predict.estimators import LatencyEstimator

with explained():
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from sklearn.model_selection import GroupKFold

SEED = 0
TEST_SHARE = 0.3
FOLDS = 5
#: What intervals say they cover.
COVERAGE = 0.9

Indices = NDArray[np.intp]
Values = NDArray[np.float64]


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
        for row, labels_of_row in enumerate(labels)
        for label in labels_of_row
    ]
    size = len(labels) + len(numbers)
    rows, columns = np.array(edges, np.intp).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges), np.int8), (rows, columns)), shape=(size, size))
    _, groups = connected_components(graph, directed=False)
    return np.unique(groups[: len(labels)], return_inverse=True)[1].astype(np.intp)


@dataclass(frozen=True)
class HeldOut:
    """Accuracy in percent on rows that were not fitted; None where nothing could be held out.

    `acc10` and `acc5` are the rows within 10 % and 5 %, `mape` the mean absolute error, of
    predictions for the run that each row is of; `acc10_typical` the rows within 10 % of predictions
    that know of no run. `coverage90` is the percentage of rows inside their 90 % interval, None for
    a predictor without intervals.
    """

    n_train: int
    n_test: int
    acc10: float | None = None
    acc5: float | None = None
    mape: float | None = None
    acc10_typical: float | None = None
    coverage90: float | None = None

    @property
    def figures(self) -> dict[str, float]:
        """The figures that there are, in few digits; the typical run's only where it differs."""
        figures = {k: v for k, v in asdict(self).items() if k[:2] != "n_" and v is not None}
        if self.acc10_typical == self.acc10:
            figures.pop("acc10_typical", None)
        # One row more or less is chance.
        return {k: round(v, 1) if k == "mape" else round(v) for k, v in figures.items()}


@dataclass(frozen=True)
class TrainingRows:
    """What an estimator is fitted to: features (rows, features), latencies, runs and shapes."""

    values: Values
    latency_ms: Values
    runs: Sequence[str] | None = None
    groups: NDArray[np.intp] | None = None

    def fit(self, estimator: type[LatencyEstimator], at: NDArray[np.intp]) -> LatencyEstimator:
        groups = None if self.groups is None else self.groups[at]
        return estimator.fit(
            self.values[at], self.latency_ms[at], runs=self.runs_at(at), groups=groups
        )

    def runs_at(self, at: NDArray[np.intp]) -> list[str] | None:
        return None if self.runs is None else [self.runs[i] for i in at]


def accuracy(
    estimator: type[LatencyEstimator], rows: TrainingRows, folds: Sequence[Fold]
) -> HeldOut:
    """Fit on every fold's rows and predict those it holds out, all folds together."""
    if not folds:
        return HeldOut(n_train=len(rows.latency_ms), n_test=0)
    errors = [_errors(estimator, rows, fold) for fold in folds]
    error, typical, inside = (np.concatenate(parts) for parts in zip(*errors, strict=True))
    return HeldOut(
        n_train=min(len(fold.train) for fold in folds),
        n_test=len(error),
        acc10=_percent(error <= 0.10),
        acc5=_percent(error <= 0.05),
        mape=_percent(error),
        acc10_typical=_percent(typical <= 0.10),
        coverage90=None if np.isnan(inside).any() else _percent(inside),
    )


def over_seeds(seeds: Sequence[HeldOut]) -> HeldOut:
    """The median of every figure over the same folds made with other seeds."""
    names = ("acc10", "acc5", "mape", "acc10_typical", "coverage90")
    columns = {name: [getattr(held_out, name) for held_out in seeds] for name in names}
    middle = {k: None if None in v else round(median(v), 2) for k, v in columns.items()}
    return HeldOut(min(held_out.n_train for held_out in seeds), seeds[0].n_test, **middle)


def _errors(
    estimator: type[LatencyEstimator], rows: TrainingRows, fold: Fold
) -> tuple[Values, Values, Values]:
    """Relative errors with runs and without, and 1 where the interval holds, 0 where it does not.

    All NaN instead of the last, where the estimator has no intervals.
    """
    fitted = rows.fit(estimator, fold.train)
    X, wanted, runs = rows.values[fold.test], rows.latency_ms[fold.test], rows.runs_at(fold.test)
    error, typical = (
        np.abs(fitted.predict(X, runs=labels) - wanted) / wanted for labels in (runs, None)
    )
    try:
        low, high = fitted.interval(X, COVERAGE, runs=runs)
    except CodlError:
        return error, typical, np.full(len(wanted), np.nan)
    return error, typical, ((low <= wanted) & (wanted <= high)).astype(np.float64)


def _percent(values: NDArray[Any]) -> float:
    return round(100 * float(values.mean()), 2)
