"""Fitting of the `codl` predictor's ensemble: sparse Gaussian processes, trees, mixing weights.

A process is the projected process approximation (deterministic training conditional, DTC):
Rasmussen and Williams, *Gaussian Processes for Machine Learning* (2006), section 8.3.4, with
inducing points as in Quinonero-Candela and Rasmussen, JMLR 6 (2005). Its mean at x is k(x)^T w over
m points, with

    w = (K_mn K_nm + s^2 K_mm)^-1 K_mn t

for targets t of n rows and the noise's variance s^2. Lengths, amplitude and noise maximise the
marginal likelihood of a subset of the rows. Unlike scikit-learn's exact process, one product gives
the gradient of all lengths. Training all predictors of a SoC takes seconds, and each file a few
kilobytes of JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.optimize import minimize

from codl.predict.estimators import CodlLinear
from codl.predict.estimators.numerics import (
    RESOLUTION_MS,
    Groups,
    Vector,
    farthest_points,
    ridge,
    rounded,
)
from codl.predict.estimators.sparse_gp import (
    Ensemble,
    LogScaling,
    Member,
    correlation,
    logarithms,
    on_line,
    seen_by_trees,
    squared_distances,
)
from codl.predict.estimators.trees import Trees
from codl.predict.training_set import inner_folds

#: Fewest rows of an ensemble; with fewer, the base (`codl_linear`) predicts alone.
LEAST_ROWS = 8
#: Most inducing points of a process, and their decimals; columns have standard deviation 1.
POINTS, DECIMALS = 128, 1
#: Significant digits of process weights: large weights of opposite sign nearly cancel.
DIGITS_OF_WEIGHTS = 5
#: Margin in logarithms by which a correction may exceed the range of training corrections.
SLACK = 0.3
#: Least relative error reduction for which fitted shares replace equal shares: less is chance.
WORTH = 0.02
#: Steps of the grid of candidate shares.
SHARE_STEPS = 4
#: Fewest items with which boosted trees join: inducing points cannot represent as many.
MANY_ITEMS = 800
ROUNDS, TREES = (
    200,
    {"learning_rate": 0.08, "num_leaves": 24, "feature_fraction": 0.3, "max_bin": 63},
)
#: Significant digits of centers and spreads; duplicate columns are detected after rounding.
SCALING_DIGITS = 6
#: Columns of higher correlation are duplicates; columns of smaller spread are constant.
DUPLICATE, LEAST_SPREAD = 0.9999, 1e-6
#: Least scale of run columns: keeps a run of few rows from being far from all others.
LEAST_RUN_SPREAD = 0.2
#: Items and L-BFGS-B steps of a kernel search (its time grows with the cube of items), its seed.
SEARCHED, SEARCH_STEPS, SEED = 140, 25, 0
#: Search bounds of the logarithms of noise, amplitude and lengths.
NOISE_BOUNDS = (np.log(5e-3), np.log(0.5))
AMPLITUDE_BOUNDS = (np.log(1e-2), np.log(3.0))
LENGTH_BOUNDS = (np.log(0.05), np.log(100.0))
#: Standard deviation of the prior of log lengths, about log(sqrt(number of features)).
LENGTH_SPREAD = 0.8
#: Relative increase of the diagonal of the points' covariance: keeps the system well posed.
JITTER = 1e-6


def fit_ensemble(X: Vector, y: Vector, groups: Groups, run_columns: int) -> Ensemble:
    """The ensemble fitted to `X` (rows, features) and `y` (rows, ms).

    The last `run_columns` features are run columns.
    """
    base, logs = CodlLinear._fit(X, y), np.log(np.maximum(y, RESOLUTION_MS))
    scaling = scaling_of(X, run_columns)
    base_logs = np.log(base.predict(X))
    if len(y) < LEAST_ROWS or not scaling.columns:
        off = float(np.median(logs - base_logs)) if len(logs) > 1 else 0.0
        limits = rounded([min(off, 0.0), max(off, 0.0)])
        return Ensemble(base=base, limits=limits)
    scaled = scaling.scaled(X)
    points = inducing_points(scaled)
    shift = np.append(np.zeros(scaled.shape[1]), np.median(logs - base_logs))
    candidates = [
        Candidate.fit(scaled, logs - base_logs, shift, points, is_level=False),
        Candidate.fit(scaled, logs, ridge(scaled, logs), points, is_level=True),
    ]
    has_trees = len(np.unique(scaled, axis=0)) >= MANY_ITEMS
    held_out, corrections = hold_out(X, y, groups, scaling, candidates, with_trees=has_trees)
    low, high = np.quantile(logs - held_out, [0.0, 1.0])
    limits = rounded([low - SLACK, high + SLACK])
    corrections = corrections.clip(*limits)
    shares = best_shares(logs - held_out, corrections)
    kept = np.flatnonzero(shares).tolist()
    members = [at for at in kept if at < len(candidates)] or [0]
    return Ensemble(
        base=base,
        limits=limits,
        scaling=scaling,
        points=points,
        members=tuple(replace(candidates[at].member, share=float(shares[at])) for at in members),
        trees=boosted(scaling.logs(X), base_logs, logs) if len(candidates) in kept else None,
    )


def scaling_of(X: Vector, run_columns: int) -> LogScaling:
    """The scaling of features (rows, features); the last `run_columns` are run columns."""
    logs = logarithms(X)
    center, spread = (rounded(v, SCALING_DIGITS) for v in (logs.mean(0), logs.std(0)))
    runs = X.shape[1] - run_columns
    spread[runs:] = np.maximum(spread[runs:], LEAST_RUN_SPREAD)
    kept: list[int] = []
    for column in np.flatnonzero(spread > LEAST_SPREAD).tolist():
        this = (logs[:, column] - center[column]) / spread[column]
        others = (logs[:, kept] - center[kept]) / spread[kept]
        if not kept or np.abs(this @ others / len(this)).max() < DUPLICATE:
            kept.append(column)
    return LogScaling(tuple(kept), center[kept], spread[kept])


def boosted(columns: Vector, base: Vector, logs: Vector) -> Trees:
    seen = seen_by_trees(columns, base)
    return Trees.boost(seen, logs - base, rounds=ROUNDS, parameters=TREES)


def hold_out(
    X: Vector,
    y: Vector,
    groups: Groups,
    scaling: LogScaling,
    candidates: Sequence[Candidate],
    *,
    with_trees: bool,
) -> tuple[Vector, Vector]:
    """Held-out predictions by shape: log base (rows), corrections (candidates [+ trees], rows)."""
    logs, scaled = np.log(np.maximum(y, RESOLUTION_MS)), scaling.scaled(X)
    columns = scaling.logs(X)
    base, predicted = np.empty(len(y)), np.empty((len(candidates) + with_trees, len(y)))
    for fold in inner_folds(groups):
        train = np.setdiff1d(np.arange(len(y)), fold)
        all_base = np.log(CodlLinear._fit(X[train], y[train]).predict(X))
        base[fold] = all_base[fold]
        level = on_line(scaled, ridge(scaled[train], logs[train]))
        shifted = all_base + np.median((logs - all_base)[train])
        for at, candidate in enumerate(candidates):
            projection = candidate.projection
            line = level if candidate.member.is_level else shifted
            weights = projection.without(fold, logs - line)
            predicted[at, fold] = line[fold] + projection.cross[fold] @ weights
        if with_trees:
            trees = boosted(columns[train], all_base[train], logs[train])
            seen = seen_by_trees(columns[fold], base[fold])
            predicted[-1, fold] = base[fold] + trees.predict(seen)
    return base, predicted - base


def inducing_points(scaled: Vector) -> Vector:
    first = [int(np.argmin((scaled * scaled).sum(1)))]
    nearest = ((scaled - scaled[first]) ** 2).sum(1)
    rows = first + farthest_points(scaled, POINTS - 1, nearest)
    points: Vector = scaled[rows].round(DECIMALS)
    return points[np.sort(np.unique(points, axis=0, return_index=True)[1])]


def best_shares(rest: Vector, corrections: Vector) -> Vector:
    """Shares (members) whose mix of `corrections` (members, rows) is closest to `rest` (rows).

    Returns equal shares unless others reduce the error by at least the fraction `WORTH`.
    """
    count = len(corrections)
    grid = np.indices([SHARE_STEPS + 1] * count).reshape(count, -1).T
    steps = grid[grid.sum(1) == SHARE_STEPS] / SHARE_STEPS
    tried: Vector = np.vstack([np.ones((1, count)) / count, steps])
    wrong = np.minimum(np.abs(rest - tried @ corrections), 1).mean(1)
    best = int(np.argmin(wrong))
    return np.asarray(tried[best if wrong[best] <= (1 - WORTH) * wrong[0] else 0])


@dataclass(frozen=True)
class Candidate:
    """A member with share 0, and its projection for held-out fits."""

    member: Member
    projection: Projection

    @classmethod
    def fit(
        cls, scaled: Vector, target: Vector, line: Vector, points: Vector, *, is_level: bool
    ) -> Candidate:
        """Fit a process to the residual of `target` (rows) from `line`.

        The kernel is searched on some distinct items, at the median of each item's rows.
        """
        line = rounded(line)
        rest = target - on_line(scaled, line)
        items, of_row, count = np.unique(scaled, axis=0, return_inverse=True, return_counts=True)
        searched = np.random.default_rng(SEED).permutation(len(items))[:SEARCHED]
        levels = np.array([np.median(rest[of_row.ravel() == item]) for item in searched])
        trust = count[searched].astype(np.float64)
        kernel = MaternKernel.search(items[searched], levels - levels.mean(), trust)
        projection = Projection(kernel, points, scaled, rest)
        member = Member(
            share=0.0,
            is_level=is_level,
            line=line,
            lengths=kernel.lengths,
            amplitude=kernel.amplitude,
            weights=rounded(projection.weights, DIGITS_OF_WEIGHTS),
        )
        return cls(member, projection)


@dataclass(frozen=True)
class MaternKernel:
    """A Matern kernel of smoothness 5/2, amplitude^2 x `sparse_gp.correlation`, and its noise."""

    lengths: Vector
    amplitude: float
    noise: float

    def __call__(self, a: Vector, b: Vector) -> Vector:
        covariance = correlation(a, b, self.lengths)
        covariance *= self.amplitude**2
        return covariance

    @classmethod
    def search(cls, X: Vector, t: Vector, trust: Vector) -> MaternKernel:
        """Maximise the posterior of the kernel for targets `t` (items) of mean 0.

        Features `X` (items, features) should have a spread of about 1. An item's noise variance is
        the kernel's over its `trust`. Log lengths have a normal prior about log(sqrt(features)).
        Time grows with the cube of the items, for at most `SEARCH_STEPS` iterations of L-BFGS-B.

        Minimises -log p(t | X, theta) - log p(lengths) (Rasmussen and Williams, eq. 2.30 and, for
        its cholesky form, algorithm 2.1). With K_y = K + noise and alpha = K_y^-1 t, the gradient
        is 1/2 tr((K_y^-1 - alpha alpha^T) dK_y / d theta) (eq. 5.9). For the logarithm of length
        l_j, dK / d log l_j = amplitude^2 5/3 (1 + s) e^-s (x_j - x'_j)^2 / l_j^2. The sum over
        pairs of items is sum(W x_j^2) - x_j^T W x_j: one product for all lengths.
        """
        variances = 1 / trust
        width = X.shape[1]
        usual = 0.5 * np.log(max(width, 1))
        start = np.concatenate([[np.log(0.2), np.log(0.03)], np.full(width, usual)])
        bounds = [AMPLITUDE_BOUNDS, NOISE_BOUNDS, *[LENGTH_BOUNDS] * width]

        def loss(theta: Vector) -> tuple[float, Vector]:
            points = X / np.exp(theta[2:])
            s = np.sqrt(5.0 * squared_distances(points, points))
            decay = np.exp(2 * theta[0] - s)
            kernel = (1 + s + s * s / 3) * decay
            noise = np.exp(2 * theta[1])
            total = kernel.copy()
            total[np.diag_indices_from(total)] += noise * variances + 1e-8
            factor, _ = dpotrf(total, lower=1)
            alpha = cho_solve((factor, True), t)
            lower, _ = dpotri(factor, lower=1)
            inverse = lower + lower.T  # `lower` is zero above its diagonal
            inverse[np.diag_indices_from(inverse)] *= 0.5
            value = 0.5 * t @ alpha + np.log(np.diag(factor)).sum()
            slack = inverse - np.outer(alpha, alpha)
            weight = slack * (5 / 3) * (1 + s) * decay
            by_length = 2 * (weight.sum(1) @ (points * points)) - 2 * np.einsum(
                "ij,ij->j", points, weight @ points
            )
            gradient = np.concatenate(
                [[(slack * kernel).sum()], [noise * np.diag(slack) @ variances], 0.5 * by_length]
            )
            prior = (theta[2:] - usual) / LENGTH_SPREAD
            gradient[2:] += prior / LENGTH_SPREAD
            return float(value + 0.5 * prior @ prior), gradient

        most = {"maxiter": SEARCH_STEPS}
        found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=most)
        amplitude, noise, lengths = found.x[0], found.x[1], found.x[2:]
        return cls(
            rounded(np.exp(lengths)), float(rounded(np.exp(amplitude))), float(np.exp(noise))
        )


class Projection:
    """A projected process fitted to rows, in normal-equation sums from which folds subtract.

    `points` is (points, features), `X` (rows, features) and `t` (rows) of mean about 0.
    """

    def __init__(self, kernel: MaternKernel, points: Vector, X: Vector, t: Vector) -> None:
        self.cross = kernel(X, points)
        self.prior = kernel(points, points) * kernel.noise**2
        self.prior[np.diag_indices_from(self.prior)] *= 1 + JITTER
        self.left = self.cross.T @ self.cross
        self.weights = _solve(self.left + self.prior, self.cross.T @ t)

    def without(self, rows: Groups, t: Vector) -> Vector:
        """Weights (points) fitted to targets `t` (all rows), leaving out the indices `rows`."""
        part = self.cross[rows]
        right = self.cross.T @ t - part.T @ t[rows]
        return _solve(self.left - part.T @ part + self.prior, right)


def _solve(matrix: Vector, right: Vector) -> Vector:
    matrix[np.diag_indices_from(matrix)] *= 1 + 1e-10
    result: Vector = cho_solve(cho_factor(matrix, overwrite_a=True), right)
    return result
