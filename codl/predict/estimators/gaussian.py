"""A Gaussian process with one length scale for each feature, fitted by its marginal likelihood.

scikit-learn has one too; this one takes the gradient for all length scales together, which makes it
fast enough to train every predictor of a SoC in seconds, and its state is a few arrays of JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

Vector = NDArray[np.float64]

#: Logarithms of the noise and the amplitude that a search may go to.
NOISE_BOUNDS = (np.log(2e-3), np.log(0.5))
AMPLITUDE_BOUNDS = (np.log(1e-2), np.log(3.0))
LENGTH_BOUNDS = (np.log(0.05), np.log(100.0))
#: How far, in logarithms, length scales usually lie from the square root of their number.
LENGTH_SPREAD = 1.5


@dataclass(frozen=True)
class GaussianProcess:
    """Predicts the sum over `points` of `weights` x kernel; `points` are features over lengths."""

    lengths: Vector
    points: Vector
    weights: Vector

    @classmethod
    def fit(cls, X: Vector, t: Vector, *, most: int = 300, steps: int = 40) -> GaussianProcess:
        """Fit to targets with mean 0; features (items, features) should have a spread of about 1.

        Hyperparameters come from `most` of the items at most, evenly picked.
        """
        some = np.linspace(0, len(t) - 1, min(len(t), most)).astype(int)
        theta = _search(X[some], t[some], steps)
        lengths = np.exp(theta[2:])
        points = X / lengths
        kernel = np.exp(2 * theta[0]) * matern(_distances(points, points))
        kernel[np.diag_indices_from(kernel)] += np.exp(2 * theta[1])
        return cls(lengths, points, np.exp(2 * theta[0]) * cho_solve(cho_factor(kernel), t))

    def predict(self, X: Vector) -> Vector:
        """Shaped (items), for features (items, features)."""
        result: Vector = matern(_distances(X / self.lengths, self.points)) @ self.weights
        return result


def matern(r: Vector) -> Vector:
    """The Matern kernel of smoothness 5/2 at distances in length scales."""
    s = np.sqrt(5.0) * r
    result: Vector = (1 + s + s * s / 3) * np.exp(-s)
    return result


def _distances(a: Vector, b: Vector) -> Vector:
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2 * (a @ b.T)
    result: Vector = np.sqrt(np.maximum(squares, 0))
    return result


def _search(X: Vector, t: Vector, steps: int) -> Vector:
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
        total[np.diag_indices_from(total)] += noise + 1e-8
        factor = cho_factor(total, lower=True)
        alpha = cho_solve(factor, t)
        inverse = cho_solve(factor, np.eye(len(t)))
        value = 0.5 * t @ alpha + np.log(np.diag(factor[0])).sum()
        slack = inverse - np.outer(alpha, alpha)
        weight = slack * (5 / 3) * (1 + s) * decay
        by_length = 2 * (weight.sum(1) @ (points * points)) - 2 * np.einsum(
            "ij,ij->j", points, weight @ points
        )
        gradient = np.concatenate(
            [[(slack * kernel).sum()], [noise * np.trace(slack)], 0.5 * by_length]
        )
        prior = (theta[2:] - usual) / LENGTH_SPREAD
        gradient[2:] += prior / LENGTH_SPREAD
        return float(value + 0.5 * prior @ prior), gradient

    found = minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": steps}
    )
    result: Vector = found.x
    return result
