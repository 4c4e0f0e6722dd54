"""The `codl` predictor: linear costs, corrected by an ensemble of sparse Gaussian processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from codl.predict.estimators.base import (
    Groups,
    LatencyEstimator,
    State,
    Vector,
)
from codl.predict.estimators.conformal import ErrorQuantiles
from codl.predict.estimators.json_arrays import from_rows, rounded, to_rows, vector
from codl.predict.estimators.least_squares import RESOLUTION_MS, ridge
from codl.predict.estimators.linear import CodlLinear
from codl.predict.estimators.log_scaling import LogScaling
from codl.predict.estimators.rowwise import rowwise_dot
from codl.predict.estimators.run_effects import RunColumns, RunTerm
from codl.predict.estimators.sparse_gp import (
    Items,
    Kernel,
    Member,
    Projection,
    along,
    far_from_others,
    on_line,
    read_members,
    share_grid,
    spread_axes,
    spread_points,
)
from codl.predict.estimators.trees import Trees
from codl.predict.features import FeatureSet
from codl.predict.folds import inner_folds

#: Items that the kernels' lengths are found with: the search takes time with their cube.
SEARCHED = 140
SEED = 0
#: With fewer rows the base stands alone.
LEAST_ROWS = 8
#: Digits behind the point of the points, whose columns spread by 1.
DECIMALS = 1
#: Significant digits of weights: large ones of either sign nearly cancel out.
DIGITS_OF_WEIGHTS = 5
#: How far past the corrections seen in training, in logarithms, a correction may go.
SLACK = 0.3
#: Shares must beat equal ones by this part of the error: less is chance.
WORTH = 0.02
#: The same where runs differ: their terms have seen the rows that are held out.
WORTH_BESIDE_RUNS = 0.2
#: With this many columns or more, a member sees their principal components.
MANY_COLUMNS = 8
#: With this many items or more, boosted trees join: a few points cannot hold that much.
MANY_ITEMS = 800
TREES = {
    "objective": "regression",
    "learning_rate": 0.08,
    "num_leaves": 24,
    "min_data_in_leaf": 4,
    "feature_fraction": 0.3,
    "max_bin": 63,
}
ROUNDS = 200


@dataclass(frozen=True)
class _Candidate:
    """A member before its share is known; `is_level` where it stands without the base."""

    member: Member
    projection: Projection
    is_level: bool


class Codl(LatencyEstimator):
    """Latency = what the blocks cost (`codl_linear`) x exp(Gaussian process on their logs).

    Blended with processes on the latency's logarithm itself, one on the features, one on the
    directions in which they spread, and where there are very many items with boosted trees, by the
    shares that did best on shapes held out within the training rows. Their errors give the
    intervals.
    """

    name: ClassVar[str] = "codl"
    feature_set: ClassVar[FeatureSet] = "variant"
    base_: CodlLinear
    scaling_: LogScaling
    points_: Vector
    members_: tuple[Member, ...]
    is_level_: tuple[bool, ...]
    shares_: Vector
    trees_: Trees | None
    limits_: Vector
    errors_: ErrorQuantiles
    run_columns_: RunColumns

    def __init__(
        self, *, points: int = 128, steps: int = 25, columns_for_runs: bool = True
    ) -> None:
        self.points = points
        self.steps = steps
        self.columns_for_runs = columns_for_runs

    @classmethod
    def by_terms(cls) -> Codl:
        return cls(columns_for_runs=False)

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        runs: Sequence[str] | None = None,
        groups: Sequence[Any] | Groups | None = None,
    ) -> Codl:
        self.run_columns_ = RunColumns()
        return super().fit(X, y, runs=runs, groups=groups)

    def _fit_runs(self, X: Vector, y: Vector, shapes: Groups, labels: Sequence[str]) -> None:
        """Fit with a column for every run: the kernels' lengths say how far runs are apart.

        What stands at a run's floor is fitted like the rest, since ops near it take hardly more.
        """
        columns = RunColumns.of(labels)
        if not columns.shares or not self.columns_for_runs:
            super()._fit_runs(X, y, shapes, labels)
            return
        floors = self._floors(X, y, shapes, labels)
        self.runs_ = {label: RunTerm(floor_ms=floor) for label, floor in floors.items()}
        self.run_columns_ = columns
        self._fit(columns.beside(X, labels), y, shapes)
        self._forget_typical_runs()

    def _beside_run(self, X: Vector, runs: Sequence[str] | None) -> Vector:
        return self.run_columns_.beside(X, runs)

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        logs = np.log(np.maximum(y, RESOLUTION_MS))
        self.base_ = CodlLinear.of(X, y)
        self.scaling_ = LogScaling.of(X, len(self.run_columns_.shares))
        scaled = self.scaling_.scaled(X)
        if len(y) < LEAST_ROWS or not self.scaling_.columns:
            self._fit_base_alone(X, logs)
            return
        items = Items.of(scaled)
        rows = self._choose_points(scaled)
        base = np.log(self.base_.typical(X))
        residual = np.append(np.zeros(scaled.shape[1]), np.median(logs - base))
        level, axes = ridge(scaled, logs), spread_axes(scaled)
        candidates = [
            self._candidate(scaled, logs - base, residual, items),
            self._candidate(scaled, logs, level, items, is_level=True),
        ]
        if scaled.shape[1] >= MANY_COLUMNS:
            turned = self._candidate(scaled, logs, level, items, is_level=True, axes=axes)
            candidates.append(turned)
        self.trees_ = None
        if len(items.first) >= MANY_ITEMS:
            self.trees_ = self._grow(X, base, logs)
        self._choose(X, y, groups, candidates, rows)

    def _choose_points(self, scaled: Vector) -> Groups:
        """Points that spread as the items do; the rows that they are near."""
        rows = spread_points(scaled, self.points)
        points = scaled[rows].round(DECIMALS)
        once = np.sort(np.unique(points, axis=0, return_index=True)[1])
        self.points_ = points[once]
        return rows[once]

    def _grow(self, X: Vector, base: Vector, logs: Vector) -> Trees:
        """Trees of what the base's logarithm lacks."""
        return Trees.fit(self._seen(X, base), logs - base, rounds=ROUNDS, parameters=TREES)

    def _seen(self, X: Vector, base: Vector) -> Vector:
        """What trees look at: the features' logarithms, alone and over the base."""
        logs = self.scaling_.logs(X)
        return np.column_stack([logs, base, logs - base[:, None], logs - logs[:, :1]])

    def _candidate(
        self,
        scaled: Vector,
        target: Vector,
        line: Vector,
        items: Items,
        *,
        is_level: bool = False,
        axes: Vector | None = None,
    ) -> _Candidate:
        line = rounded(line)
        rest, turned = target - on_line(scaled, line), along(scaled, axes)
        kernel = self._kernel(items, turned, rest)
        points = along(self.points_, axes)
        projection = Projection(kernel, points, turned, rest, items.share)
        weights = rounded(projection.weights, DIGITS_OF_WEIGHTS)
        member = Member(line, axes, kernel.lengths, kernel.amplitude, weights)
        return _Candidate(member, projection, is_level)

    def _kernel(self, items: Items, scaled: Vector, rest: Vector) -> Kernel:
        some = np.random.default_rng(SEED).permutation(len(items.first))[:SEARCHED]
        target = items.medians(rest, some)
        trust = items.count[some] * items.share[items.first[some]]
        kernel = Kernel.search(
            scaled[items.first[some]], target - target.mean(), trust, steps=self.steps
        )
        return Kernel(rounded(kernel.lengths, 4), float(rounded(kernel.amplitude, 4)), kernel.noise)

    def _fit_base_alone(self, X: Vector, logs: Vector) -> None:
        self._base_alone()
        off = float(np.median(logs - np.log(self.base_.typical(X)))) if len(logs) > 1 else 0.0
        self.limits_ = rounded([min(off, 0.0), max(off, 0.0)])
        self.inner_ = self.base_.typical(X)

    def _choose(
        self,
        X: Vector,
        y: Vector,
        groups: Groups,
        candidates: Sequence[_Candidate],
        rows: Groups,
    ) -> None:
        """Hold out shapes in turn: the best shares, the limits and the errors follow."""
        logs = np.log(np.maximum(y, RESOLUTION_MS))
        base, corrections = self._held_out(X, y, groups, candidates)
        low, high = np.quantile(logs - base, [0.0, 1.0])
        self.limits_ = rounded([low - SLACK, high + SLACK])
        corrections = corrections.clip(*self.limits_)
        tried = share_grid(len(corrections))
        wrong = np.minimum(np.abs(logs - base - tried @ corrections), 1).mean(1)
        best = int(np.argmin(wrong))
        worth = WORTH_BESIDE_RUNS if self.runs_ and not self.trees_ else WORTH
        if wrong[best] > (1 - worth) * wrong[0]:
            best = 0
        kept = np.flatnonzero(tried[best]).tolist()
        if len(candidates) not in kept:
            self.trees_ = None
        members = [at for at in kept if at < len(candidates)] or [0]
        self.members_ = tuple(candidates[at].member for at in members)
        self.is_level_ = tuple(candidates[at].is_level for at in members)
        self.shares_ = tried[best, members]
        mixed = base + tried[best] @ corrections
        corrections = corrections[sorted({*members, *kept})]
        far = far_from_others(candidates[members[0]].projection, groups, rows)
        signs = np.column_stack([np.ptp(corrections, axis=0), far])
        self.errors_ = ErrorQuantiles.fit(logs - mixed, signs, groups)
        self.inner_ = np.exp(mixed)

    def _held_out(
        self, X: Vector, y: Vector, groups: Groups, candidates: Sequence[_Candidate]
    ) -> tuple[Vector, Vector]:
        """The base's logarithms (rows), and what candidates add to it (candidates, rows)."""
        logs, scaled = np.log(np.maximum(y, RESOLUTION_MS)), self.scaling_.scaled(X)
        base, predicted = np.empty(len(y)), np.empty((len(candidates) + bool(self.trees_), len(y)))
        for fold in inner_folds(groups):
            train = np.setdiff1d(np.arange(len(y)), fold)
            all_base = np.log(CodlLinear.of(X[train], y[train]).typical(X))
            base[fold] = all_base[fold]
            level = on_line(scaled, ridge(scaled[train], logs[train]))
            shifted = all_base + np.median((logs - all_base)[train])
            for at, candidate in enumerate(candidates):
                line, projection = level if candidate.is_level else shifted, candidate.projection
                weights = projection.without(fold, logs - line)
                predicted[at, fold] = line[fold] + projection.cross[fold] @ weights
            if self.trees_:
                trees = self._grow(X[train], all_base[train], logs[train])
                predicted[-1, fold] = base[fold] + trees.predict(self._seen(X[fold], base[fold]))
        return base, predicted - base

    def _corrections(self, X: Vector, base: Vector) -> Vector:
        """What each member adds to the base's logarithm; trees come last, where there are any."""
        if not self.members_:
            return np.full((1, len(X)), self.limits_.sum())
        scaled = self.scaling_.scaled(X)
        rows = [member.predict(scaled, self.points_) for member in self.members_]
        result = np.array(rows) - np.outer(self.is_level_, base)
        if self.trees_:
            result = np.vstack([result, self.trees_.predict(self._seen(X, base))])
        return result.clip(*self.limits_)

    def _mixed(self, corrections: Vector) -> Vector:
        if not self.members_:
            alone: Vector = corrections[0]
            return alone
        # The trees' share is what members leave of 1.
        shares = self.shares_
        if self.trees_:
            shares = np.append(shares, 1 - shares.sum())
        return rowwise_dot(corrections.T, shares)

    def _predict(self, X: Vector) -> Vector:
        base = self.base_.typical(X)
        return base * np.exp(self._mixed(self._corrections(X, np.log(base))))

    def _bounds(self, X: Vector, coverage: float) -> tuple[Vector, Vector]:
        base, far = self.base_.typical(X), np.ones(len(X))
        corrections = self._corrections(X, np.log(base))
        if self.members_:
            far = self.members_[0].far(self.scaling_.scaled(X), self.points_)
        signs = np.column_stack([np.ptp(corrections, axis=0), far])
        low, high = self.errors_.bounds(signs, coverage)
        predicted = base * np.exp(self._mixed(corrections))
        return predicted * np.exp(low), predicted * np.exp(high)

    def _inner(self, X: Vector) -> Vector:
        return self.inner_

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        """What all have, and where there are members what these look at, and what they are."""
        names, runs = self.run_columns_.beside_names(names), self.run_columns_.state()
        content = {
            **({"run_columns": runs} if runs else {}),
            "base": self.base_.state(names),
            "limits": to_rows(self.limits_),
        }
        if not self.members_:
            return content
        return content | {
            **self.scaling_.state(names),
            "points": to_rows(self.points_.T),
            "members": [
                {"share": share, "is_level": is_level, **member.state()}
                for share, is_level, member in zip(
                    self.shares_.tolist(), self.is_level_, self.members_, strict=True
                )
            ],
            **({"trees": self.trees_.state()} if self.trees_ else {}),
            "errors": self.errors_.state(),
        }

    def _read(self, state: State, names: Sequence[str]) -> None:
        self.run_columns_ = RunColumns.read(state.get("run_columns", {}))
        names = self.run_columns_.beside_names(names)
        base = state.get("base")
        if not isinstance(base, Mapping):
            raise ValueError(f"base must be a mapping, got {base!r:.80}.")
        self.base_ = CodlLinear.from_state(base, names)
        self.limits_ = vector(state, "limits", 2)
        if self.limits_[0] > self.limits_[1]:
            raise ValueError("limits must be in order.")
        if "members" in state:
            self._read_members(state, names)
        else:
            self._base_alone()

    def _base_alone(self) -> None:
        self.scaling_ = LogScaling.of_nothing()
        self.points_ = np.empty((0, 0))
        self.members_, self.is_level_, self.shares_, self.trees_ = (), (), np.empty(0), None
        self.errors_ = ErrorQuantiles.unknown(2)

    def _read_members(self, state: State, names: Sequence[str]) -> None:
        self.scaling_ = LogScaling.from_state(state, names)
        width = len(self.scaling_.columns)
        self.points_ = from_rows(state, "points", rows=width, columns=None).T.copy()
        read = read_members(state.get("members"), width, len(self.points_))
        self.members_ = tuple(member for member, _, _ in read)
        self.is_level_ = tuple(is_level for _, is_level, _ in read)
        self.shares_ = np.array([share for _, _, share in read])
        total = float(self.shares_.sum())
        # Trees see every column, the base, the columns over the base, and over the first column.
        trees = "trees" in state
        self.trees_ = Trees.from_state(state["trees"], 3 * width + 1) if trees else None
        if total > 1 + 1e-9 or (not trees and total < 1 - 1e-9):
            raise ValueError(f"members: shares must add up to 1, got {total:g}.")
        self.errors_ = ErrorQuantiles.from_state(state.get("errors"), 2)
