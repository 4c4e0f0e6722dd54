"""Columns that say which measurement run a row is of, beside its features.

An overhead and a factor for each run (`runs`) are the same for all ops of the run. An estimator
that looks at columns can learn more: that ops which differ little take alike within a run, where
clocks, threads and drivers were the same, and need not in another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codl.predict.estimators.json_arrays import Vector, rounded

#: More runs than this are told apart by their terms alone: each column needs shapes of its own.
MOST = 16


@dataclass(frozen=True)
class RunColumns:
    """A column for each of some runs: 1 in the run's rows, 0 in those of other runs.

    `shares` says how large a part of all rows each run has, by its name.
    """

    shares: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, labels: Sequence[str]) -> RunColumns:
        """Columns of all runs among the labels; none where there are too many."""
        rows = Counter(labels)
        if len(rows) > MOST:
            return cls()
        return cls({name: float(rounded(rows[name] / len(labels))) for name in sorted(rows)})

    def beside(self, X: Vector, labels: Sequence[str] | None) -> Vector:
        """Features with the columns, shaped (items, features + runs).

        A run without a column, or none, is typical: a part of each run by its share of rows, so
        that a few rows of a slow hour do not make all predictions slow.
        """
        if not self.shares:
            return X
        typical = np.array(list(self.shares.values()))
        if labels is None:
            return np.column_stack([X, np.broadcast_to(typical, (len(X), len(typical)))])
        rows = dict(zip(self.shares, np.eye(len(self.shares)), strict=True))
        return np.column_stack([X, [rows.get(label, typical) for label in labels]])

    def beside_names(self, names: Sequence[str]) -> list[str]:
        """The features' names, and names of the columns."""
        return [*names, *(f"run {name}" for name in self.shares)]

    def state(self) -> dict[str, float]:
        """Every run's share of the rows, by its name."""
        return dict(self.shares)

    @classmethod
    def read(cls, state: Any) -> RunColumns:
        """The columns of a state; raises `ValueError` with what is wrong."""
        if not isinstance(state, Mapping):
            raise ValueError(f"run_columns must hold shares of runs, got {state!r:.80}.")
        for name, share in state.items():
            known = isinstance(share, int | float) and not isinstance(share, bool)
            if not known or not 0 < share <= 1:
                raise ValueError(
                    f"run_columns, {name}: must be a share of rows in (0, 1], got {share!r}."
                )
        return cls({str(name): float(share) for name, share in state.items()})
