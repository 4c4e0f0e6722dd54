"""Tensors hold float32: which values of other types they can."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import UnsupportedError
from codl.ir.ops.base import Array

#: Integers that float32 tells apart.
EXACT = 1 << 24


def as_float32(name: str, value: NDArray[Any]) -> Array:
    """Numbers as tensors hold them; raises `UnsupportedError` for integers that they cannot."""
    if value.dtype.kind in "iu":
        check_exact(name, value)
    return np.asarray(value, np.float32)


def check_exact(name: str, value: NDArray[Any]) -> None:
    """Raise `UnsupportedError` for a tensor of integers beyond what float32 tells apart."""
    if not value.size:
        return
    largest = max(float(value.max()), -float(value.min()))
    if not largest <= EXACT:
        raise UnsupportedError(
            f"The integer tensor {name!r} reaches {largest:g}; float32 is exact up to {EXACT}."
        )
