"""Columns that say which measurement run a row is of, beside its features.

An overhead and a factor for each run (`runs`) are the same for all ops of the run. An estimator
that looks at columns can learn more: that ops which differ little take alike within a run, where
clocks, threads and drivers were the same, and need not in another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codl.predict.estimators.arrays import Vector

#: More runs than this are told apart by their terms alone: each column needs shapes of its own.
MOST = 16


@dataclass(frozen=True)
class RunColumns:
    """A column for each of some runs: 1 in the run's rows, 0 in those of other runs."""

    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, labels: Sequence[str]) -> RunColumns:
        """Columns of all runs among the labels; none where there are too many."""
        names = tuple(sorted(set(labels)))
        return cls(names if len(names) <= MOST else ())

    def beside(self, X: Vector, labels: Sequence[str] | None) -> Vector:
        """Features with the columns, shaped (items, features + runs).

        A run without a column, or none, is typical: a part of each.
        """
        if not self.names:
            return X
        typical = np.full(len(self.names), 1 / len(self.names))
        if labels is None:
            return np.column_stack([X, np.broadcast_to(typical, (len(X), len(typical)))])
        rows = dict(zip(self.names, np.eye(len(self.names)), strict=True))
        return np.column_stack([X, [rows.get(label, typical) for label in labels]])

    def beside_names(self, names: Sequence[str]) -> list[str]:
        """The features' names, and names of the columns."""
        return [*names, *(f"run {name}" for name in self.names)]

    def state(self) -> dict[str, str]:
        """The run of every column, by the column's name."""
        return dict(zip(self.beside_names(()), self.names, strict=True))

    @classmethod
    def read(cls, state: Any) -> RunColumns:
        """The columns of a state; raises `ValueError` with what is wrong."""
        known = isinstance(state, Mapping)
        if not known or not all(isinstance(name, str) for name in state.values()):
            raise ValueError(f"run_columns must hold runs by their columns, got {state!r:.80}.")
        found = cls(tuple(state.values()))
        if found.state() != dict(state):
            raise ValueError(f"run_columns must be named by their runs, got {state!r:.80}.")
        return found
