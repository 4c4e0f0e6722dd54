"""Gaussian processes with one length scale for each feature, on a small set of inducing points.

Length scales, amplitude and noise come from the marginal likelihood of a subset of the rows; the
weights then take every row in (the projected process). scikit-learn has the exact process; this one
takes the gradient for all length scales together and stores 2 numbers a point, so that every
predictor of a SoC is trained in seconds and is a few kilobytes of JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.linalg.lapack import dpotrf, dpotri
from scipy.optimize import minimize

from codl.predict.estimators.rowwise import rowwise_matmul

Vector = NDArray[np.float64]

#: Logarithms of the noise and the amplitude that a search may go to.
NOISE_BOUNDS = (np.log(5e-3), np.log(0.5))
AMPLITUDE_BOUNDS = (np.log(1e-2), np.log(3.0))
LENGTH_BOUNDS = (np.log(0.05), np.log(100.0))
#: How far, in logarithms, length scales usually lie from the square root of their number.
LENGTH_SPREAD = 0.8
#: Added to the covariance of the points, as a share of the variance: keeps it well posed.
JITTER = 1e-6
#: Rows further off than so many times the noise count less, in proportion.
OUTLIER = 3.0


@dataclass(frozen=True)
class Kernel:
    """A Matern kernel of smoothness 5/2; `lengths` shaped (features)."""

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

        In the precision of `a` and `b`; float32 takes half the time and is exact to 1e-5.
        """
        scale = (np.sqrt(5.0) / self.lengths).astype(a.dtype)
        s = _distances(a * scale, b * scale)
        np.negative(s, out=s)
        result: Vector = s - 3.0  # s (s - 3) + 3 of negative s is 3 + 3 s + s^2
        result *= s
        result += 3.0
        result *= np.exp(s, out=s)
        result *= 1 / 3
        return result

    @classmethod
    def search(cls, X: Vector, t: Vector, trust: Vector, *, steps: int = 30) -> Kernel:
        """The kernel that makes the targets `t`, of mean 0, most likely, with a prior on lengths.

        Features (items, features) should have a spread of about 1; an item's noise has the kernel's
        variance over its `trust`. Takes time with the cube of the items.
        """
        theta = _search(X, t, 1 / trust, steps)
        return cls(np.exp(theta[2:]), float(np.exp(theta[0])), float(np.exp(theta[1])))


class Projection:
    """What the rows say about the weights of some points, so that folds of rows can be left out.

    `points` (points, features), `X` (rows, features), `t` (rows) of mean about 0; `share` (rows) is
    what a row counts for.
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
    """Indices of at most `most` rows, each the one farthest from those before it."""
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


def _distances(a: Vector, b: Vector) -> Vector:
    """Shaped (items of a, items of b); one product of matrices gives |a|^2 - 2ab + |b|^2."""
    width = a.shape[1]
    left, right = (np.ones((len(items), width + 2), a.dtype) for items in (a, b))
    np.multiply(a, -2, out=left[:, :width])
    np.einsum("ij,ij->i", a, a, out=left[:, width])
    right[:, :width] = b
    np.einsum("ij,ij->i", b, b, out=right[:, width + 1])
    squares = rowwise_matmul(left, right.T)
    np.abs(squares, out=squares)  # rounding makes a few negative; `maximum` is slower
    result: Vector = np.sqrt(squares, out=squares)
    return result


def _search(X: Vector, t: Vector, variances: Vector, steps: int) -> Vector:
    """The logarithms of amplitude, noise and lengths that make the targets most likely."""
    width = X.shape[1]
    usual = 0.5 * np.log(max(width, 1))
    start = np.concatenate([[np.log(0.2), np.log(0.03)], np.full(width, usual)])
    bounds = [AMPLITUDE_BOUNDS, NOISE_BOUNDS, *[LENGTH_BOUNDS] * width]

    def loss(theta: Vector) -> tuple[float, Vector]:
        points = X / np.exp(theta[2:])
        s = np.sqrt(5.0) * _distances(points, points)
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

    found = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps}
    )
    result: Vector = found.x
    return result
