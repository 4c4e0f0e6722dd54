"""An ensemble of sparse Gaussian processes that corrects linear costs: what is stored and predicts.

`gp_fitting` finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.predict.estimators.linear import CodlLinear
from codl.predict.estimators.numerics import Vector, rowwise_dot, rowwise_matmul
from codl.predict.estimators.trees import Trees

#: Items predicted at a time: more would not make it faster, and their correlations take memory.
CHUNK = 1024
#: The quantiles of errors that are stored; those between are interpolated.
TAIL = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)
LEVELS = np.array([*TAIL, 0.5, *(1 - t for t in reversed(TAIL))])


def logarithms(X: Vector) -> Vector:
    """Logarithms of 1 more than the features; `log1p` is exact near 0 too, but far slower."""
    result = np.abs(X)
    result += 1
    return np.log(result, out=result)


@dataclass(frozen=True, eq=False)
class LogScaling:
    """The `columns` that are kept, and the center and the spread of each one's logarithm."""

    columns: tuple[int, ...]
    center: Vector
    spread: Vector

    def logs(self, X: Vector) -> Vector:
        """The logarithms of the columns, shaped (items, columns)."""
        return logarithms(X.take(self.columns, axis=1))

    def scaled(self, X: Vector) -> Vector:
        """The logarithms of the columns, less their centers and over their spreads."""
        scaled = self.logs(X)
        scaled -= self.center
        scaled /= self.spread
        return scaled


def correlation(a: Vector, b: Vector, lengths: Vector) -> Vector:
    """Matern correlations of smoothness 5/2, (1 + s + s^2 / 3) exp(-s): (items of a, items of b).

    s is sqrt(5) times the distance over the `lengths` (features): Rasmussen and Williams, eq. 4.17.
    In the precision of `a` and `b`; float32 takes half the time and is exact to 1e-5. A row depends
    on its item of `a` alone.
    """
    scale = (np.sqrt(5.0) / lengths).astype(a.dtype)
    squares = squared_distances(a * scale, b * scale)
    result: Vector = squares * (1 / 3)
    s = np.sqrt(squares, out=squares)
    result += s
    result += 1
    np.negative(s, out=s)
    result *= np.exp(s, out=s)
    return result


def squared_distances(a: Vector, b: Vector) -> Vector:
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


def along(scaled: Vector, axes: Vector | None) -> Vector:
    return scaled if axes is None else rowwise_matmul(scaled, axes)


def on_line(scaled: Vector, line: Vector) -> Vector:
    """A line's slopes come first, then its constant."""
    result: Vector = rowwise_dot(scaled, line[:-1]) + line[-1]
    return result


@dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """A member of the ensemble: a line on scaled features plus a Gaussian process.

    Both predict a logarithm: `is_level` that of the latency, else that of what the base lacks. The
    process sees the features, or their products with `axes`, shaped (features, directions); its
    mean at x is amplitude^2 x (correlations of x with the points) x `weights`. `share` is what the
    member counts for.
    """

    share: float
    is_level: bool
    line: Vector
    axes: Vector | None
    lengths: Vector
    amplitude: float
    weights: Vector

    def predict(self, scaled: Vector, points: Vector) -> Vector:
        """The logarithm, shaped (items)."""
        weights = (self.amplitude**2 * self.weights).astype(np.float32)
        logs = on_line(scaled, self.line)
        for part, near in self._correlations(scaled, points):
            logs[part] += rowwise_dot(near, weights)
        return logs

    def far(self, scaled: Vector, points: Vector) -> Vector:
        """How far from all points items are: 0 at one, 1 far from all."""
        nearest = np.empty(len(scaled))
        for part, near in self._correlations(scaled, points):
            nearest[part] = near.max(1)
        return 1 - nearest

    def _correlations(self, scaled: Vector, points: Vector) -> Iterator[tuple[slice, Vector]]:
        """Of items with points, (some items, points) in float32: a pass takes half the time."""
        items: NDArray[Any] = along(scaled, self.axes).astype(np.float32)
        others: NDArray[Any] = along(points, self.axes).astype(np.float32)
        for at in range(0, len(scaled), CHUNK):
            part = slice(at, at + CHUNK)
            yield part, correlation(items[part], others, self.lengths)


@dataclass(frozen=True, eq=False)
class ErrorQuantiles:
    """Quantiles at `LEVELS` of log(measured / predicted) over a scale, for prediction intervals.

    The scale is linear in what tells of errors (the disagreement of members, and the distance from
    what was measured), with weights `scale` of (1, signs).
    """

    scale: Vector
    quantiles: Vector

    def bounds(self, signs: Vector, coverage: float) -> tuple[Vector, Vector]:
        """Lowest and highest logarithm of measured over predicted, each shaped (items)."""
        low, high = np.interp([(1 - coverage) / 2, (1 + coverage) / 2], LEVELS, self.quantiles)
        scale = rowwise_dot(np.column_stack([np.ones(len(signs)), signs]), self.scale)
        return low * scale, high * scale


@dataclass(frozen=True, kw_only=True, eq=False)
class Ensemble:
    """Latency = what the blocks cost (`codl_linear`) x exp(what members and trees add).

    Without members the base stands alone, times what it is off by.
    """

    base: CodlLinear
    #: The least and the most that a correction's logarithm may be.
    limits: Vector
    errors: ErrorQuantiles
    scaling: LogScaling | None = None
    #: Shaped (points, columns): what processes are made of, scaled.
    points: Vector | None = None
    members: tuple[Member, ...] = ()
    trees: Trees | None = None

    def predict(self, X: Vector) -> Vector:
        base, corrections, _ = self._corrections(X)
        return base * np.exp(self._mixed(corrections))

    def bounds(self, X: Vector, coverage: float) -> tuple[Vector, Vector]:
        """Lowest and highest latency that `coverage` of such items will take."""
        base, corrections, scaled = self._corrections(X)
        far = np.ones(len(X))
        if self.members and self.points is not None:
            far = self.members[0].far(scaled, self.points)
        signs = np.column_stack([np.ptp(corrections, axis=0), far])
        low, high = self.errors.bounds(signs, coverage)
        predicted = base * np.exp(self._mixed(corrections))
        return predicted * np.exp(low), predicted * np.exp(high)

    def _corrections(self, X: Vector) -> tuple[Vector, Vector, Vector]:
        """The base, what each member adds to its logarithm (trees come last), scaled features."""
        base = self.base.predict(X)
        if not self.members or self.scaling is None or self.points is None:
            return base, np.full((1, len(X)), self.limits.sum()), X
        logs, scaled = np.log(base), self.scaling.scaled(X)
        rows = [member.predict(scaled, self.points) for member in self.members]
        corrections = np.array(rows) - np.outer([m.is_level for m in self.members], logs)
        if self.trees:
            of_trees = self.trees.predict(seen_by_trees(self.scaling.logs(X), logs))
            corrections = np.vstack([corrections, of_trees])
        return base, corrections.clip(*self.limits), scaled

    def _mixed(self, corrections: Vector) -> Vector:
        if not self.members:
            alone: Vector = corrections[0]
            return alone
        # The trees' share is what members leave of 1.
        shares = np.array([member.share for member in self.members])
        if self.trees:
            shares = np.append(shares, 1 - shares.sum())
        return rowwise_dot(corrections.T, shares)


def seen_by_trees(logs: Vector, base: Vector) -> Vector:
    """The features' logarithms, and that of the base; alone, over the base and over the first."""
    return np.column_stack([logs, base, logs - base[:, None], logs - logs[:, :1]])
