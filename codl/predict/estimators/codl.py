"""codl's own predictor: a physical base times what Gaussian processes have learned about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from codl.predict.estimators.arrays import from_rows, rounded, to_rows, vector
from codl.predict.estimators.base import (
    RESOLUTION_MS,
    Groups,
    LatencyEstimator,
    State,
    Vector,
    inner_folds,
    number,
)
from codl.predict.estimators.gaussian import Kernel, Projection, spread_points
from codl.predict.estimators.intervals import Errors
from codl.predict.estimators.linear import CodlLinear
from codl.predict.features import FeatureSet

#: Rows that the kernels' lengths are found with: the search takes time with their cube.
SEARCHED = 180
SEED = 0
#: With fewer rows the base stands alone.
LEAST_ROWS = 8
#: Columns that correlate more than this say the same.
SAME = 0.9999
#: Pull of the level's slopes towards 0, for each row.
RIDGE = 1e-3
#: How far past the corrections seen in training, in logarithms, a correction may go.
SLACK = 0.3
#: Shares of the second member that are tried.
SHARES = np.linspace(0, 1, 11)
#: A share must beat none by this part of the error: what is gained by less is chance.
WORTH = 0.01


@dataclass(frozen=True)
class Member:
    """A line on the scaled features plus a Gaussian process, of a logarithm."""

    line: Vector
    lengths: Vector
    amplitude: float
    weights: Vector

    def kernel(self, noise: float = 0.0) -> Kernel:
        return Kernel(self.lengths, self.amplitude, noise)

    def predict(self, scaled: Vector, points: Vector) -> tuple[Vector, Vector]:
        """The logarithm, and how far from all points an item is: 0 at one, 1 far from all."""
        covariance = self.kernel()(scaled, points)
        near = covariance.max(1) / self.amplitude**2
        return _line(scaled, self.line) + covariance @ self.weights, 1 - near


class Codl(LatencyEstimator):
    """Latency = what the blocks cost (`codl_linear`) x exp(Gaussian process on their logs).

    Blended with a second process on the latency's logarithm itself, by the share that did best on
    shapes held out within the training rows. Their errors give the intervals.
    """

    name: ClassVar[str] = "codl"
    feature_set: ClassVar[FeatureSet] = "variant"
    base_: CodlLinear
    columns_: Sequence[int]
    center_: Vector
    spread_: Vector
    points_: Vector
    members_: tuple[Member, ...]
    share_: float
    limits_: Vector
    errors_: Errors

    def __init__(self, *, points: int = 128, steps: int = 30) -> None:
        self.points = points
        self.steps = steps

    def _fit(self, X: Vector, y: Vector, groups: Groups) -> None:
        logs = np.log(np.maximum(y, RESOLUTION_MS))
        self.base_ = _base(X, y)
        self._scale(X)
        scaled = self._scaled(X)
        if len(y) < LEAST_ROWS or not self.columns_:
            self._fit_base_alone(X, logs)
            return
        rows = spread_points(scaled, self.points)
        self.points_ = rounded(scaled[rows], 4)
        base = np.log(self.base_.predict(X))
        level = _ridge(scaled, logs)
        lines = (np.append(np.zeros(scaled.shape[1]), np.median(logs - base)), level)
        members, projections = [], []
        for line, target in zip(lines, (logs - base, logs), strict=True):
            line = rounded(line)
            rest = target - _line(scaled, line)
            projection = Projection(self._kernel(scaled, rest), self.points_, scaled, rest)
            kernel, weights = projection.kernel, rounded(projection.weights)
            members.append(Member(line, kernel.lengths, kernel.amplitude, weights))
            projections.append(projection)
        self.members_ = tuple(members)
        self._check(X, y, groups, projections, rows)

    def _kernel(self, scaled: Vector, rest: Vector) -> Kernel:
        some = _different(scaled)[:SEARCHED]
        found = Kernel.search(scaled[some], rest[some] - rest[some].mean(), steps=self.steps)
        return Kernel(rounded(found.lengths, 4), float(rounded(found.amplitude, 4)), found.noise)

    def _fit_base_alone(self, X: Vector, logs: Vector) -> None:
        self.points_ = np.empty((0, len(self.columns_)))
        self.members_, self.share_ = (), 0.0
        off = float(np.median(logs - np.log(self.base_.predict(X)))) if len(logs) > 1 else 0.0
        self.limits_ = rounded([min(off, 0.0), max(off, 0.0)])
        self.errors_ = Errors.unknown(2)
        self.inner_ = self.base_.predict(X)

    def _check(
        self,
        X: Vector,
        y: Vector,
        groups: Groups,
        projections: Sequence[Projection],
        rows: Groups,
    ) -> None:
        """Hold out shapes in turn: the best share, the limits and the errors follow."""
        logs, scaled = np.log(np.maximum(y, RESOLUTION_MS)), self._scaled(X)
        base, far = np.empty(len(y)), np.empty(len(y))
        held_out = np.empty((2, len(y)))
        for fold in inner_folds(groups):
            train = np.setdiff1d(np.arange(len(y)), fold)
            all_base = np.log(_base(X[train], y[train]).predict(X))
            base[fold] = all_base[fold]
            level = _ridge(scaled[train], logs[train])
            shift = np.median((logs - all_base)[train])
            lines = (all_base + shift, _line(scaled, level))
            for at, (line, projection) in enumerate(zip(lines, projections, strict=True)):
                weights = projection.without(fold, logs - line)
                held_out[at, fold] = line[fold] + projection.cross[fold] @ weights
            others = ~np.isin(rows, fold)
            near = projections[0].cross[np.ix_(fold, others)] if others.any() else np.zeros((1, 1))
            far[fold] = 1 - near.max(1) / projections[0].kernel.amplitude ** 2
        corrections = held_out - base
        low, high = np.quantile(logs - base, [0.0, 1.0])
        self.limits_ = rounded([low - SLACK, high + SLACK])
        corrections = corrections.clip(*self.limits_)
        wrong = [
            np.minimum(np.abs(logs - base - _mix(corrections, share)), 1).mean() for share in SHARES
        ]
        best = int(np.argmin(wrong))
        self.share_ = float(SHARES[best]) if wrong[best] < (1 - WORTH) * wrong[0] else 0.0
        mixed = base + _mix(corrections, self.share_)
        signs = np.column_stack([np.abs(corrections[0] - corrections[1]), far])
        self.errors_ = Errors.fit(logs - mixed, signs, groups)
        self.inner_ = np.exp(mixed)

    def _scale(self, X: Vector) -> None:
        """Keep the columns that vary and say something of their own."""
        logs = np.log1p(np.abs(X))
        center, spread = rounded(logs.mean(0)), rounded(logs.std(0))
        kept: list[int] = []
        for column in np.flatnonzero(spread > 1e-6).tolist():
            own = (logs[:, column] - center[column]) / spread[column]
            others = (logs[:, kept] - center[kept]) / spread[kept]
            if not kept or np.abs(own @ others / len(own)).max() < SAME:
                kept.append(column)
        self.columns_, self.center_, self.spread_ = kept, center[kept], spread[kept]

    def _scaled(self, X: Vector) -> Vector:
        scaled: Vector = np.log1p(np.abs(X[:, self.columns_]))
        scaled -= self.center_
        scaled /= self.spread_
        return scaled

    def _corrections(self, X: Vector, base: Vector, *, both: bool) -> tuple[Vector, Vector]:
        """What each member corrects the base's logarithm by, and how far an item is from points.

        A member without a share is not asked, unless for `both`.
        """
        result, far = np.zeros((2, len(X))), np.ones(len(X))
        if not self.members_:
            return result + self.limits_.sum(), far
        scaled = self._scaled(X)
        residual, level = self.members_
        if both or self.share_ < 1:
            result[0], far = residual.predict(scaled, self.points_)
        if both or self.share_ > 0:
            result[1] = level.predict(scaled, self.points_)[0] - base
        return result.clip(*self.limits_), far

    def _predict(self, X: Vector) -> Vector:
        base = self.base_.predict(X)
        corrections, _ = self._corrections(X, np.log(base), both=False)
        return base * np.exp(_mix(corrections, self.share_))

    def _bounds(self, X: Vector, coverage: float) -> tuple[Vector, Vector]:
        base = self.base_.predict(X)
        corrections, far = self._corrections(X, np.log(base), both=True)
        signs = np.column_stack([np.abs(corrections[0] - corrections[1]), far])
        low, high = self.errors_.bounds(signs, coverage)
        predicted = base * np.exp(_mix(corrections, self.share_))
        return predicted * np.exp(low), predicted * np.exp(high)

    def _inner(self, X: Vector) -> Vector:
        return self.inner_

    def _write(self, names: Sequence[str]) -> dict[str, Any]:
        return {
            "base": self.base_.state(names),
            "columns": [names[column] for column in self.columns_],
            "scaling": to_rows(np.vstack([self.center_, self.spread_])),
            "points": to_rows(self.points_) if len(self.points_) else [],
            "members": [
                {
                    "line": to_rows(member.line),
                    "lengths": to_rows(member.lengths),
                    "amplitude": member.amplitude,
                    "weights": to_rows(member.weights),
                }
                for member in self.members_
            ],
            "share": self.share_,
            "limits": to_rows(self.limits_),
            "errors": self.errors_.state(),
        }

    def _read(self, state: State, names: Sequence[str]) -> None:
        base, columns = state.get("base"), state.get("columns")
        if not isinstance(base, Mapping):
            raise ValueError(f"base must be a mapping, got {base!r:.80}.")
        self.base_ = CodlLinear.from_state(base, names)
        known = isinstance(columns, list) and all(column in names for column in columns)
        if not isinstance(columns, list) or not known:
            raise ValueError(f"columns must be some of the features, got {columns!r:.80}.")
        self.columns_ = [list(names).index(column) for column in columns]
        width = len(columns)
        try:
            scaling = from_rows(state, "scaling", rows=2, columns=width)
        except ValueError as error:
            raise ValueError(
                f"{error} It has a center and a spread for each of columns."
            ) from error
        self.center_, self.spread_ = scaling
        if (self.spread_ <= 0).any():
            raise ValueError("scaling must have positive spreads.")
        self.points_ = from_rows(state, "points", rows=None, columns=width)
        self.members_ = _members(state.get("members"), width, len(self.points_))
        self.share_ = number(state, "share", non_negative=True)
        if self.share_ > 1:
            raise ValueError(f"share must be at most 1, got {self.share_:g}.")
        self.limits_ = vector(state, "limits", 2)
        if self.limits_[0] > self.limits_[1]:
            raise ValueError("limits must be in order.")
        self.errors_ = Errors.from_state(state.get("errors"), 2)


def _different(scaled: Vector) -> Groups:
    """All rows in random order, the first of every different item before their repetitions."""
    order = np.random.default_rng(SEED).permutation(len(scaled))
    first = np.unique(scaled[order], axis=0, return_index=True)[1]
    result: Groups = np.concatenate([order[np.sort(first)], np.delete(order, first)])
    return result


def _members(state: Any, width: int, points: int) -> tuple[Member, ...]:
    expected = 2 if points else 0
    if not isinstance(state, list) or len(state) != expected:
        raise ValueError(
            f"members must be a list of {expected} where there are {points} points, "
            f"got {state!r:.80}."
        )
    members = []
    for own in state:
        if not isinstance(own, Mapping):
            raise ValueError(f"members must be mappings, got {own!r:.80}.")
        lengths, amplitude = vector(own, "lengths", width), number(own, "amplitude")
        if (lengths <= 0).any() or amplitude <= 0:
            raise ValueError("members: lengths and amplitude must be positive.")
        line, weights = vector(own, "line", width + 1), vector(own, "weights", points)
        members.append(Member(line, lengths, amplitude, weights))
    return tuple(members)


def _base(X: Vector, y: Vector) -> CodlLinear:
    """The linear predictor with the digits that a file holds."""
    base = CodlLinear().fit(X, y)
    base.coef_ = rounded(base.coef_)
    base.intercept_ = float(rounded(base.intercept_))
    return base


def _line(scaled: Vector, line: Vector) -> Vector:
    result: Vector = scaled @ line[:-1] + line[-1]
    return result


def _ridge(scaled: Vector, target: Vector) -> Vector:
    """Slopes and a constant: least squares with a pull of the slopes towards 0."""
    rows = np.column_stack([scaled, np.ones(len(scaled))])
    pull = np.full(rows.shape[1], RIDGE * len(rows))
    pull[-1] = 1e-9
    result: Vector = np.linalg.solve(rows.T @ rows + np.diag(pull), rows.T @ target)
    return result


def _mix(corrections: Vector, share: float) -> Vector:
    result: Vector = (1 - share) * corrections[0] + share * corrections[1]
    return result
