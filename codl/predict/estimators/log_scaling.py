"""Standardised logarithms of features, without constant and duplicate columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codl.predict.estimators.json_arrays import Vector, from_rows, rounded, to_rows

#: Significant digits of centers and spreads: duplicate columns are detected after scaling.
DIGITS = 6
#: Columns that correlate more than this are duplicates.
DUPLICATE = 0.9999
#: Columns that spread less do not vary.
LEAST_SPREAD = 1e-6
#: Columns of runs are scaled by no less, or a run of few rows would be far from all others.
LEAST_RUN_SPREAD = 0.2


@dataclass(frozen=True)
class LogScaling:
    """The `columns` that are kept, and the center and the spread of each one's logarithm."""

    columns: Sequence[int]
    center: Vector
    spread: Vector

    @classmethod
    def of(cls, X: Vector, run_columns: int) -> LogScaling:
        """The scaling of features (rows, features); the last `run_columns` are those of runs."""
        logs = logarithms(X)
        center, spread = (rounded(v, DIGITS) for v in (logs.mean(0), logs.std(0)))
        runs = X.shape[1] - run_columns
        spread[runs:] = np.maximum(spread[runs:], LEAST_RUN_SPREAD)
        kept: list[int] = []
        for column in np.flatnonzero(spread > LEAST_SPREAD).tolist():
            own = (logs[:, column] - center[column]) / spread[column]
            others = (logs[:, kept] - center[kept]) / spread[kept]
            if not kept or np.abs(own @ others / len(own)).max() < DUPLICATE:
                kept.append(column)
        return cls(kept, center[kept], spread[kept])

    @classmethod
    def of_nothing(cls) -> LogScaling:
        return cls([], np.empty(0), np.empty(0))

    def logs(self, X: Vector) -> Vector:
        """The logarithms of the columns, shaped (items, columns)."""
        return logarithms(X.take(self.columns, axis=1))

    def scaled(self, X: Vector) -> Vector:
        """The logarithms of the columns, less their centers and over their spreads."""
        scaled = self.logs(X)
        scaled -= self.center
        scaled /= self.spread
        return scaled

    def state(self, names: Sequence[str]) -> dict[str, Any]:
        return {
            "columns": [names[column] for column in self.columns],
            "scaling": to_rows(np.vstack([self.center, self.spread])),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], names: Sequence[str]) -> LogScaling:
        """Read back; raises `ValueError` with the key and what is wrong."""
        columns = state.get("columns")
        known = isinstance(columns, list) and all(column in names for column in columns)
        if not isinstance(columns, list) or not known:
            raise ValueError(f"columns must be some of the features, got {columns!r:.80}.")
        try:
            center, spread = from_rows(state, "scaling", rows=2, columns=len(columns))
        except ValueError as error:
            raise ValueError(
                f"{error} It has a center and a spread for each of columns."
            ) from error
        if (spread <= 0).any():
            raise ValueError("scaling must have positive spreads.")
        return cls([list(names).index(column) for column in columns], center, spread)


def logarithms(X: Vector) -> Vector:
    """Logarithms of 1 more than the features; `log1p` is exact near 0 too, but far slower."""
    result = np.abs(X)
    result += 1
    return np.log(result, out=result)
