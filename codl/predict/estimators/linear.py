"""Linear predictors: muLayer's on FLOPs, the paper's on what a kernel variant's blocks cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.linear_model import LinearRegression

from codl.errors import UnknownNameError
from codl.predict.estimators.arrays import rounded
from codl.predict.estimators.base import (
    RESOLUTION_MS,
    Groups,
    LatencyEstimator,
    State,
    Vector,
    number,
)
from codl.predict.features import FeatureSet

#: Significant digits of coefficients: more would only make files larger.
DIGITS = 7


class _Linear(LatencyEstimator):
    """Latency = overhead + sum of coefficient x feature."""

    coef_: Vector
    intercept_: float
    is_of_wholes: ClassVar[bool] = True
    is_non_negative: ClassVar[bool] = False

    def _predict(self, X: Vector) -> Vector:
        return X @ self.coef_ + self.intercept_

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        """Coefficients by the feature's name; those of 0 are left out."""
        values = zip(names, self.coef_.tolist(), strict=True)
        coefficients = {name: value for name, value in values if value}
        return {"overhead_ms": self.intercept_, "coefficients_ms": coefficients}

    def _read(self, state: State, names: Sequence[str]) -> None:
        coefficients = state.get("coefficients_ms")
        if not isinstance(coefficients, Mapping):
            raise ValueError(f"coefficients_ms must be a mapping, got {coefficients!r}.")
        for name in coefficients:
            if name not in names:
                reason = UnknownNameError("feature", str(name), names)
                raise ValueError(f"coefficients_ms: {reason}")
        self.intercept_ = number(state, "overhead_ms", non_negative=self.is_non_negative)
        known = dict.fromkeys(names, 0.0) | dict(coefficients)
        values = [number(known, n, non_negative=self.is_non_negative) for n in names]
        self.coef_ = np.array(values, np.float64)


class FlopsLinear(_Linear):
    """muLayer's predictor: ordinary linear regression on FLOPs and sizes."""

    name: ClassVar[str] = "flops_linear"
    feature_set: ClassVar[FeatureSet] = "flops"

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        scale = _scale(X)
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
    #: Picks one of many equally good solutions where features are multiples of each other.
    ridge: ClassVar[float] = 1e-6

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        unit = np.maximum(y, RESOLUTION_MS)
        relative = np.column_stack([X, np.ones_like(y)]) / unit[:, None]
        scale = _scale(relative) * np.sqrt(len(y))
        size = relative.shape[1]
        rows = np.vstack([relative / scale, self.ridge * np.eye(size)])
        wanted = np.concatenate([y / unit, np.zeros(size)])
        fitted = LinearRegression(positive=True, fit_intercept=False).fit(rows, wanted)
        coefficients = np.asarray(fitted.coef_, np.float64) / scale
        coefficients = rounded(coefficients, DIGITS)
        self.coef_, self.intercept_ = coefficients[:-1], float(coefficients[-1])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on features that latency falls with
        return tags


def _scale(X: Vector) -> Vector:
    """The largest size of every column, 1 for a column of zeros: keeps the solver well posed."""
    largest = np.abs(X).max(axis=0)
    return cast(Vector, np.where(largest > 0, largest, 1.0))
