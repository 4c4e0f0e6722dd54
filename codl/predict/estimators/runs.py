"""What differs from one measurement run to another: an overhead and a factor for each run.

A run's latency is factor x (latency in the typical run + overhead). Both are estimated from the
run's own rows and drawn towards 1 and 0, so that a run of few rows keeps what all have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codl.predict.estimators.arrays import Vector, rounded

#: Usual sizes, in logarithms, of a row's error and of a run's factor.
ERROR = 0.08
FACTOR_SPREAD = 0.2
#: Overheads that are tried, as shares of the run's lower quartile, and their usual size.
OVERHEADS = np.concatenate([-np.geomspace(0.3, 0.005, 12), [0.0], np.geomspace(0.005, 1.0, 17)])
OVERHEAD_SPREAD = 0.3


@dataclass(frozen=True)
class RunTerm:
    """Latency in a run = `factor` x (latency in the typical run + `overhead_ms`)."""

    overhead_ms: float = 0.0
    factor: float = 1.0


TYPICAL = RunTerm()


def fit_terms(predicted: Vector, y: Vector, labels: Sequence[str]) -> dict[str, RunTerm]:
    """The term of every run, from latencies predicted for the typical run and those measured."""
    rows = np.asarray(labels)
    return {
        label: _fit(predicted[rows == label], y[rows == label]) for label in sorted(set(labels))
    }


def _fit(predicted: Vector, y: Vector) -> RunTerm:
    """The likeliest of some overheads, each with its likeliest factor; errors as in L1."""
    unit = float(np.quantile(predicted, 0.25))
    overheads = OVERHEADS * unit
    overheads = overheads[predicted.min() + overheads > 0.3 * predicted.min()]
    logs = np.log(y) - np.log(predicted + overheads[:, None])  # (overheads, rows)
    shrink = len(y) / (len(y) + (ERROR / FACTOR_SPREAD) ** 2)
    factors = shrink * np.median(logs, axis=1)
    loss = np.abs(logs - factors[:, None]).sum(1) / ERROR
    loss += 0.5 * (factors / FACTOR_SPREAD) ** 2
    loss += np.abs(overheads / unit) / OVERHEAD_SPREAD
    best = int(loss.argmin())
    overhead, factor = rounded([overheads[best], np.exp(factors[best])])
    return RunTerm(float(overhead), float(factor))


def apply(terms: Mapping[str, RunTerm], latency_ms: Vector, labels: Sequence[str]) -> Vector:
    """Latencies of the typical run as those of each row's run; an unknown run is typical."""
    overhead, factor = _columns(terms, labels)
    return factor * (latency_ms + overhead)


def remove(terms: Mapping[str, RunTerm], latency_ms: Vector, labels: Sequence[str]) -> Vector:
    """The inverse of `apply`, kept to at least a fifth of what was measured."""
    overhead, factor = _columns(terms, labels)
    return np.maximum(latency_ms / factor - overhead, 0.2 * latency_ms / factor)


def _columns(terms: Mapping[str, RunTerm], labels: Sequence[str]) -> tuple[Vector, Vector]:
    own = [terms.get(label, TYPICAL) for label in labels]
    return np.array([t.overhead_ms for t in own]), np.array([t.factor for t in own])


def write(terms: Mapping[str, RunTerm]) -> dict[str, Any]:
    return {
        label: {"overhead_ms": term.overhead_ms, "factor": term.factor}
        for label, term in terms.items()
    }


def read(state: Any) -> dict[str, RunTerm]:
    """The terms of a state; raises `ValueError` with what is wrong."""
    if not isinstance(state, Mapping):
        raise ValueError(f"runs must be a mapping, got {state!r:.80}.")
    return {str(label): _term(str(label), term) for label, term in state.items()}


def _term(label: str, term: Any) -> RunTerm:
    if not isinstance(term, Mapping) or set(term) != {"overhead_ms", "factor"}:
        raise ValueError(f"runs, {label}: must have overhead_ms and factor, got {term!r:.80}.")
    for key, value in term.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            raise ValueError(f"runs, {label}: {key} must be a finite number, got {value!r}.")
    if term["factor"] <= 0:
        raise ValueError(f"runs, {label}: factor must be positive, got {term['factor']:g}.")
    return RunTerm(float(term["overhead_ms"]), float(term["factor"]))
