"""What all estimators share: checks, bounds, and reading and writing the learned state.

All of them take features shaped (items, features) and positive latencies, predict positive
latencies, and can write their learned state as plain JSON values and read it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from codl.predict.features import FeatureSet

Vector = NDArray[np.float64]
State = Mapping[str, Any]
E = TypeVar("E", bound="LatencyEstimator")

#: No prediction is below this share of the smallest latency that was fitted.
FLOOR = 0.1
#: Latencies below one microsecond differ by noise alone, so errors there do not count for more.
RESOLUTION_MS = 1e-3


class LatencyEstimator(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """What all estimators share: checks, the floor, and reading and writing the learned state."""

    name: ClassVar[str]
    feature_set: ClassVar[FeatureSet]
    floor_: float
    n_features_in_: int

    def fit(self: E, X: ArrayLike, y: ArrayLike) -> E:
        """Fit features (items, features) to latencies (items), which must be positive."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        X, y = np.asarray(X, np.float64), np.asarray(y, np.float64)
        if not (y > 0).all():
            raise ValueError(f"Latencies must be positive, got {y.min():g}.")
        self.floor_ = float(FLOOR * y.min())
        self._fit(X, y)
        return self

    def predict(self, X: ArrayLike) -> Vector:
        """Latencies in milliseconds, shaped (items); at least `floor_`."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=np.float64)
        return np.maximum(self._predict(np.asarray(X, np.float64)), self.floor_)

    def state(self, names: Sequence[str]) -> dict[str, Any]:
        """The learned state as JSON values; `names` are the features in the order of fitting."""
        check_is_fitted(self)
        return {"floor_ms": self.floor_, **self._write(names)}

    @classmethod
    def from_state(cls: type[E], state: State, names: Sequence[str]) -> E:
        """The fitted estimator again; raises `ValueError` with the key and value at fault."""
        estimator = cls()
        estimator.n_features_in_ = len(names)
        estimator.floor_ = number(state, "floor_ms")
        if estimator.floor_ <= 0:
            raise ValueError(f"floor_ms must be positive, got {estimator.floor_:g}.")
        estimator._read(state, names)
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def _fit(self, X: Vector, y: Vector) -> None:
        raise NotImplementedError

    def _predict(self, X: Vector) -> Vector:
        raise NotImplementedError

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        raise NotImplementedError

    def _read(self, state: State, names: Sequence[str]) -> None:
        raise NotImplementedError


def number(values: State, key: str, *, non_negative: bool = False) -> float:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{key} must be a finite number, got {value!r}.")
    if non_negative and value < 0:
        raise ValueError(f"{key} must not be negative, got {value!r}.")
    return float(value)
