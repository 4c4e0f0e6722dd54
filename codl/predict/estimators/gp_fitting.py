"""Fits the ensemble of the `codl` predictor: sparse Gaussian processes, trees, and their shares.

A process is the projected process approximation (deterministic training conditional, DTC):
Rasmussen and Williams, *Gaussian Processes for Machine Learning* (2006), section 8.3.4, with
inducing points as in Quinonero-Candela and Rasmussen, JMLR 6 (2005). Its mean at x is k(x)^T w over
m points, with

    w = (K_mn T K_nm + s^2 K_mm)^-1 K_mn T t

for targets t of n rows, the rows' trust T (diagonal) and the noise's variance s^2. Lengths,
amplitude and noise maximise the marginal likelihood of a subset of the rows. scikit-learn has the
exact process; this one takes the gradient for all lengths together and stores 2 numbers a point,
so that every predictor of a SoC is trained in seconds and is a few kilobytes of JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.optimize import minimize, nnls
from scipy.stats import norm

from codl.predict.cross_validation import inner_folds
from codl.predict.estimators.linear import CodlLinear
from codl.predict.estimators.numerics import (
    RESOLUTION_MS,
    Groups,
    Vector,
    medians,
    ridge,
    rounded,
)
from codl.predict.estimators.sparse_gp import (
    LEVELS,
    Ensemble,
    ErrorQuantiles,
    LogScaling,
    Member,
    along,
    correlation,
    logarithms,
    on_line,
    seen_by_trees,
    squared_distances,
)
from codl.predict.estimators.trees import Trees

#: With fewer rows the base stands alone.
LEAST_ROWS = 8
#: The most points of a process, and digits behind the point of theirs: their columns spread by 1.
POINTS, DECIMALS = 128, 1
#: Significant digits of weights: large ones of either sign nearly cancel out.
DIGITS_OF_WEIGHTS = 5
#: How far past the corrections seen in training, in logarithms, a correction may go.
SLACK = 0.3
#: Shares must beat equal ones by this part of the error: less is chance.
WORTH = 0.02
#: The same where runs differ: their terms have seen the rows that are held out.
WORTH_BESIDE_RUNS = 0.2
#: Steps of the grid on which shares of members are tried.
SHARE_STEPS = 4
#: With this many columns or more, a member sees their principal components, those of more spread
#: than this, weighted by this power of it.
MANY_COLUMNS, LEAST_COMPONENT, SPREAD_POWER = 8, 0.05, 0.5
#: With this many items or more, boosted trees join: a few points cannot hold that much.
MANY_ITEMS = 800
ROUNDS, TREES = (
    200,
    {"learning_rate": 0.08, "num_leaves": 24, "feature_fraction": 0.3, "max_bin": 63},
)
#: Significant digits of centers and spreads: duplicate columns are detected after scaling.
SCALING_DIGITS = 6
#: Columns that correlate more than this are duplicates; those that spread less do not vary.
DUPLICATE, LEAST_SPREAD = 0.9999, 1e-6
#: Columns of runs are scaled by no less, or a run of few rows would be far from all others.
LEAST_RUN_SPREAD = 0.2
#: Items that the kernels' lengths are found with: the search takes time with their cube.
SEARCHED, SEARCH_STEPS, SEED = 140, 25, 0
#: Logarithms of the noise, the amplitude and the lengths that a search may go to.
NOISE_BOUNDS = (np.log(5e-3), np.log(0.5))
AMPLITUDE_BOUNDS = (np.log(1e-2), np.log(3.0))
LENGTH_BOUNDS = (np.log(0.05), np.log(100.0))
#: How far, in logarithms, length scales usually lie from the square root of their number.
LENGTH_SPREAD = 0.8
#: Added to the covariance of the points, as a share of the variance: keeps it well posed.
JITTER = 1e-6
#: Rows further off than this many times the noise count less, in proportion.
OUTLIER = 3.0
#: The part of the noise that all rows of an item have in common.
ITEM_NOISE = 0.5
#: Without anything held out, errors are taken to be this large, in logarithms.
UNKNOWN_ERROR = 0.25
#: The least scale of errors, as a share of the mean error.
LEAST_SCALE = 0.3


def fit_ensemble(
    X: Vector, y: Vector, groups: Groups, run_columns: int, *, beside_terms: bool
) -> tuple[Ensemble, Vector]:
    """The ensemble for features, and what it predicts for rows held out.

    The last `run_columns` features are those of runs; `beside_terms` says whether terms of runs
    were taken out of the latencies.
    """
    base, logs = CodlLinear.base(X, y), np.log(np.maximum(y, RESOLUTION_MS))
    scaling = scaling_of(X, run_columns)
    base_ms = base.predict(X)
    base_logs = np.log(base_ms)
    if len(y) < LEAST_ROWS or not scaling.columns:
        off = float(np.median(logs - base_logs)) if len(logs) > 1 else 0.0
        limits = rounded([min(off, 0.0), max(off, 0.0)])
        return Ensemble(base=base, limits=limits, errors=unknown_errors(2)), base_ms
    scaled = scaling.scaled(X)
    items, (points, rows) = Items.of(scaled), inducing_points(scaled)
    candidates = candidates_of(scaled, logs, base_logs, items, points)
    trees = None
    if len(items.first) >= MANY_ITEMS:
        trees = boosted(scaling.logs(X), base_logs, logs)
    held_out, corrections = hold_out(
        X, y, groups, scaling, candidates, with_trees=trees is not None
    )
    low, high = np.quantile(logs - held_out, [0.0, 1.0])
    limits = rounded([low - SLACK, high + SLACK])
    corrections = corrections.clip(*limits)
    worth = WORTH_BESIDE_RUNS if beside_terms and trees is None else WORTH
    shares = best_shares(logs - held_out, corrections, worth)
    kept = np.flatnonzero(shares).tolist()
    members = [at for at in kept if at < len(candidates)] or [0]
    mixed = held_out + shares @ corrections
    far = far_from_others(candidates[members[0]].projection, groups, rows)
    signs = np.column_stack([np.ptp(corrections[sorted({*members, *kept})], axis=0), far])
    fitted = Ensemble(
        base=base,
        limits=limits,
        errors=fit_errors(logs - mixed, signs, groups),
        scaling=scaling,
        points=points,
        members=tuple(replace(candidates[at].member, share=float(shares[at])) for at in members),
        trees=trees if len(candidates) in kept else None,
    )
    return fitted, np.exp(mixed)


def scaling_of(X: Vector, run_columns: int) -> LogScaling:
    """The scaling of features (rows, features); the last `run_columns` are those of runs."""
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
    """Trees of what the base's logarithm lacks."""
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
    """Each shape held out: the base's logarithms (rows), what candidates add (candidates, rows)."""
    logs, scaled = np.log(np.maximum(y, RESOLUTION_MS)), scaling.scaled(X)
    columns = scaling.logs(X)
    base, predicted = np.empty(len(y)), np.empty((len(candidates) + with_trees, len(y)))
    for fold in inner_folds(groups):
        train = np.setdiff1d(np.arange(len(y)), fold)
        all_base = np.log(CodlLinear.base(X[train], y[train]).predict(X))
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


def inducing_points(scaled: Vector) -> tuple[Vector, Groups]:
    """Rounded features of rows that are far from each other, and which rows those are."""
    rows = spread_points(scaled, POINTS)
    points = scaled[rows].round(DECIMALS)
    once = np.sort(np.unique(points, axis=0, return_index=True)[1])
    return points[once], rows[once]


def candidates_of(
    scaled: Vector, logs: Vector, base_logs: Vector, items: Items, points: Vector
) -> list[Candidate]:
    """Processes of what the base lacks, and of what a plane lacks, on features and on axes."""
    shift = np.append(np.zeros(scaled.shape[1]), np.median(logs - base_logs))
    level = ridge(scaled, logs)
    candidates = [
        Candidate.fit(scaled, logs - base_logs, shift, items, points, is_level=False),
        Candidate.fit(scaled, logs, level, items, points),
    ]
    if scaled.shape[1] >= MANY_COLUMNS:
        axes = spread_axes(scaled)
        candidates.append(Candidate.fit(scaled, logs, level, items, points, axes=axes))
    return candidates


def best_shares(rest: Vector, corrections: Vector, worth: float) -> Vector:
    """Members' shares (members) that leave least of the `rest` (rows) by their corrections.

    Equal ones, unless others are better by the part `worth` of the error.
    """
    tried = share_grid(len(corrections))
    wrong = np.minimum(np.abs(rest - tried @ corrections), 1).mean(1)
    best = int(np.argmin(wrong))
    if wrong[best] > (1 - worth) * wrong[0]:
        best = 0
    result: Vector = tried[best]
    return result


def share_grid(count: int) -> Vector:
    """Weights of `count` members that add up to 1: equal ones first, then all on a grid."""
    grid = np.indices([SHARE_STEPS + 1] * count).reshape(count, -1).T
    result: Vector = np.vstack([np.ones((1, count)) / count, grid[grid.sum(1) == SHARE_STEPS]])
    result[1:] /= SHARE_STEPS
    return result


@dataclass(frozen=True)
class Items:
    """Which rows repeat an item: the first of each, how often it stands, and every row's item.

    Repetitions agree about what an item takes, not about how far items like it differ from the
    model; so a row's `share` falls with them, such that no item counts for more than
    1 / `ITEM_NOISE` rows.
    """

    first: Groups
    count: Groups
    of_row: Groups
    share: Vector

    @classmethod
    def of(cls, scaled: Vector) -> Items:
        _, first, of_row, count = np.unique(
            scaled, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        of_row = of_row.ravel()
        return cls(first, count, of_row, 1 / (1 + ITEM_NOISE * (count[of_row] - 1)))


@dataclass(frozen=True)
class Candidate:
    """A member before its share is known."""

    member: Member
    projection: Projection

    @classmethod
    def fit(
        cls,
        scaled: Vector,
        target: Vector,
        line: Vector,
        items: Items,
        points: Vector,
        *,
        is_level: bool = True,
        axes: Vector | None = None,
    ) -> Candidate:
        """A process of what a line leaves of the target (rows), on some axes."""
        line = rounded(line)
        rest, turned = target - on_line(scaled, line), along(scaled, axes)
        searched = np.random.default_rng(SEED).permutation(len(items.first))[:SEARCHED]
        levels = medians(rest, items.of_row)[searched]
        trust = items.count[searched] * items.share[items.first[searched]]
        kernel = MaternKernel.search(
            turned[items.first[searched]], levels - levels.mean(), trust, steps=SEARCH_STEPS
        )
        kernel = MaternKernel(
            rounded(kernel.lengths), float(rounded(kernel.amplitude)), kernel.noise
        )
        projection = Projection(kernel, along(points, axes), turned, rest, items.share)
        member = Member(
            share=0.0,
            is_level=is_level,
            line=line,
            axes=axes,
            lengths=kernel.lengths,
            amplitude=kernel.amplitude,
            weights=rounded(projection.weights, DIGITS_OF_WEIGHTS),
        )
        return cls(member, projection)


@dataclass(frozen=True)
class MaternKernel:
    """A Matern kernel of smoothness 5/2: amplitude^2 x `sparse_gp.correlation`."""

    lengths: Vector
    amplitude: float
    noise: float

    def __call__(self, a: Vector, b: Vector) -> Vector:
        """Covariances shaped (items of a, items of b), without the noise."""
        covariance = correlation(a, b, self.lengths)
        covariance *= self.amplitude**2
        return covariance

    @classmethod
    def search(cls, X: Vector, t: Vector, trust: Vector, *, steps: int = 30) -> MaternKernel:
        """Maximise the marginal likelihood of the targets `t` (items), of mean 0, with a prior.

        Features `X` (items, features) should have a spread of about 1; an item's noise has the
        kernel's variance over its `trust`. The prior holds the lengths' logarithms, normally
        distributed about log(sqrt(features)). Takes time with the cube of the items, and at most
        `steps` iterations of L-BFGS-B.

        Minimises -log p(t | X, theta) - log p(lengths) (Rasmussen and Williams, eq. 2.30 and, for
        its cholesky form, algorithm 2.1). With K_y = K + noise and alpha = K_y^-1 t, the gradient
        is 1/2 tr((K_y^-1 - alpha alpha^T) dK_y / d theta) (eq. 5.9). For the logarithm of length
        l_j, dK / d log l_j = amplitude^2 5/3 (1 + s) e^-s (x_j - x'_j)^2 / l_j^2, and the sum over
        pairs of items is written as sum(W x_j^2) - x_j^T W x_j, so that all lengths take one
        product.
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
            inverse = lower + lower.T  # above the diagonal of `lower` is nothing
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

        optimum = minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps}
        )
        theta = optimum.x
        return cls(np.exp(theta[2:]), float(np.exp(theta[0])), float(np.exp(theta[1])))


class Projection:
    """The projected process of some rows, in sums from which folds of rows can be taken again.

    `points` (points, features), `X` (rows, features), `t` (rows) of mean about 0; `share` (rows) is
    what a row counts for. Rows far off are trusted less, as with Huber's weights (iteratively
    reweighted least squares).
    """

    def __init__(
        self, kernel: MaternKernel, points: Vector, X: Vector, t: Vector, share: Vector
    ) -> None:
        self.kernel, self.t = kernel, t
        self.cross = kernel(X, points)
        self.prior = kernel(points, points) * kernel.noise**2
        self.prior[np.diag_indices_from(self.prior)] *= 1 + JITTER
        self.trust = share.copy()
        self._sum()
        # Twice over: an outlier drags its own prediction along.
        for _ in range(2):
            error = np.abs(self.fitted() - t)
            off = error / (OUTLIER * max(self.kernel.noise, 1.4826 * float(np.median(error))))
            self.trust = share / np.maximum(off, 1)
            self._sum()

    def _sum(self) -> None:
        weighted = self.cross * self.trust[:, None]
        self.left, self.right = weighted.T @ self.cross, weighted.T @ self.t
        self.weights = _solve(self.left + self.prior, self.right)

    def fitted(self) -> Vector:
        """The predictions of the rows."""
        result: Vector = self.cross @ self.weights
        return result

    def without(self, rows: Groups, t: Vector) -> Vector:
        """Weights fitted to the targets `t` (rows) without some of the rows."""
        part = self.cross[rows]
        weighted = part * self.trust[rows, None]
        right = (self.cross * self.trust[:, None]).T @ t - weighted.T @ t[rows]
        return _solve(self.left - weighted.T @ part + self.prior, right)


def _solve(matrix: Vector, right: Vector) -> Vector:
    matrix[np.diag_indices_from(matrix)] *= 1 + 1e-10
    result: Vector = cho_solve(cho_factor(matrix, overwrite_a=True), right)
    return result


def spread_points(X: Vector, most: int) -> Groups:
    """Farthest-point sampling: at most `most` row indices, each farthest from those before it."""
    chosen = [int(np.argmin((X * X).sum(1)))]
    nearest = ((X - X[chosen[0]]) ** 2).sum(1)
    while len(chosen) < min(most, len(X)):
        farthest = int(nearest.argmax())
        if nearest[farthest] <= 1e-12:
            break
        chosen.append(farthest)
        nearest = np.minimum(nearest, ((X - X[farthest]) ** 2).sum(1))
    return np.array(chosen, np.intp)


def spread_axes(scaled: Vector) -> Vector:
    """Principal components of the features as columns, each scaled to a power of its spread."""
    _, spreads, directions = np.linalg.svd(scaled, full_matrices=False)
    spreads = spreads / np.sqrt(len(scaled))
    kept = spreads > LEAST_COMPONENT
    return rounded(directions[kept].T * spreads[kept] ** (SPREAD_POWER - 1))


def far_from_others(projection: Projection, groups: Groups, rows: Groups) -> Vector:
    """How far every row is from the points (those of `rows`) of other folds."""
    far = np.ones(len(groups))
    for fold in inner_folds(groups):
        others = ~np.isin(rows, fold)
        if others.any():
            near = projection.cross[np.ix_(fold, others)].max(1)
            far[fold] = 1 - near / projection.kernel.amplitude**2
    return far


def unknown_errors(signs: int) -> ErrorQuantiles:
    return ErrorQuantiles(np.eye(signs + 1)[0], rounded(UNKNOWN_ERROR * norm.ppf(LEVELS)))


def fit_errors(errors: Vector, signs: Vector, groups: Groups) -> ErrorQuantiles:
    """Split conformal prediction, with a local scale linear in some signs (rows, signs).

    The score of a held-out row i is e_i = log(measured / predicted) / s_i, and the interval of a
    new item is predicted * exp(q s) between two quantiles q of the scores: Lei et al.,
    *Distribution-Free Predictive Inference for Regression*, JASA 113 (2018), algorithm 2 and, with
    a local scale s, section 5.2. With n groups, the levels of quantiles are further out by
    (n + 1) / n.
    """
    if len(errors) < 2:
        return unknown_errors(signs.shape[1])
    columns = np.column_stack([np.ones(len(errors)), signs])
    usual = float(np.mean(np.abs(errors))) + 1e-6
    scale, _ = nnls(columns, np.minimum(np.abs(errors), 6 * usual))
    scale[0] = max(scale[0], LEAST_SCALE * usual)
    scale = rounded(scale)
    scores = errors / (columns @ scale)
    count = len(np.unique(groups))
    quantiles = np.quantile(scores, np.clip(0.5 + (LEVELS - 0.5) * (count + 1) / count, 0, 1))
    # The held-out rows have chosen between fits, and few groups cannot show the tails.
    middle = quantiles[len(LEVELS) // 2]
    quantiles = middle + (quantiles - middle) * (1 + 1 / np.sqrt(count))
    return ErrorQuantiles(scale, rounded(quantiles))
