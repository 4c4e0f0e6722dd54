"""What differs from one measurement run to another: an overhead, a factor and a floor for each run.

A run's latency is factor x (latency in the typical run + overhead), and never below its floor. The
first two are estimated from the run's own rows and drawn towards 0 and 1, so that a run of few rows
keeps what all have in common. A floor is the time after which a driver that waits looks again:
where it shows, ops of very different size all take the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.predict.estimators.json_arrays import Vector, medians, rounded

#: Usual sizes, in logarithms: of a row's error about its shape, of what is special to a shape, and
#: of a run's factor; and that of a run's overhead, as a share of the run's lower quartile.
ERROR = 0.04
SHAPE_SPREAD = 0.2
FACTOR_SPREAD = 0.2
OVERHEAD_SPREAD = 0.07
#: Steps of the solver; the overhead is not linear, and outliers are found as they show.
STEPS = 6
#: Rows further off than so many usual errors count less.
OUTLIER = 2.0
#: No overhead takes more than this share off the fastest prediction of its run.
MOST = 0.5
#: A floor shows where so large a share of a run's shapes, and so many, lie within this many
#: logarithms, with so small a share of them below, though they are predicted to differ by so much.
FLOOR_SHARE, FLOOR_SHAPES, FLOOR_WIDTH, FLOOR_BELOW, FLOOR_RANGE = 0.15, 4, 0.12, 0.1, 0.6

#: A floor that shows in another run needs no more than so many shapes within so many logarithms.
SHARED_SHAPES, SHARED_WIDTH = 2, 0.08


@dataclass(frozen=True)
class RunTerm:
    """Latency in a run = `factor` x (latency in the typical run + `overhead_ms`), or `floor_ms`."""

    overhead_ms: float = 0.0
    factor: float = 1.0
    floor_ms: float = 0.0


def find_floors(
    size: Vector, y: Vector, labels: Sequence[str], groups: NDArray[np.intp]
) -> dict[str, float]:
    """The floor of every run, 0 where none shows; `size` says how latencies should differ.

    One driver waits in all runs alike, so a floor that shows in one is looked for in the others.
    """
    run = np.asarray(labels)
    rows = {label: np.flatnonzero(run == label) for label in sorted(set(labels))}
    floors = {label: _floor(size, y, groups, own) for label, own in rows.items()}
    shown = sorted({floor for floor in floors.values() if floor > 0})
    for label, own in rows.items():
        if shown and not floors[label]:
            logs = np.log(_by_shape(y, groups, own))
            at = [floor for floor in shown if _is_at(logs - np.log(floor))]
            floors[label] = max(at, default=0.0)
    return floors


def _is_at(above: Vector) -> bool:
    """Whether shapes, by their logarithms above a floor of other runs, have it too."""
    near = np.abs(above) < SHARED_WIDTH
    return bool(near.sum() >= SHARED_SHAPES and (above <= -SHARED_WIDTH).mean() <= FLOOR_BELOW)


def _by_shape(y: Vector, groups: NDArray[np.intp], rows: NDArray[np.intp]) -> Vector:
    """The median latency of every shape among some rows, in the shapes' order."""
    return medians(y[rows], groups[rows])


def _floor(size: Vector, y: Vector, groups: NDArray[np.intp], rows: NDArray[np.intp]) -> float:
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
    groups: NDArray[np.intp],
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
    target: Vector, slope: Vector, trust: Vector, *, run: NDArray[np.intp], shape: NDArray[np.intp]
) -> tuple[Vector, Vector, Vector]:
    """Least squares with a pull to 0: target = factor of run + slope x overhead of run + shape's.

    A row has one shape, so shapes are eliminated first: what remains has two unknowns a run.
    """
    count = int(run.max()) + 1
    pull = [(ERROR / FACTOR_SPREAD) ** 2, (ERROR / OVERHEAD_SPREAD) ** 2]
    own = np.bincount(shape, trust) + (ERROR / SHAPE_SPREAD) ** 2
    wanted = np.bincount(shape, trust * target)
    both = (trust, trust * slope)
    cross = np.zeros((2 * count, len(own)))
    for at, weights in enumerate(both):
        np.add.at(cross, (at * count + run, shape), weights)
    normal = np.diag(np.repeat(pull, count))
    for i, j, weights in ((0, 0, trust), (0, 1, both[1]), (1, 0, both[1]), (1, 1, both[1] * slope)):
        block = normal[i * count : (i + 1) * count, j * count : (j + 1) * count]
        block[np.diag_indices(count)] += np.bincount(run, weights, minlength=count)
    right = np.concatenate([np.bincount(run, w * target, minlength=count) for w in both])
    found = np.linalg.solve(normal - (cross / own) @ cross.T, right - cross @ (wanted / own))
    special = (wanted - cross.T @ found) / own
    return found[:count], found[count:], special


def apply(terms: Mapping[str, RunTerm], latency_ms: Vector, labels: Sequence[str]) -> Vector:
    """Latencies of the typical run as those of each row's run; an unknown run is typical."""
    overhead, factor, floor = _columns(terms, labels)
    return np.maximum(factor * (latency_ms + overhead), floor)


def remove(terms: Mapping[str, RunTerm], latency_ms: Vector, labels: Sequence[str]) -> Vector:
    """The inverse of `apply` above the floor, kept to at least a fifth of what was measured."""
    overhead, factor, _ = _columns(terms, labels)
    return np.maximum(latency_ms / factor - overhead, 0.2 * latency_ms / factor)


def typical(terms: Mapping[str, RunTerm]) -> RunTerm:
    """A run without overhead or factor, at the middle one's floor."""
    floors = sorted(term.floor_ms for term in terms.values())
    return RunTerm(floor_ms=floors[len(floors) // 2] if floors else 0.0)


def _columns(terms: Mapping[str, RunTerm], labels: Sequence[str]) -> tuple[Vector, Vector, Vector]:
    usual = typical(terms)
    known = {label: terms.get(label, usual) for label in set(labels)}
    own = [known[label] for label in labels]
    columns = np.array([(t.overhead_ms, t.factor, t.floor_ms) for t in own]).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]


_TYPICAL = asdict(RunTerm())


def write(terms: Mapping[str, RunTerm]) -> dict[str, Any]:
    """Of every run what differs from a typical one."""
    return {
        label: {key: value for key, value in asdict(term).items() if value != _TYPICAL[key]}
        for label, term in terms.items()
    }


def read(state: Any) -> dict[str, RunTerm]:
    """The terms of a state; raises `ValueError` with what is wrong."""
    if not isinstance(state, Mapping):
        raise ValueError(f"runs must be a mapping, got {state!r:.80}.")
    return {str(label): _term(str(label), term) for label, term in state.items()}


def _term(label: str, term: Any) -> RunTerm:
    if not isinstance(term, Mapping) or not set(term) <= set(_TYPICAL):
        known = ", ".join(_TYPICAL)
        raise ValueError(f"runs, {label}: must have none but {known}, got {term!r:.80}.")
    for key, value in term.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise ValueError(f"runs, {label}: {key} must be a finite number, got {value!r}.")
    found = RunTerm(**{key: float(value) for key, value in term.items()})
    if found.factor <= 0 or found.floor_ms < 0:
        raise ValueError(f"runs, {label}: factor must be positive and floor_ms not negative.")
    return found
