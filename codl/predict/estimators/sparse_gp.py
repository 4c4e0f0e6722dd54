"""What `codl` is blended of: lines with Gaussian processes, and the items they are fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.predict.estimators.base import number
from codl.predict.estimators.gaussian import Kernel, Projection
from codl.predict.estimators.json_arrays import (
    Vector,
    from_rows,
    medians,
    rounded,
    to_rows,
    vector,
)
from codl.predict.estimators.rowwise import rowwise_dot, rowwise_matmul
from codl.predict.folds import inner_folds

Groups = NDArray[np.intp]

#: The part of the noise that all rows of an item have in common.
ITEM_NOISE = 0.5
#: Directions in which the scaled features spread less than this are noise.
LEAST_SPREAD = 0.05
#: So many items are predicted at a time: their correlations stay in the caches.
CHUNK = 512
#: Shares of the members that are tried come in so many steps.
SHARE_STEPS = 4
#: A direction's spread counts by this power: those that vary most matter most, though not so much.
SPREAD_POWER = 0.5


@dataclass(frozen=True)
class Member:
    """A line on the scaled features plus a Gaussian process on them or on `axes` of them.

    Both are of a logarithm. `axes` is shaped (features, directions), None for the features.
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
    """Directions in which the features spread, as columns; each scaled to a power of its spread."""
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
    """Ways to share 1 among `count`: equally, all in steps, in this order."""
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
