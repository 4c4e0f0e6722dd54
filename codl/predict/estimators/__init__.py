"""What all estimators have in common: runs, a lower bound, and fields that are stored as JSON.

An estimator is fitted by its class, `Estimator.fit(features, latencies)`, and what it learned are
its fields: numbers, arrays, and dataclasses of them. Files hold these and nothing else. Predicting
takes NumPy alone; libraries of the extra `train` are imported where something is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from codl.boundary import explained
from codl.errors import CodlError
from codl.predict.estimators import run_effects
from codl.predict.estimators.numerics import Groups, Vector, rounded
from codl.predict.estimators.run_effects import RunTerm, RunTermSearch
from codl.predict.features import FeatureSet

E = TypeVar("E", bound="LatencyEstimator")

#: No prediction is below this share of the smallest latency that was fitted.
FLOOR = 0.1
#: With fewer rows above the floors of runs, floors are left out.
LEAST_FREE = 0.3


@dataclass(frozen=True, kw_only=True, eq=False)
class LatencyEstimator:
    """Predicts latencies in milliseconds, never less than `floor_ms`, and knows terms of `runs`."""

    name: ClassVar[str]
    feature_set: ClassVar[FeatureSet]
    #: Whether it learns latencies of ops and of sharing as a whole, and nothing finer: the papers'.
    is_of_wholes: ClassVar[bool] = False
    #: Whether it takes the terms of runs that the linear costs find: what can follow every row it
    #: is fitted to cannot say which terms are better.
    takes_terms: ClassVar[bool] = False

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
        """Fit features (items, features) to latencies (items), which must be positive.

        `runs` says in which measurement run each row was taken: what differs between runs is
        learned apart. `groups` says which rows are of one shape: what an estimator tries out on
        rows it holds out, it tries on whole shapes. Without, equal features are one shape.
        """
        X, y = np.array(X, np.float64), np.array(y, np.float64)
        if X.ndim != 2 or y.shape != X.shape[:1] or not X.size:
            raise ValueError(f"Expected features of every latency, got {X.shape} and {y.shape}.")
        if not (np.isfinite(X).all() and np.isfinite(y).all()):
            raise ValueError("Features and latencies must be finite.")
        if not (y > 0).all():
            raise ValueError(f"Latencies must be positive, got {y.min():g}.")
        shapes, labels = _groups(X, groups), _labels(runs, len(y))
        if len(set(labels)) == 1:
            fitted, _ = cls._fit_rows(X, y, shapes, {})
        else:
            fitted = cls._fit_runs(X, y, shapes, labels)
        # Runs that do not differ need no terms.
        terms = fitted.runs if any(term != RunTerm() for term in fitted.runs.values()) else {}
        return replace(fitted, floor_ms=floor_of(y), runs=terms)

    @classmethod
    def _fit(cls: type[E], X: Vector, y: Vector, groups: Groups) -> E:
        """One fitted to rows of a single run; its floor and runs are filled in behind it."""
        raise NotImplementedError

    def _predict(self, X: Vector) -> Vector:
        """Of the typical run; every item's is the same whichever others are asked for."""
        raise NotImplementedError

    def _bounds(self, X: Vector, coverage: float) -> tuple[Vector, Vector]:
        raise CodlError(f"{self.name} does not say how far it may be off; codl does.")

    def _beside_run(self, X: Vector, runs: Sequence[str] | None) -> Vector:
        """The features with what an estimator looks at to tell runs apart."""
        return X

    @classmethod
    def _fit_rows(
        cls: type[E], X: Vector, y: Vector, groups: Groups, terms: Mapping[str, RunTerm]
    ) -> tuple[E, Vector]:
        """One fitted to rows without some runs' `terms`, and its predictions of these rows.

        The predictions of each row are better made without having seen it.
        """
        fitted = cls._fit(X, y, groups)
        return fitted, fitted._predict(X)

    @classmethod
    def _fit_runs(cls: type[E], X: Vector, y: Vector, shapes: Groups, labels: Sequence[str]) -> E:
        return cls._fit_terms(X, y, shapes, labels)

    @classmethod
    def _fit_terms(cls: type[E], X: Vector, y: Vector, shapes: Groups, labels: Sequence[str]) -> E:
        """Fit the rows above their run's floor, and the terms of runs that do best beside them."""
        least_ms = floor_of(y)
        floors = floors_of(X, y, shapes, labels)
        free = run_effects.above_floors(floors, y, labels)
        if free.sum() < LEAST_FREE * len(y):
            floors, free = {}, np.ones(len(y), bool)
        X, y, shapes = X[free], y[free], shapes[free]
        labels = [label for label, is_free in zip(labels, free, strict=True) if is_free]

        def in_typical_run(terms: Mapping[str, RunTerm]) -> tuple[E, Vector]:
            return cls._fit_rows(X, run_effects.remove(terms, y, labels), shapes, terms)

        search = RunTermSearch(X, y, labels, shapes, floors, least_ms)
        terms = search.best(
            search.of_costs if cls.takes_terms else lambda terms: in_typical_run(terms)[1]
        )
        return replace(in_typical_run(terms)[0], runs=dict(terms))

    def predict(self, X: ArrayLike, *, runs: Sequence[str] | None = None) -> Vector:
        """Latencies in milliseconds, shaped (items), of features shaped (items, features).

        Those of the typical run, or of the run that `runs` names for every item; a run that was
        not fitted is taken for a typical one.
        """
        features = self._beside_run(np.asarray(X, np.float64), runs)
        return self._in_runs(self._predict(features), runs)

    def interval(
        self, X: ArrayLike, coverage: float = 0.9, *, runs: Sequence[str] | None = None
    ) -> tuple[Vector, Vector]:
        """Lowest and highest latency in milliseconds that `coverage` of such items will take.

        Raises `CodlError` where the estimator does not say how far it may be off.
        """
        if not 0 < coverage < 1:
            raise CodlError(f"The coverage must be between 0 and 1, got {coverage:g}.")
        features = self._beside_run(np.asarray(X, np.float64), runs)
        low, high = (self._in_runs(bound, runs) for bound in self._bounds(features, coverage))
        # What stands at a floor is not all above it.
        width, least = run_effects.FLOOR_WIDTH / 2, self._in_runs(np.zeros(len(features)), runs)
        return low * np.where(low <= least, 1 - width, 1), high * np.where(
            high <= least, 1 + width, 1
        )

    def _in_runs(self, latency_ms: Vector, runs: Sequence[str] | None) -> Vector:
        if self.runs or runs is not None:
            labels = _labels(runs, len(latency_ms))
            latency_ms = run_effects.apply(self.runs, latency_ms, labels)
        return np.maximum(latency_ms, self.floor_ms)


def floor_of(y: Vector) -> float:
    """The least that is predicted by what was fitted to such latencies."""
    return float(rounded(FLOOR * y.min(), 3))


def floors_of(X: Vector, y: Vector, shapes: Groups, labels: Sequence[str]) -> dict[str, float]:
    """The floor of every run, 0 where none shows."""
    size = X.sum(1) if (X >= 0).all() else np.exp(X.std(1))
    return run_effects.find_floors(np.maximum(size, 1e-9), y, labels, shapes)


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
