"""Sparse Gaussian processes: inducing points, a length scale for each feature, and a line beneath.

The process is the projected process approximation (deterministic training conditional, DTC):
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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.optimize import minimize

from codl.predict.estimators.json_arrays import (
    Vector,
    from_rows,
    medians,
    number,
    rounded,
    to_rows,
    vector,
)
from codl.predict.estimators.rowwise import rowwise_dot, rowwise_matmul
from codl.predict.folds import inner_folds

Groups = NDArray[np.intp]

#: Logarithms of the noise and the amplitude that a search may go to.
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
#: Directions in which the scaled features spread less than this are noise.
LEAST_SPREAD = 0.05
#: Items predicted at a time: more would not make it faster, and their correlations take memory.
CHUNK = 1024
#: Steps of the grid on which shares of members are tried.
SHARE_STEPS = 4
#: Components are weighted by this power of their spread.
SPREAD_POWER = 0.5


@dataclass(frozen=True)
class Kernel:
    """A Matern kernel of smoothness 5/2: amplitude^2 (1 + s + s^2 / 3) exp(-s).

    s is sqrt(5) times the distance over the `lengths` (features); Rasmussen and Williams, eq. 4.17.
    """

    lengths: Vector
    amplitude: float
    noise: float

    def __call__(self, a: Vector, b: Vector) -> Vector:
        """Covariances shaped (items of a, items of b), without the noise."""
        covariance = self.correlation(a, b)
        covariance *= self.amplitude**2
        return covariance

    def correlation(self, a: Vector, b: Vector) -> Vector:
        """Covariances over the amplitude's square: 1 for an item and itself.

        In the precision of `a` and `b`; float32 takes half the time and is exact to 1e-5. A row
        depends on its item of `a` alone.
        """
        scale = (np.sqrt(5.0) / self.lengths).astype(a.dtype)
        squares = _squared_distances(a * scale, b * scale)
        result: Vector = squares * (1 / 3)
        s = np.sqrt(squares, out=squares)
        result += s
        result += 1
        np.negative(s, out=s)
        result *= np.exp(s, out=s)
        return result

    @classmethod
    def search(cls, X: Vector, t: Vector, trust: Vector, *, steps: int = 30) -> Kernel:
        """Maximise the marginal likelihood of the targets `t` (items), of mean 0, with a prior.

        Features `X` (items, features) should have a spread of about 1; an item's noise has the
        kernel's variance over its `trust`. The prior holds the lengths' logarithms, normally
        distributed about log(sqrt(features)). Takes time with the cube of the items, and at most
        `steps` iterations of L-BFGS-B.
        """
        theta = _search(X, t, 1 / trust, steps)
        return cls(np.exp(theta[2:]), float(np.exp(theta[0])), float(np.exp(theta[1])))


class Projection:
    """The projected process of some rows, in sums from which folds of rows can be taken again.

    `points` (points, features), `X` (rows, features), `t` (rows) of mean about 0; `share` (rows) is
    what a row counts for. Rows far off are trusted less, as with Huber's weights (iteratively
    reweighted least squares).
    """

    def __init__(self, kernel: Kernel, points: Vector, X: Vector, t: Vector, share: Vector) -> None:
        self.kernel, self.t = kernel, t
        self.cross = kernel(X, points)
        self.prior = kernel(points, points) * kernel.noise**2
        self.prior[np.diag_indices_from(self.prior)] *= 1 + JITTER
        self.trust = share.copy()
        self._sum()
        # Twice over: an outlier drags its own prediction along.
        for _ in range(2):
            off = np.abs(self.fitted() - t) / (OUTLIER * self._usual_error())
            self.trust = share / np.maximum(off, 1)
            self._sum()

    def _usual_error(self) -> float:
        return max(self.kernel.noise, 1.4826 * float(np.median(np.abs(self.fitted() - self.t))))

    def _sum(self) -> None:
        weighted = self.cross * self.trust[:, None]
        self.left, self.right = weighted.T @ self.cross, weighted.T @ self.t
        self.weights = _solve(self.left + self.prior, self.right)

    def fitted(self) -> Vector:
        """The predictions of the rows."""
        result: Vector = self.cross @ self.weights
        return result

    def without(self, rows: NDArray[np.intp], t: Vector) -> Vector:
        """Weights fitted to the targets `t` (rows) without some of the rows."""
        part = self.cross[rows]
        weighted = part * self.trust[rows, None]
        right = (self.cross * self.trust[:, None]).T @ t - weighted.T @ t[rows]
        return _solve(self.left - weighted.T @ part + self.prior, right)


def spread_points(X: Vector, most: int) -> NDArray[np.intp]:
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


def _solve(matrix: Vector, right: Vector) -> Vector:
    matrix[np.diag_indices_from(matrix)] *= 1 + 1e-10
    result: Vector = cho_solve(cho_factor(matrix, overwrite_a=True), right)
    return result


def _squared_distances(a: Vector, b: Vector) -> Vector:
    """Shaped (items of a, items of b); one product of matrices gives |a|^2 - 2ab + |b|^2."""
    width = a.shape[1]
    left, right = (np.ones((len(items), width + 2), a.dtype) for items in (a, b))
    np.multiply(a, -2, out=left[:, :width])
    np.einsum("ij,ij->i", a, a, out=left[:, width])
    right[:, :width] = b
    np.einsum("ij,ij->i", b, b, out=right[:, width + 1])
    squares = rowwise_matmul(left, right.T)
    result: Vector = np.abs(squares, out=squares)  # rounding makes a few negative
    return result


def _search(X: Vector, t: Vector, variances: Vector, steps: int) -> Vector:
    """The logarithms of amplitude, noise and lengths that make the targets most likely.

    Minimises -log p(t | X, theta) - log p(lengths) (Rasmussen and Williams, eq. 2.30 and, for its
    cholesky form, algorithm 2.1). With K_y = K + noise and alpha = K_y^-1 t, the gradient is
    1/2 tr((K_y^-1 - alpha alpha^T) dK_y / d theta) (eq. 5.9). For the logarithm of length l_j,
    dK / d log l_j = amplitude^2 5/3 (1 + s) e^-s (x_j - x'_j)^2 / l_j^2, and the sum over pairs of
    items is written as sum(W x_j^2) - x_j^T W x_j, so that all lengths take one product.
    """
    width = X.shape[1]
    usual = 0.5 * np.log(max(width, 1))
    start = np.concatenate([[np.log(0.2), np.log(0.03)], np.full(width, usual)])
    bounds = [AMPLITUDE_BOUNDS, NOISE_BOUNDS, *[LENGTH_BOUNDS] * width]

    def loss(theta: Vector) -> tuple[float, Vector]:
        points = X / np.exp(theta[2:])
        s = np.sqrt(5.0 * _squared_distances(points, points))
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
    result: Vector = optimum.x
    return result


@dataclass(frozen=True)
class Member:
    """A member of the ensemble: a line on scaled features plus a Gaussian process.

    Both predict a logarithm. The process sees the features, or their products with `axes`, shaped
    (features, directions).
    """

    line: Vector
    axes: Vector | None
    lengths: Vector
    amplitude: float
    weights: Vector

    def kernel(self, noise: float = 0.0) -> Kernel:
        return Kernel(self.lengths, self.amplitude, noise)

    def state(self) -> dict[str, Any]:
        return {
            "line": to_rows(self.line),
            **({} if self.axes is None else {"axes": to_rows(self.axes)}),
            "lengths": to_rows(self.lengths),
            "amplitude": self.amplitude,
            "weights": to_rows(self.weights),
        }

    def predict(self, scaled: Vector, points: Vector) -> Vector:
        """The logarithm, shaped (items)."""
        weights = (self.amplitude**2 * self.weights).astype(np.float32)
        logs = on_line(scaled, self.line)
        for part, correlation in self._correlations(scaled, points):
            logs[part] += rowwise_dot(correlation, weights)
        return logs

    def far(self, scaled: Vector, points: Vector) -> Vector:
        """How far from all points items are: 0 at one, 1 far from all."""
        near = np.empty(len(scaled))
        for part, correlation in self._correlations(scaled, points):
            near[part] = correlation.max(1)
        return 1 - near

    def _correlations(self, scaled: Vector, points: Vector) -> Iterator[tuple[slice, Vector]]:
        """Of items with points, (some items, points) in float32: a pass takes half the time."""
        kernel = self.kernel()
        items: NDArray[Any] = along(scaled, self.axes).astype(np.float32)
        others: NDArray[Any] = along(points, self.axes).astype(np.float32)
        for at in range(0, len(scaled), CHUNK):
            part = slice(at, at + CHUNK)
            yield part, kernel.correlation(items[part], others)


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

    def medians(self, values: Vector, items: Groups) -> Vector:
        """The median over each item's rows."""
        result: Vector = medians(values, self.of_row)[items]
        return result


def read_members(state: Any, width: int, points: int) -> list[tuple[Member, bool, float]]:
    """Members, whether each is a level, and their shares."""
    if not isinstance(state, list) or not state:
        raise ValueError(f"members must be a list of some, got {state!r:.80}.")
    members = []
    for own in state:
        if not isinstance(own, Mapping):
            raise ValueError(f"members must be mappings, got {own!r:.80}.")
        axes = from_rows(own, "axes", rows=width, columns=None) if "axes" in own else None
        directions = width if axes is None else axes.shape[1]
        lengths, amplitude = vector(own, "lengths", directions), number(own, "amplitude")
        if (lengths <= 0).any() or amplitude <= 0:
            raise ValueError("members: lengths and amplitude must be positive.")
        if not isinstance(own.get("is_level"), bool):
            raise ValueError(f"members: is_level must be true or false, got {own.get('is_level')}.")
        line, weights = vector(own, "line", width + 1), vector(own, "weights", points)
        member = Member(line, axes, lengths, amplitude, weights)
        members.append((member, own["is_level"], number(own, "share", non_negative=True)))
    return members


def spread_axes(scaled: Vector) -> Vector:
    """Principal components of the features as columns, each scaled to a power of its spread."""
    _, spreads, directions = np.linalg.svd(scaled, full_matrices=False)
    spreads = spreads / np.sqrt(len(scaled))
    kept = spreads > LEAST_SPREAD
    return rounded(directions[kept].T * spreads[kept] ** (SPREAD_POWER - 1), 4)


def along(scaled: Vector, axes: Vector | None) -> Vector:
    result: Vector = scaled if axes is None else rowwise_matmul(scaled, axes)
    return result


def on_line(scaled: Vector, line: Vector) -> Vector:
    result: Vector = rowwise_dot(scaled, line[:-1]) + line[-1]
    return result


def share_grid(count: int) -> Vector:
    """Weights of `count` members that add up to 1: equal ones first, then all on a grid."""
    grid = np.indices([SHARE_STEPS + 1] * count).reshape(count, -1).T
    result: Vector = np.vstack([np.ones((1, count)) / count, grid[grid.sum(1) == SHARE_STEPS]])
    result[1:] /= SHARE_STEPS
    return result


def far_from_others(projection: Projection, groups: Groups, rows: Groups) -> Vector:
    """How far every row is from the points (those of `rows`) of other folds."""
    far = np.ones(len(groups))
    for fold in inner_folds(groups):
        others = ~np.isin(rows, fold)
        if others.any():
            near = projection.cross[np.ix_(fold, others)].max(1)
            far[fold] = 1 - near / projection.kernel.amplitude**2
    return far
