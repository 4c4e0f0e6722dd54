"""Array routines: rounding, batch-invariant products, least squares.

BLAS's summation order depends on the number of rows and a row's place (gemm or gemv, full or edge
tiles). So a row of `rows @ matrix` may differ in its last bits from the same row alone.
`rowwise_matmul` and `rowwise_dot` use one BLAS call of fixed shape and strides for each row: a
prediction does not depend on its batch.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]
Groups = NDArray[np.intp]
Array = NDArray[Any]

#: Significant digits of learned numbers; later fitting steps use the rounded values.
DIGITS = 4
#: Denominator floor of relative errors: below one microsecond, latencies are noise.
RESOLUTION_MS = 1e-3
#: Ridge penalty of costs: makes the solution unique for collinear features.
COSTS_PULL = 1e-6
#: Ridge penalty of slopes, for each row.
RIDGE_PULL = 1e-3


def rounded(values: ArrayLike, digits: int = DIGITS) -> Vector:
    """The values rounded to `digits` significant digits, the precision of stored files."""
    array = np.asarray(values, np.float64)
    return np.array([float(f"{v:.{digits}g}") for v in array.ravel()]).reshape(array.shape)


def rowwise_matmul(rows: Array, matrix: Array) -> Array:
    """`rows @ matrix` of shapes (items, n) and (n, m), as one gemv for every row."""
    items, size = rows.shape
    alone = np.ascontiguousarray(rows).reshape(items, 1, size)
    product: Array = np.matmul(alone, np.ascontiguousarray(matrix))
    return product.reshape(items, matrix.shape[1])


def rowwise_dot(rows: Array, vector: Array) -> Array:
    """`rows @ vector` of shapes (items, n) and (n), as one dot product for every row."""
    product: Array = np.vecdot(np.ascontiguousarray(rows), vector)
    return product


def costs(X: Vector, y: Vector) -> tuple[Vector, float]:
    """Non-negative costs (features) and overhead, in ms, for `X` (rows, features) and `y` (rows).

    Minimises the sum of squared relative errors, sum(((X @ costs + overhead) / y - 1)^2), by
    non-negative least squares (Lawson and Hanson, *Solving Least Squares Problems*, 1974, ch. 23).
    """
    from scipy.optimize import nnls

    unit = np.maximum(y, RESOLUTION_MS)
    relative = np.column_stack([X, np.ones_like(y)]) / unit[:, None]
    scale = largest_sizes(relative) * np.sqrt(len(y))
    size = relative.shape[1]
    rows = np.vstack([relative / scale, COSTS_PULL * np.eye(size)])
    wanted = np.concatenate([y / unit, np.zeros(size)])
    coefficients = rounded(nnls(rows, wanted)[0] / scale)
    return coefficients[:-1], float(coefficients[-1])


def ridge(scaled: Vector, target: Vector) -> Vector:
    """Ridge regression of `target` (rows) on `scaled` (rows, n): n slopes, then the constant."""
    from sklearn import config_context
    from sklearn.linear_model import Ridge

    with config_context(assume_finite=True, skip_parameter_validation=True):
        fitted = Ridge(RIDGE_PULL * len(scaled), solver="cholesky").fit(scaled, target)
    return np.append(fitted.coef_, fitted.intercept_)


def largest_sizes(X: Vector) -> Vector:
    """The largest absolute value of every column, 1 for a column of zeros: scales of a solver."""
    largest = np.abs(X).max(axis=0)
    return cast(Vector, np.where(largest > 0, largest, 1.0))


def farthest_points(points: Vector, most: int, nearest: Vector) -> list[int]:
    """Farthest-point sampling: at most `most` indices, each farthest from what was taken before.

    `nearest` has the squared distance of every point (points, features) from what is taken at
    first. A point equal to a taken one is left out.
    """
    order: list[int] = []
    while len(order) < most and nearest[farthest := int(nearest.argmax())] > 1e-12:
        order.append(farthest)
        nearest = np.minimum(nearest, ((points - points[farthest]) ** 2).sum(1))
    return order
