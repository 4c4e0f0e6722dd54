"""Latency estimators: their base class, run effects, and linear ones, muLayer's and the paper's.

Measurement runs differ (batch effects): a run's latency is factor x (latency in the typical run +
overhead). Both are fitted to the run's rows and shrunk towards 1 and 0, so a run of few rows stays
near the typical run.

`Estimator.fit(features, latencies)` returns a fitted instance. Its fields are numbers, arrays and
dataclasses of them, and are all that a file holds. Prediction needs NumPy alone; fitting imports
the libraries of the extra `train`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, TypeVar

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from codl.errors import explained
from codl.predict.estimators.numerics import (
    Groups,
    Vector,
    costs,
    largest_sizes,
    rounded,
    rowwise_dot,
)
from codl.predict.features import FeatureSet

E = TypeVar("E", bound="LatencyEstimator")

#: Lowest prediction, as a share of the smallest latency in the training rows.
FLOOR = 0.1
#: Significant digits of muLayer's coefficients: more would only make files larger.
MULAYER_DIGITS = 6
#: Prior standard deviations in logarithms: a row's error about its shape, a shape's effect and a
#: run's factor; and of a run's overhead, as a share of the run's lower quartile.
ERROR = 0.04
SHAPE_SPREAD = 0.2
FACTOR_SPREAD = 0.2
OVERHEAD_SPREAD = 0.07
#: Solver iterations: the overhead is nonlinear, and outliers are re-weighted in each.
STEPS = 6
#: Residuals above this multiple of `ERROR` are down-weighted.
OUTLIER = 2.0
#: A negative overhead is at most this share of the fastest prediction in its run.
MOST = 0.5
#: Alternate fits of linear costs and run terms.
PASSES = 7
#: Least relative error reduction for which terms are kept: they have seen the rows.
TERMS_WORTH = 0.05
#: Cap of a prediction's absolute log error.
MOST_OFF = 0.5
#: Most runs with feature columns, those with most rows; each column needs many shapes.
MOST_COLUMNS = 16


# Run effects.


@dataclass(frozen=True)
class RunTerm:
    """Latency in a run = `factor` x (latency in the typical run + `overhead_ms`).

    Older files have a least latency, `floor_ms`.
    """

    overhead_ms: float = 0.0
    factor: Annotated[float, Meta(gt=0)] = 1.0
    floor_ms: Annotated[float, Meta(ge=0)] = 0.0


def searched_terms(
    X: Vector, y: Vector, labels: Sequence[str], groups: Groups
) -> Mapping[str, RunTerm]:
    """Run terms from alternate fits of terms and of linear costs to the same rows.

    Returns the terms with the least error of the costs, and none if terms gain little.
    """
    floor_ms, terms = floor_of(y), dict[str, RunTerm]()
    tried: list[tuple[float, dict[str, RunTerm]]] = []
    for _ in range(PASSES):
        coefficients, overhead = costs(X, to_typical_run(terms, y, labels))
        predicted = np.maximum(X @ coefficients + overhead, floor_ms)
        in_runs = np.maximum(to_runs(terms, predicted, labels), floor_ms)
        error = np.minimum(np.abs(np.log(in_runs / y)), MOST_OFF).mean()
        tried.append((float(error), terms))
        terms = fit_terms(predicted, y, labels, groups=groups)
    least, best = min(tried, key=lambda pair: pair[0])
    return best if least <= (1 - TERMS_WORTH) * tried[0][0] else {}


def fit_terms(
    predicted: Vector,
    y: Vector,
    labels: Sequence[str],
    *,
    groups: Groups,
) -> dict[str, RunTerm]:
    """The term of every run, from typical-run predictions and measured `y` (both rows, ms).

    Every shape (`groups`) has a factor of its own, equal in all runs. So mainly the shapes common
    to several runs determine their terms.
    """
    names, run = np.unique(np.asarray(labels), return_inverse=True)
    shape = np.unique(groups, return_inverse=True)[1].ravel()
    count = len(names)
    unit = np.array([np.quantile(predicted[run == at], 0.25) for at in range(count)])
    least = np.array([-MOST * predicted[run == at].min() for at in range(count)])
    factor, overhead, trust = np.zeros(count), np.zeros(count), np.ones(len(y))
    for _ in range(STEPS):
        total = predicted + (overhead * unit)[run]
        slope = unit[run] / total
        target = np.log(y / total) + slope * overhead[run]
        factor, overhead, special = _solve(target, slope, trust, run=run, shape=shape)
        overhead = np.maximum(overhead, least / unit)
        off = target - factor[run] - slope * overhead[run] - special[shape]
        trust = 1 / np.maximum(np.abs(off) / (OUTLIER * ERROR), 1)
    factors, overheads = rounded(np.exp(factor)), rounded(overhead * unit)
    return {
        str(name): RunTerm(float(o), float(f))
        for name, o, f in zip(names, overheads, factors, strict=True)
    }


def _solve(
    target: Vector, slope: Vector, trust: Vector, *, run: Groups, shape: Groups
) -> tuple[Vector, Vector, Vector]:
    """Ridge regression of `target` on run factors, `slope` x run overheads and shape effects."""
    count = int(run.max()) + 1
    pull = [(ERROR / FACTOR_SPREAD) ** 2, (ERROR / OVERHEAD_SPREAD) ** 2]
    trusted = np.bincount(shape, trust) + (ERROR / SHAPE_SPREAD) ** 2
    wanted = np.bincount(shape, trust * target)
    both = (trust, trust * slope)
    cross = np.zeros((2 * count, len(trusted)))
    for at, weights in enumerate(both):
        np.add.at(cross, (at * count + run, shape), weights)
    normal = np.diag(np.repeat(pull, count))
    for i, j, weights in ((0, 0, trust), (0, 1, both[1]), (1, 0, both[1]), (1, 1, both[1] * slope)):
        block = normal[i * count : (i + 1) * count, j * count : (j + 1) * count]
        block[np.diag_indices(count)] += np.bincount(run, weights, minlength=count)
    right = np.concatenate([np.bincount(run, w * target, minlength=count) for w in both])
    effects = np.linalg.solve(
        normal - (cross / trusted) @ cross.T, right - cross @ (wanted / trusted)
    )
    special = (wanted - cross.T @ effects) / trusted
    return effects[:count], effects[count:], special


def to_runs(terms: Mapping[str, RunTerm], latency_ms: Vector, labels: Sequence[str]) -> Vector:
    """Typical-run latencies (rows, ms) converted to each row's run; an unknown run is typical."""
    overhead, factor, floor = _columns(terms, labels)
    return np.maximum(factor * (latency_ms + overhead), floor)


def to_typical_run(
    terms: Mapping[str, RunTerm], latency_ms: Vector, labels: Sequence[str]
) -> Vector:
    """The inverse of `to_runs` above the floor, but at least a fifth of latency / factor."""
    overhead, factor, _ = _columns(terms, labels)
    return np.maximum(latency_ms / factor - overhead, 0.2 * latency_ms / factor)


def _columns(terms: Mapping[str, RunTerm], labels: Sequence[str]) -> tuple[Vector, Vector, Vector]:
    """Overhead, factor and floor of each row; an unknown run has the runs' median floor alone."""
    floors = sorted(term.floor_ms for term in terms.values())
    typical = RunTerm(floor_ms=floors[len(floors) // 2] if floors else 0.0)
    by_label = {label: terms.get(label, typical) for label in set(labels)}
    rows = [(t.overhead_ms, t.factor, t.floor_ms) for t in map(by_label.__getitem__, labels)]
    columns = np.array(rows).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


@dataclass(frozen=True)
class RunColumns:
    """One-hot feature columns of runs; `shares` is each run's share of the rows, by name."""

    shares: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, labels: Sequence[str]) -> RunColumns:
        rows = dict(Counter(labels).most_common(MOST_COLUMNS))
        if len(rows) < 2:
            return cls()
        return cls({name: float(rounded(rows[name] / len(labels))) for name in sorted(rows)})

    def beside(self, X: Vector, labels: Sequence[str] | None) -> Vector:
        """Features with run columns appended, shaped (items, features + runs).

        An unknown or missing run is typical: its columns are the runs' shares of rows, so a few
        slow rows do not slow all predictions.
        """
        if not self.shares:
            return X
        typical = np.array(list(self.shares.values()))
        if labels is None:
            return np.column_stack([X, np.broadcast_to(typical, (len(X), len(typical)))])
        rows = dict(zip(self.shares, np.eye(len(self.shares)), strict=True))
        return np.column_stack([X, [rows.get(label, typical) for label in labels]])


# Estimators.


@dataclass(frozen=True, kw_only=True, eq=False)
class LatencyEstimator:
    """Predicts latencies in milliseconds, at least `floor_ms`; `runs` holds terms by run name."""

    name: ClassVar[str]
    feature_set: ClassVar[FeatureSet]
    #: True for the papers' predictors: one target per op or whole exchange, no parts or context.
    is_of_wholes: ClassVar[bool] = False

    floor_ms: float = 0.0
    runs: dict[str, RunTerm] = field(default_factory=dict)

    @classmethod
    @explained()
    def fit(
        cls: type[E],
        X: ArrayLike,
        y: ArrayLike,
        *,
        runs: Sequence[str] | None = None,
        groups: Sequence[Any] | Groups | None = None,
    ) -> E:
        """Fit features `X` (items, features) to positive latencies `y` (items) in milliseconds.

        `runs` (items) names each row's measurement run; run differences become run terms. `groups`
        (items) labels each row's shape, the unit of inner cross-validation. By default rows with
        equal features share a shape. Raises `ValueError` for wrong shapes or values.
        """
        X, y = np.array(X, np.float64), np.array(y, np.float64)
        if X.ndim != 2 or y.shape != X.shape[:1] or not X.size:
            raise ValueError(f"Expected features of every latency, got {X.shape} and {y.shape}.")
        if not (np.isfinite(X).all() and np.isfinite(y).all()):
            raise ValueError("Features and latencies must be finite.")
        if not (y > 0).all():
            raise ValueError(f"Latencies must be positive, got {y.min():g}.")
        shapes, labels = _groups(X, groups), _labels(runs, len(y))
        return replace(cls._fit_runs(X, y, shapes, labels), floor_ms=floor_of(y))

    @classmethod
    def _fit_runs(cls: type[E], X: Vector, y: Vector, shapes: Groups, labels: Sequence[str]) -> E:
        """Fit rows of some runs; by default, rows without the run terms that linear costs show."""
        terms = searched_terms(X, y, labels, shapes) if len(set(labels)) > 1 else {}
        # Runs that do not differ need no terms.
        terms = terms if any(term != RunTerm() for term in terms.values()) else {}
        return replace(cls._fit(X, to_typical_run(terms, y, labels)), runs=dict(terms))

    @classmethod
    def _fit(cls: type[E], X: Vector, y: Vector) -> E:
        """Fit rows of a single run; `fit` sets `floor_ms` and `runs` afterwards."""
        raise NotImplementedError

    def _predict(self, X: Vector) -> Vector:
        """Latencies (items) in the typical run; each row's result is independent of the batch."""
        raise NotImplementedError

    def _beside_run(self, X: Vector, runs: Sequence[str] | None) -> Vector:
        """The features, extended by the estimator's columns for runs, if any."""
        return X

    def predict(self, X: ArrayLike, *, runs: Sequence[str] | None = None) -> Vector:
        """Latencies in milliseconds, shaped (items), of features shaped (items, features).

        `runs` names a run for every item. Without it, and for an unknown run, latencies are those
        of the typical run.
        """
        latency_ms = self._predict(self._beside_run(np.asarray(X, np.float64), runs))
        if self.runs or runs is not None:
            labels = _labels(runs, len(latency_ms))
            latency_ms = to_runs(self.runs, latency_ms, labels)
        return np.maximum(latency_ms, self.floor_ms)


def floor_of(y: Vector) -> float:
    """The lowest prediction (ms) of an estimator fitted to the latencies `y`."""
    return float(rounded(FLOOR * y.min(), 3))


def _groups(X: Vector, groups: Sequence[Any] | Groups | None) -> Groups:
    if groups is None:
        return np.unique(X, axis=0, return_inverse=True)[1].ravel().astype(np.intp)
    if len(groups) != len(X):
        raise ValueError(f"groups must have {len(X)} labels, got {len(groups)}.")
    return np.unique(np.asarray(groups), return_inverse=True)[1].ravel().astype(np.intp)


def _labels(runs: Sequence[str] | None, rows: int) -> list[str]:
    if runs is None:
        return [""] * rows
    if len(runs) != rows:
        raise ValueError(f"runs must have {rows} labels, got {len(runs)}.")
    return [str(run) for run in runs]


# Linear estimators.


@dataclass(frozen=True, kw_only=True, eq=False)
class _Linear(LatencyEstimator):
    """Latency = overhead + sum of cost x feature."""

    overhead_ms: float
    costs_ms: Vector
    is_of_wholes: ClassVar[bool] = True

    def _predict(self, X: Vector) -> Vector:
        return rowwise_dot(X, self.costs_ms) + self.overhead_ms


class FlopsLinear(_Linear):
    """muLayer's predictor: ordinary linear regression on FLOPs and sizes."""

    name: ClassVar[str] = "flops_linear"
    feature_set: ClassVar[FeatureSet] = "flops"

    @classmethod
    def _fit(cls, X: Vector, y: Vector) -> FlopsLinear:
        from sklearn.linear_model import LinearRegression

        scale = largest_sizes(X)
        fitted = LinearRegression().fit(X / scale, y)
        costs_ms = rounded(np.asarray(fitted.coef_, np.float64) / scale, MULAYER_DIGITS)
        return cls(overhead_ms=float(rounded(fitted.intercept_, MULAYER_DIGITS)), costs_ms=costs_ms)


class CodlLinear(_Linear):
    """The paper's predictor (section 5.2): a non-negative cost for each block that runs.

    Minimises squared relative errors, so small parts, which decide a chain's ratio, count as much
    as large ones.
    """

    name: ClassVar[str] = "codl_linear"
    feature_set: ClassVar[FeatureSet] = "variant"

    @classmethod
    def _fit(cls, X: Vector, y: Vector) -> CodlLinear:
        """Linear costs; also the base of `codl` and `gbdt`."""
        costs_ms, overhead_ms = costs(X, y)
        return cls(floor_ms=floor_of(y), overhead_ms=overhead_ms, costs_ms=costs_ms)
