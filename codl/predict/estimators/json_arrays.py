"""Arrays in JSON: numbers rounded to significant digits, a row of a matrix as one text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Vector = NDArray[np.float64]

#: Significant digits that learned numbers keep; what is fitted after them knows them so.
DIGITS = 4


def rounded(values: ArrayLike, digits: int = DIGITS) -> Vector:
    """The nearest numbers of `digits` significant digits: those that a file will hold."""
    array = np.asarray(values, np.float64)
    return np.array([float(f"{v:.{digits}g}") for v in array.ravel()]).reshape(array.shape)


def medians(values: Vector, groups: NDArray[np.intp]) -> Vector:
    """The median of each group's values, in the groups' order."""
    order = np.lexsort((values, groups))
    _, first, count = np.unique(groups[order], return_index=True, return_counts=True)
    low, high = (values[order[first + (count - more) // 2]] for more in (1, 0))
    result: Vector = (low + high) / 2
    return result


def to_rows(values: Vector) -> list[str]:
    """A text for every row of a matrix (a vector is one row), its numbers separated by spaces."""
    return [" ".join(map(short, row)) for row in np.atleast_2d(values).tolist()]


def short(value: float) -> str:
    """The shortest text that reads back as the same number: without a 0 before the point."""
    text = f"{value:.6g}"
    text = text if float(text) == value else repr(value)
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    text = text[1:] if text.startswith("0.") else text
    return sign + text.replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


def from_rows(state: Mapping[str, Any], key: str, *, rows: int, columns: int | None) -> Vector:
    """The finite matrix of `state[key]`; raises `ValueError` with the key and what is wrong.

    Without `columns` there are as many as in the first row.
    """
    texts = state.get(key)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{key} must be a list of rows of numbers, got {texts!r:.80}.")
    if len(texts) != rows:
        raise ValueError(f"{key} must have {rows} rows, got {len(texts)}.")
    columns = len(texts[0].split()) if columns is None else columns
    result = np.empty((rows, columns))
    for at, text in enumerate(texts):
        result[at] = _row(key, text.split(), columns)
    return result


def _row(key: str, words: Sequence[str], columns: int) -> list[float]:
    if len(words) != columns:
        raise ValueError(f"{key} must have {columns} numbers in a row, got {len(words)}.")
    try:
        values = [float(word) for word in words]
    except ValueError as error:
        raise ValueError(f"{key} must hold numbers: {error}.") from error
    if not np.isfinite(values).all():
        raise ValueError(f"{key} must hold finite numbers, got {' '.join(words)!r:.80}.")
    return values


def vector(state: Mapping[str, Any], key: str, size: int) -> Vector:
    """The finite numbers of a list of one row."""
    row: Vector = from_rows(state, key, rows=1, columns=size)[0]
    return row


def number(values: Mapping[str, Any], key: str, *, non_negative: bool = False) -> float:
    """The finite number of `values[key]`; raises `ValueError` with the key and the value."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ValueError(f"{key} must be a finite number, got {value!r}.")
    if non_negative and value < 0:
        raise ValueError(f"{key} must not be negative, got {value!r}.")
    return float(value)
