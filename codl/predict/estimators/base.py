"""Base class of the estimators: validation, lower bound, run effects, state in and out.

All of them take features shaped (items, features) and positive latencies, predict positive
latencies, and can write their learned state as plain JSON values and read it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from codl.errors import CodlError
from codl.predict.estimators import run_effects
from codl.predict.estimators.json_arrays import number, rounded
from codl.predict.estimators.run_effects import RunTerm, RunTermSearch
from codl.predict.features import FeatureSet

Vector = NDArray[np.float64]
Groups = NDArray[np.intp]
State = Mapping[str, Any]
E = TypeVar("E", bound="LatencyEstimator")

#: No prediction is below this share of the smallest latency that was fitted.
FLOOR = 0.1
#: With fewer rows above the floors of runs, floors are left out.
LEAST_FREE = 0.3


class LatencyEstimator(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn regressor of latencies that never predicts less than `floor_`."""

    name: ClassVar[str]
    feature_set: ClassVar[FeatureSet]
    #: Whether it learns latencies of ops and of sharing as a whole, and nothing finer: the papers'.
    is_of_wholes: ClassVar[bool] = False
    #: Whether it takes the terms of runs that the linear costs find: what can follow every row it
    #: is fitted to cannot say which terms are better.
    takes_terms: ClassVar[bool] = False
    floor_: float
    runs_: Mapping[str, RunTerm]
    n_features_in_: int

    @classmethod
    def by_terms(cls: type[E]) -> E:
        """One that knows runs by their terms (`runs_`) alone."""
        return cls()

    def fit(
        self: E,
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
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        X, y = np.asarray(X, np.float64), np.asarray(y, np.float64)
        if not (y > 0).all():
            raise ValueError(f"Latencies must be positive, got {y.min():g}.")
        shapes = _groups(X, groups)
        self.floor_ = floor_of(y)
        self.runs_ = {}
        labels = _labels(runs, len(y))
        if len(set(labels)) > 1:
            self._fit_runs(X, y, shapes, labels)
        else:
            self._fit(X, y, shapes)
        return self

    def _fit_runs(self, X: Vector, y: Vector, shapes: Groups, labels: Sequence[str]) -> None:
        """Fit the rows above their run's floor, and the terms of runs that do best beside them."""
        floors = self._floors(X, y, shapes, labels)
        free = run_effects.above_floors(floors, y, labels)
        if free.sum() < LEAST_FREE * len(y):
            floors, free = {}, np.ones(len(y), bool)
        X, y, shapes = X[free], y[free], shapes[free]
        labels = [label for label, is_free in zip(labels, free, strict=True) if is_free]

        def in_typical_run(terms: Mapping[str, RunTerm]) -> Vector:
            self.runs_ = terms
            self._fit(X, run_effects.remove(terms, y, labels), shapes)
            return self._inner(X)

        search = RunTermSearch(X, y, labels, shapes, floors, self.floor_)
        in_typical_run(search.best(search.of_costs if self.takes_terms else in_typical_run))
        self._forget_typical_runs()

    def _forget_typical_runs(self) -> None:
        """Runs that do not differ need no terms."""
        if all(term == RunTerm() for term in self.runs_.values()):
            self.runs_ = {}

    def _floors(
        self, X: Vector, y: Vector, shapes: Groups, labels: Sequence[str]
    ) -> dict[str, float]:
        """The floor of every run, 0 where none shows."""
        size = X.sum(1) if (X >= 0).all() else np.exp(X.std(1))
        return run_effects.find_floors(np.maximum(size, 1e-9), y, labels, shapes)

    def predict(self, X: ArrayLike, *, runs: Sequence[str] | None = None) -> Vector:
        """Latencies in milliseconds, shaped (items); at least `floor_`.

        Those of the typical run, or of the run that `runs` names for every item; a run that was
        not fitted is taken for a typical one.
        """
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, reset=False, dtype=np.float64), np.float64)
        return self._in_runs(self._predict(self._beside_run(X, runs)), runs)

    def typical(self, X: Vector) -> Vector:
        """`predict` for features that have been checked, in the typical run."""
        return self._in_runs(self._predict(self._beside_run(X, None)), None)

    def interval(
        self, X: ArrayLike, coverage: float = 0.9, *, runs: Sequence[str] | None = None
    ) -> tuple[Vector, Vector]:
        """Lowest and highest latency in milliseconds that `coverage` of such items will take.

        Raises `CodlError` where the estimator does not say how far it may be off.
        """
        if not 0 < coverage < 1:
            raise CodlError(f"The coverage must be between 0 and 1, got {coverage:g}.")
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, reset=False, dtype=np.float64), np.float64)
        X = self._beside_run(X, runs)
        low, high = (self._in_runs(bound, runs) for bound in self._bounds(X, coverage))
        # What stands at a floor is not all above it.
        width, least = run_effects.FLOOR_WIDTH / 2, self._in_runs(np.zeros(len(X)), runs)
        return low * np.where(low <= least, 1 - width, 1), high * np.where(
            high <= least, 1 + width, 1
        )

    def _beside_run(self, X: Vector, runs: Sequence[str] | None) -> Vector:
        """The features with what an estimator looks at to tell runs apart."""
        return X

    def _in_runs(self, latency_ms: Vector, runs: Sequence[str] | None) -> Vector:
        if self.runs_ or runs is not None:
            labels = _labels(runs, len(latency_ms))
            latency_ms = run_effects.apply(self.runs_, latency_ms, labels)
        return np.maximum(latency_ms, self.floor_)

    def state(self, names: Sequence[str]) -> dict[str, Any]:
        """The learned state as JSON values; `names` are the features in the order of fitting."""
        check_is_fitted(self)
        runs = {"runs": run_effects.write(self.runs_)} if self.runs_ else {}
        return {"floor_ms": self.floor_, **runs, **self._write(names)}

    @classmethod
    def from_state(cls: type[E], state: State, names: Sequence[str]) -> E:
        """The fitted estimator again; raises `ValueError` with the key and value at fault."""
        estimator = cls()
        estimator.n_features_in_ = len(names)
        estimator.floor_ = number(state, "floor_ms")
        if estimator.floor_ <= 0:
            raise ValueError(f"floor_ms must be positive, got {estimator.floor_:g}.")
        estimator.runs_ = run_effects.read(state.get("runs", {}))
        estimator._read(state, names)
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        raise NotImplementedError

    def _inner(self, X: Vector) -> Vector:
        """Predictions of the rows just fitted, better of each without it."""
        return self._predict(X)

    def _bounds(self, X: Vector, coverage: float) -> tuple[Vector, Vector]:
        raise CodlError(f"{self.name} does not say how far it may be off; codl does.")

    def _predict(self, X: Vector) -> Vector:
        raise NotImplementedError

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        raise NotImplementedError

    def _read(self, state: State, names: Sequence[str]) -> None:
        raise NotImplementedError


def floor_of(y: Vector) -> float:
    """The least that is predicted by what was fitted to such latencies."""
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
