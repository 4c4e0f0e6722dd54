"""Arrays of numbers: rounded, in JSON, multiplied row by row, and solved for.

BLAS sums a row's products in an order that depends on how many rows there are and on the row's
place among them (gemm against gemv, and full tiles against those at an edge), so a row of
`rows @ matrix` may differ in its last bits from the same row computed alone. In `rowwise_matmul`
and `rowwise_dot` every row is a BLAS call of its own, with the same shapes and strides: a batch
changes no prediction.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]
Groups = NDArray[np.intp]
Array = NDArray[Any]

#: Significant digits that learned numbers keep; what is fitted after them knows them so.
DIGITS = 4
#: Latencies below one microsecond differ by noise alone, so errors there do not count for more.
RESOLUTION_MS = 1e-3
#: Picks one of many equally good solutions where features are multiples of each other.
COSTS_PULL = 1e-6
#: Pull of a ridge's slopes towards 0, for each row.
RIDGE_PULL = 1e-3


def rounded(values: ArrayLike, digits: int = DIGITS) -> Vector:
    """The nearest numbers of `digits` significant digits: those that a file will hold."""
    array = np.asarray(values, np.float64)
    return np.array([float(f"{v:.{digits}g}") for v in array.ravel()]).reshape(array.shape)


def medians(values: Vector, groups: Groups) -> Vector:
    """The median of each group's values, in the groups' order."""
    order = np.lexsort((values, groups))
    _, first, count = np.unique(groups[order], return_index=True, return_counts=True)
    low, high = (values[order[first + (count - more) // 2]] for more in (1, 0))
    result: Vector = (low + high) / 2
    return result


def to_json(value: Any) -> Any:
    """msgspec's hook for what it cannot write: arrays are lists of their rows."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise NotImplementedError(type(value))


def from_json(kind: Any, value: Any) -> Any:
    """msgspec's hook for what it cannot read: an array of finite numbers, of 64 bits each."""
    (dtype,) = kind.__args__[1].__args__
    try:
        array = np.array(value, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected rows of as many numbers each, got {value!r:.60}") from error
    if not np.isfinite(array).all():
        raise ValueError("Expected finite numbers")
    return array


def rowwise_matmul(rows: Array, matrix: Array) -> Array:
    """`rows @ matrix` of shapes (items, n) and (n, m): one gemv for every row."""
    items, size = rows.shape
    alone = np.ascontiguousarray(rows).reshape(items, 1, size)
    product: Array = np.matmul(alone, np.ascontiguousarray(matrix))
    return product.reshape(items, matrix.shape[1])


def rowwise_dot(rows: Array, vector: Array) -> Array:
    """`rows @ vector` of shapes (items, n) and (n): one dot product for every row."""
    product: Array = np.vecdot(np.ascontiguousarray(rows), vector)
    return product


def costs(X: Vector, y: Vector) -> tuple[Vector, float]:
    """Non-negative costs of the features and a non-negative overhead, in milliseconds.

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
    """Slopes, and behind them the constant: least squares with a pull of the slopes towards 0."""
    from sklearn import config_context
    from sklearn.linear_model import Ridge

    with config_context(assume_finite=True, skip_parameter_validation=True):
        fitted = Ridge(RIDGE_PULL * len(scaled), solver="cholesky").fit(scaled, target)
    return np.append(fitted.coef_, fitted.intercept_)


def largest_sizes(X: Vector) -> Vector:
    """The largest size of every column, 1 for a column of zeros: keeps a solver well posed."""
    largest = np.abs(X).max(axis=0)
    return cast(Vector, np.where(largest > 0, largest, 1.0))
