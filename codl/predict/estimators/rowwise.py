"""Matrix products whose rows do not depend on each other, so that a batch changes no prediction.

BLAS sums a row's products in an order that depends on how many rows there are and on the row's
place among them (gemm against gemv, and full tiles against those at an edge), so a row of
`rows @ matrix` may differ in its last bits from the same row computed alone. Here every row is a
BLAS call of its own, with the same shapes and strides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


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
