"""Linear least squares: non-negative with relative errors, and ridge regression."""

from __future__ import annotations

from typing import cast

import numpy as np
from scipy.optimize import nnls
from sklearn import config_context
from sklearn.linear_model import Ridge

from codl.predict.estimators.json_arrays import Vector, rounded

#: Latencies below one microsecond differ by noise alone, so errors there do not count for more.
RESOLUTION_MS = 1e-3
#: Significant digits of costs: where none is negative, no sum is further off than its terms.
DIGITS_OF_COSTS = 4
#: Picks one of many equally good solutions where features are multiples of each other.
COSTS_PULL = 1e-6
#: Pull of a ridge's slopes towards 0, for each row.
RIDGE_PULL = 1e-3


def costs(X: Vector, y: Vector) -> tuple[Vector, float]:
    """Non-negative costs of the features and a non-negative overhead, in milliseconds.

    Minimises the sum of squared relative errors, sum(((X @ costs + overhead) / y - 1)^2), by
    non-negative least squares (Lawson and Hanson, *Solving Least Squares Problems*, 1974, ch. 23).
    """
    unit = np.maximum(y, RESOLUTION_MS)
    relative = np.column_stack([X, np.ones_like(y)]) / unit[:, None]
    scale = largest_sizes(relative) * np.sqrt(len(y))
    size = relative.shape[1]
    rows = np.vstack([relative / scale, COSTS_PULL * np.eye(size)])
    wanted = np.concatenate([y / unit, np.zeros(size)])
    coefficients = rounded(nnls(rows, wanted)[0] / scale, DIGITS_OF_COSTS)
    return coefficients[:-1], float(coefficients[-1])


def ridge(scaled: Vector, target: Vector) -> Vector:
    """Slopes, and behind them the constant: least squares with a pull of the slopes towards 0."""
    with config_context(assume_finite=True, skip_parameter_validation=True):
        fitted = Ridge(RIDGE_PULL * len(scaled), solver="cholesky").fit(scaled, target)
    return np.append(fitted.coef_, fitted.intercept_)


def largest_sizes(X: Vector) -> Vector:
    """The largest size of every column, 1 for a column of zeros: keeps a solver well posed."""
    largest = np.abs(X).max(axis=0)
    return cast(Vector, np.where(largest > 0, largest, 1.0))
