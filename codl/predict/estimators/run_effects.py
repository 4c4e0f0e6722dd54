"""Run effects (batch effects): an overhead, a factor and a floor for each measurement run.

A run's latency is factor x (latency in the typical run + overhead), and never below its floor. The
first two are estimated from the run's own rows and drawn towards 0 and 1, so that a run of few rows
keeps what all have in common. A floor is the time after which a driver that waits looks again:
where it shows, ops of very different size all take the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from codl.predict.estimators.numerics import Groups, Vector, costs, medians, rounded

#: Usual sizes, in logarithms: of a row's error about its shape, of what is special to a shape, and
#: of a run's factor; and that of a run's overhead, as a share of the run's lower quartile.
ERROR = 0.04
SHAPE_SPREAD = 0.2
FACTOR_SPREAD = 0.2
OVERHEAD_SPREAD = 0.07
#: Steps of the solver; the overhead is not linear, and outliers are found as they show.
STEPS = 6
#: Rows further off than this many usual errors count less.
OUTLIER = 2.0
#: No overhead takes more than this share off the fastest prediction of its run.
MOST = 0.5
#: A floor shows where at least this share of a run's shapes, and this many, lie within a width in
#: logarithms, at most a share below them, though they are predicted to differ by a range.
FLOOR_SHARE, FLOOR_SHAPES, FLOOR_WIDTH, FLOOR_BELOW, FLOOR_RANGE = 0.15, 4, 0.12, 0.1, 0.6

#: How often run terms and rough costs are fitted in turn.
ROUGH_PASSES = 5
#: Terms must take so large a part of the error away: they have seen the rows held out.
TERMS_WORTH = 0.05
#: Logarithms from which on a prediction is as wrong as can be.
MOST_OFF = 0.5
#: More runs than this are told apart by their terms alone: each column needs shapes of its own.
MOST_COLUMNS = 16
#: A floor that shows in another run needs only this many shapes within this many logarithms.
SHARED_SHAPES, SHARED_WIDTH = 2, 0.08


@dataclass(frozen=True)
class RunTerm:
    """Latency in a run = `factor` x (latency in the typical run + `overhead_ms`), or `floor_ms`."""

    overhead_ms: float = 0.0
    factor: Annotated[float, Meta(gt=0)] = 1.0
    floor_ms: Annotated[float, Meta(ge=0)] = 0.0


@dataclass(frozen=True)
class RunTermSearch:
    """Finds the terms of runs beside a model, by fitting both in turn to the same rows.

    Terms found beside a rough model miss what it cannot tell, those beside a fine one what it took
    for the op's: neither is always better, so both are tried.
    """

    X: Vector
    y: Vector
    labels: Sequence[str]
    groups: Groups
    floors: Mapping[str, float]
    floor_ms: float

    def best(self, fit: Callable[[Mapping[str, RunTerm]], Vector]) -> Mapping[str, RunTerm]:
        """The terms with which a model predicts best; none but floors where others gain little.

        `fit` fits the model to the latencies without some terms (`remove`), and returns what it
        predicts for each row in the typical run, at best without having seen the row's shape.
        """
        tried: list[tuple[float, Mapping[str, RunTerm]]] = []

        def attempt(terms: Mapping[str, RunTerm]) -> Vector:
            predicted = fit(terms)
            tried.append((self._error(terms, predicted), terms))
            return predicted

        none = {label: RunTerm(floor_ms=floor) for label, floor in self.floors.items()}
        attempt(self._terms(attempt(none)))
        rough: Mapping[str, RunTerm] = none
        for _ in range(ROUGH_PASSES):
            rough = self._terms(self.of_costs(rough))
        predicted = attempt(rough)
        if min(tried[1][0], tried[2][0]) < tried[0][0]:
            attempt(self._terms(predicted))
        least, best = min(tried, key=lambda pair: pair[0])
        return best if least <= (1 - TERMS_WORTH) * tried[0][0] else none

    def of_costs(self, terms: Mapping[str, RunTerm]) -> Vector:
        """A rough model to `fit`: non-negative costs are too simple to follow every run."""
        coefficients, overhead = costs(self.X, remove(terms, self.y, self.labels))
        return self.X @ coefficients + overhead

    def _terms(self, predicted: Vector) -> Mapping[str, RunTerm]:
        predicted = np.maximum(predicted, self.floor_ms)
        return fit_terms(predicted, self.y, self.labels, groups=self.groups, floors=self.floors)

    def _error(self, terms: Mapping[str, RunTerm], predicted: Vector) -> float:
        in_runs = np.maximum(apply(terms, predicted, self.labels), self.floor_ms)
        return float(np.minimum(np.abs(np.log(in_runs / self.y)), MOST_OFF).mean())


def find_floors(size: Vector, y: Vector, labels: Sequence[str], groups: Groups) -> dict[str, float]:
    """The floor of every run, 0 where none shows; `size` says how latencies should differ.

    One driver waits in all runs alike, so a floor that shows in one is looked for in the others.
    """
    run = np.asarray(labels)
    rows = {label: np.flatnonzero(run == label) for label in sorted(set(labels))}
    floors = {label: _floor(size, y, groups, indices) for label, indices in rows.items()}
    shown = sorted({floor for floor in floors.values() if floor > 0})
    for label, indices_of_run in rows.items():
        if shown and not floors[label]:
            logs = np.log(_by_shape(y, groups, indices_of_run))
            at = [floor for floor in shown if _is_at(logs - np.log(floor))]
            floors[label] = max(at, default=0.0)
    return floors


def _is_at(above: Vector) -> bool:
    """Whether shapes, by their logarithms above a floor of other runs, have it too."""
    near = np.abs(above) < SHARED_WIDTH
    return bool(near.sum() >= SHARED_SHAPES and (above <= -SHARED_WIDTH).mean() <= FLOOR_BELOW)


def _by_shape(y: Vector, groups: Groups, rows: Groups) -> Vector:
    """The median latency of every shape among some rows, in the shapes' order."""
    return medians(y[rows], groups[rows])


def _floor(size: Vector, y: Vector, groups: Groups, rows: Groups) -> float:
    logs = np.log(_by_shape(y, groups, rows))
    sizes = np.log(_by_shape(size, groups, rows))
    order = np.argsort(logs)
    logs, sizes = logs[order], sizes[order]
    best, floor = 0, 0.0
    for first in range(int(FLOOR_BELOW * len(logs)) + 1):
        within = slice(first, int(np.searchsorted(logs, logs[first] + FLOOR_WIDTH, side="right")))
        count = within.stop - first
        low, high = np.quantile(sizes[within], [0.1, 0.9])
        if count > best and high - low >= FLOOR_RANGE:
            best, floor = count, float(np.exp(np.median(logs[within])))
    enough = best >= max(FLOOR_SHAPES, FLOOR_SHARE * len(logs))
    return float(rounded(floor)) if enough else 0.0


def above_floors(
    floors: Mapping[str, float], y: Vector, labels: Sequence[str]
) -> NDArray[np.bool_]:
    """Which rows say more than that they are at their run's floor."""
    floor = np.array([floors.get(label, 0.0) for label in labels])
    result: NDArray[np.bool_] = y > floor * np.exp(FLOOR_WIDTH / 2)
    return result


def fit_terms(
    predicted: Vector,
    y: Vector,
    labels: Sequence[str],
    *,
    groups: Groups,
    floors: Mapping[str, float],
) -> dict[str, RunTerm]:
    """The term of every run, from latencies predicted for the typical run and those measured.

    Every shape (`groups`) may differ from its prediction by a factor of its own, in all runs alike:
    so what tells runs apart is, above all, the shapes that they have in common.
    """
    names, run = np.unique(np.asarray(labels), return_inverse=True)
    shape = np.unique(groups, return_inverse=True)[1].ravel()
    count = len(names)
    unit = np.array([np.quantile(predicted[run == at], 0.25) for at in range(count)])
    least = np.array([-MOST * predicted[run == at].min() for at in range(count)])
    factor, overhead, trust = np.zeros(count), np.zeros(count), np.ones(len(y))
    for _ in range(STEPS):
        total = predicted + (overhead * unit)[run]
        slope = unit[run] / total
        target = np.log(y / total) + slope * overhead[run]
        factor, overhead, special = _solve(target, slope, trust, run=run, shape=shape)
        overhead = np.maximum(overhead, least / unit)
        off = target - factor[run] - slope * overhead[run] - special[shape]
        trust = 1 / np.maximum(np.abs(off) / (OUTLIER * ERROR), 1)
    factors, overheads = rounded(np.exp(factor)), rounded(overhead * unit)
    return {
        str(name): RunTerm(float(o), float(f), floors.get(str(name), 0.0))
        for name, o, f in zip(names, overheads, factors, strict=True)
    }


def _solve(
    target: Vector, slope: Vector, trust: Vector, *, run: Groups, shape: Groups
) -> tuple[Vector, Vector, Vector]:
    """Least squares with a pull to 0: target = factor of run + slope x overhead of run + shape's.

    A row has one shape, so shapes are eliminated first: what remains has two unknowns a run.
    """
    count = int(run.max()) + 1
    pull = [(ERROR / FACTOR_SPREAD) ** 2, (ERROR / OVERHEAD_SPREAD) ** 2]
    trusted = np.bincount(shape, trust) + (ERROR / SHAPE_SPREAD) ** 2
    wanted = np.bincount(shape, trust * target)
    both = (trust, trust * slope)
    cross = np.zeros((2 * count, len(trusted)))
    for at, weights in enumerate(both):
        np.add.at(cross, (at * count + run, shape), weights)
    normal = np.diag(np.repeat(pull, count))
    for i, j, weights in ((0, 0, trust), (0, 1, both[1]), (1, 0, both[1]), (1, 1, both[1] * slope)):
        block = normal[i * count : (i + 1) * count, j * count : (j + 1) * count]
        block[np.diag_indices(count)] += np.bincount(run, weights, minlength=count)
    right = np.concatenate([np.bincount(run, w * target, minlength=count) for w in both])
    effects = np.linalg.solve(
        normal - (cross / trusted) @ cross.T, right - cross @ (wanted / trusted)
    )
    special = (wanted - cross.T @ effects) / trusted
    return effects[:count], effects[count:], special


def apply(terms: Mapping[str, RunTerm], latency_ms: Vector, labels: Sequence[str]) -> Vector:
    """Latencies of the typical run as those of each row's run; an unknown run is typical."""
    overhead, factor, floor = _columns(terms, labels)
    return np.maximum(factor * (latency_ms + overhead), floor)


def remove(terms: Mapping[str, RunTerm], latency_ms: Vector, labels: Sequence[str]) -> Vector:
    """The inverse of `apply` above the floor, kept to at least a fifth of what was measured."""
    overhead, factor, _ = _columns(terms, labels)
    return np.maximum(latency_ms / factor - overhead, 0.2 * latency_ms / factor)


def _columns(terms: Mapping[str, RunTerm], labels: Sequence[str]) -> tuple[Vector, Vector, Vector]:
    """Overhead, factor and floor of each row; a typical run has the middle one's floor alone."""
    floors = sorted(term.floor_ms for term in terms.values())
    typical = RunTerm(floor_ms=floors[len(floors) // 2] if floors else 0.0)
    by_label = {label: terms.get(label, typical) for label in set(labels)}
    rows = [(t.overhead_ms, t.factor, t.floor_ms) for t in map(by_label.__getitem__, labels)]
    columns = np.array(rows).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


@dataclass(frozen=True)
class RunColumns:
    """A column for each of some runs: 1 in the run's rows, 0 in those of other runs.

    `shares` says how large a part of all rows each run has, by its name.
    """

    shares: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, labels: Sequence[str]) -> RunColumns:
        """Columns of all runs among the labels; none where there are more than `MOST_COLUMNS`."""
        rows = Counter(labels)
        if len(rows) > MOST_COLUMNS:
            return cls()
        return cls({name: float(rounded(rows[name] / len(labels))) for name in sorted(rows)})

    def beside(self, X: Vector, labels: Sequence[str] | None) -> Vector:
        """Features with the columns, shaped (items, features + runs).

        A run without a column, or none, is typical: a part of each run by its share of rows, so
        that a few rows of a slow hour do not make all predictions slow.
        """
        if not self.shares:
            return X
        typical = np.array(list(self.shares.values()))
        if labels is None:
            return np.column_stack([X, np.broadcast_to(typical, (len(X), len(typical)))])
        rows = dict(zip(self.shares, np.eye(len(self.shares)), strict=True))
        return np.column_stack([X, [rows.get(label, typical) for label in labels]])
