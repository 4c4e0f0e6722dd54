"""Prediction by an ensemble of sparse Gaussian processes and trees, over linear costs.

`gp_fitting` fits the ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codl.predict.estimators import CodlLinear
from codl.predict.estimators.numerics import Array, Vector, rowwise_dot, rowwise_matmul
from codl.predict.estimators.trees import Trees

#: Items predicted at a time; larger chunks are no faster and take more memory.
CHUNK = 1024


def logarithms(X: Vector) -> Vector:
    """log(1 + |X|), elementwise; `log1p` is more exact near 0 but far slower."""
    result = np.abs(X)
    result += 1
    return np.log(result, out=result)


@dataclass(frozen=True, eq=False)
class LogScaling:
    """Indices of the kept feature columns, with the mean and spread of their logarithms."""

    columns: tuple[int, ...]
    center: Vector
    spread: Vector

    def logs(self, X: Vector) -> Vector:
        return logarithms(X.take(self.columns, axis=1))

    def scaled(self, X: Vector) -> Vector:
        scaled = self.logs(X)
        scaled -= self.center
        scaled /= self.spread
        return scaled


def correlation(a: Array, b: Array, lengths: Vector) -> Array:
    """Matern correlations of smoothness 5/2, (1 + s + s^2 / 3) exp(-s): (items of a, items of b).

    s is sqrt(5) times the distance over the `lengths` (features): Rasmussen and Williams, eq. 4.17.
    The result has the precision of `a` and `b`: float32 takes half the time and is exact to 1e-5.
    Rows are independent of the batch.
    """
    scale = (np.sqrt(5.0) / lengths).astype(a.dtype)
    squares = squared_distances(a * scale, b * scale)
    result: Array = squares * (1 / 3)
    s = np.sqrt(squares, out=squares)
    result += s
    result += 1
    np.negative(s, out=s)
    result *= np.exp(s, out=s)
    return result


def squared_distances(a: Array, b: Array) -> Array:
    """Squared distances (items of a, items of b), as one matrix product |a|^2 - 2ab + |b|^2."""
    width = a.shape[1]
    left, right = (np.ones((len(items), width + 2), a.dtype) for items in (a, b))
    np.multiply(a, -2, out=left[:, :width])
    np.einsum("ij,ij->i", a, a, out=left[:, width])
    right[:, :width] = b
    np.einsum("ij,ij->i", b, b, out=right[:, width + 1])
    squares = rowwise_matmul(left, right.T)
    result: Array = np.abs(squares, out=squares)  # rounding makes a few negative
    return result


def on_line(scaled: Vector, line: Vector) -> Vector:
    result: Vector = rowwise_dot(scaled, line[:-1]) + line[-1]
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """A member of the ensemble: a line on scaled features plus a Gaussian process.

    Their sum predicts log latency if `is_level`, else log(latency / base). The process's mean at x
    is amplitude^2 x (correlations of x with the points) x `weights`. `share` is the mixing weight.
    In older files the process of some members sees products of the features with `axes` (features,
    directions).
    """

    share: float
    is_level: bool
    line: Vector
    axes: Vector | None = None
    lengths: Vector
    amplitude: float
    weights: Vector

    def predict(self, scaled: Vector, points: Vector) -> Vector:
        """Predicted logarithms, shaped (items)."""
        weights = (self.amplitude**2 * self.weights).astype(np.float32)
        logs = on_line(scaled, self.line)
        seen, others = (
            (rows if self.axes is None else rowwise_matmul(rows, self.axes)).astype(np.float32)
            for rows in (scaled, points)
        )
        for at in range(0, len(scaled), CHUNK):
            part = slice(at, at + CHUNK)
            logs[part] += rowwise_dot(correlation(seen[part], others, self.lengths), weights)
        return logs


@dataclass(frozen=True, kw_only=True, eq=False)
class Ensemble:
    """Latency = base (`codl_linear`) x exp(mixed corrections of members and trees).

    Without members, the correction is the constant `limits.sum()`.
    """

    base: CodlLinear
    #: Bounds of a correction's logarithm.
    limits: Vector
    scaling: LogScaling | None = None
    #: Inducing points, shaped (points, columns), scaled.
    points: Vector | None = None
    members: tuple[Member, ...] = ()
    trees: Trees | None = None

    def predict(self, X: Vector) -> Vector:
        """Latencies in milliseconds, shaped (items)."""
        base = self.base.predict(X)
        if not self.members or self.scaling is None or self.points is None:
            alone: Vector = base * np.exp(self.limits.sum())
            return alone
        logs, scaled = np.log(base), self.scaling.scaled(X)
        rows = [member.predict(scaled, self.points) for member in self.members]
        corrections = np.array(rows) - np.outer([m.is_level for m in self.members], logs)
        shares = np.array([member.share for member in self.members])
        if self.trees:
            of_trees = self.trees.predict(seen_by_trees(self.scaling.logs(X), logs))
            corrections = np.vstack([corrections, of_trees])
            # Shares sum to 1, so the trees' share is the remainder.
            shares = np.append(shares, 1 - shares.sum())
        result: Vector = base * np.exp(rowwise_dot(corrections.clip(*self.limits).T, shares))
        return result


def seen_by_trees(logs: Vector, base: Vector) -> Vector:
    """Inputs of trees: log features, log base, and log features over the base and the first."""
    return np.column_stack([logs, base, logs - base[:, None], logs - logs[:, :1]])
