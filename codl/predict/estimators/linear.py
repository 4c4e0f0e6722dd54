"""Linear regression of latencies: muLayer's on FLOPs, the paper's on a kernel variant's blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from sklearn.linear_model import LinearRegression

from codl.predict.estimators.base import (
    Groups,
    LatencyEstimator,
    State,
    Vector,
    floor_of,
)
from codl.predict.estimators.json_arrays import number, rounded, to_rows, vector
from codl.predict.estimators.least_squares import costs, largest_sizes
from codl.predict.estimators.rowwise import rowwise_dot
from codl.predict.features import FeatureSet

#: Significant digits of coefficients: more would only make files larger.
DIGITS = 6


class _Linear(LatencyEstimator):
    """Latency = overhead + sum of coefficient x feature."""

    coef_: Vector
    intercept_: float
    is_of_wholes: ClassVar[bool] = True
    is_non_negative: ClassVar[bool] = False

    def _predict(self, X: Vector) -> Vector:
        return rowwise_dot(X, self.coef_) + self.intercept_

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        """Coefficients in the order of the features."""
        return {"overhead_ms": self.intercept_, "costs_ms": to_rows(self.coef_)[0]}

    def _read(self, state: State, names: Sequence[str]) -> None:
        self.intercept_ = number(state, "overhead_ms", non_negative=self.is_non_negative)
        rows = {"costs_ms": [state.get("costs_ms")]}
        self.coef_ = vector(rows, "costs_ms", len(names))
        if self.is_non_negative and (self.coef_ < 0).any():
            raise ValueError(f"costs_ms must not be negative, got {self.coef_.min():g}.")


class FlopsLinear(_Linear):
    """muLayer's predictor: ordinary linear regression on FLOPs and sizes."""

    name: ClassVar[str] = "flops_linear"
    feature_set: ClassVar[FeatureSet] = "flops"

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        scale = largest_sizes(X)
        fitted = LinearRegression().fit(X / scale, y)
        self.coef_ = rounded(np.asarray(fitted.coef_, np.float64) / scale, DIGITS)
        self.intercept_ = float(rounded(fitted.intercept_, DIGITS))


class CodlLinear(_Linear):
    """The paper's predictor (section 5.2): every block that runs costs its part, never less than 0.

    Minimises the sum of squared relative errors under non-negative coefficients and overhead, so
    that small parts, where a chain's ratio is decided, count as much as large ones.
    """

    name: ClassVar[str] = "codl_linear"
    feature_set: ClassVar[FeatureSet] = "variant"
    is_non_negative: ClassVar[bool] = True

    @classmethod
    def of(cls, X: Vector, y: Vector) -> CodlLinear:
        """`fit` for features and latencies that have been checked."""
        result = cls()
        result.n_features_in_, result.floor_, result.runs_ = X.shape[1], floor_of(y), {}
        result._fit(X, y, np.empty(0, np.intp))
        return result

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        self.coef_, self.intercept_ = costs(X, y)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on features that latency falls with
        return tags
