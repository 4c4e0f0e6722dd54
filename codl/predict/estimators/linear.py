"""Linear regression of latencies: muLayer's on FLOPs, the paper's on a kernel variant's blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codl.predict.estimators import LatencyEstimator, floor_of
from codl.predict.estimators.numerics import (
    Groups,
    Vector,
    costs,
    largest_sizes,
    rounded,
    rowwise_dot,
)
from codl.predict.features import FeatureSet

#: Significant digits of muLayer's coefficients: more would only make files larger.
DIGITS = 6


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
    def _fit(cls, X: Vector, y: Vector, groups: Groups) -> FlopsLinear:
        from sklearn.linear_model import LinearRegression

        scale = largest_sizes(X)
        fitted = LinearRegression().fit(X / scale, y)
        costs_ms = rounded(np.asarray(fitted.coef_, np.float64) / scale, DIGITS)
        return cls(overhead_ms=float(rounded(fitted.intercept_, DIGITS)), costs_ms=costs_ms)


class CodlLinear(_Linear):
    """The paper's predictor (section 5.2): every block that runs costs its part, never less than 0.

    Minimises the sum of squared relative errors under non-negative coefficients and overhead, so
    that small parts, where a chain's ratio is decided, count as much as large ones.
    """

    name: ClassVar[str] = "codl_linear"
    feature_set: ClassVar[FeatureSet] = "variant"

    @classmethod
    def _fit(cls, X: Vector, y: Vector, groups: Groups) -> CodlLinear:
        return cls.base(X, y)

    @classmethod
    def base(cls, X: Vector, y: Vector) -> CodlLinear:
        """What other predictors correct, fitted to features and latencies of one run."""
        costs_ms, overhead_ms = costs(X, y)
        return cls(floor_ms=floor_of(y), overhead_ms=overhead_ms, costs_ms=costs_ms)
