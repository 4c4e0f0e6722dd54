"""Finds the wave size in a staircase of latencies; pure, and sure of itself or silent.

A staircase is the latency of one work-group over its number of work-items, of a kernel in which
work-items take turns (`codl.measure.facts.wave_size`). Within a wave each item costs a turn, so the
latency climbs a step an item; items of another wave take their turns at the same time, so it climbs
no more. The wave size is where the climb ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
#: Evidence that a knee explains the latencies better than a line, as a difference of the Bayesian
#: information criterion: above 10 it is called very strong (Kass and Raftery, 1995).
EVIDENCE = 10.0
#: Rounds are drawn again so often, with replacement; this share of the draws must agree.
DRAWS, AGREEMENT = 100, 0.9
#: Behind the knee the latency may climb by at most this share of the climb before it.
FLAT = 0.5
#: The knee that fits best of all may be off by this share of the wave size: it is noise.
TOLERANCE = 0.125


@dataclass(frozen=True)
class Staircase:
    """Milliseconds of work-groups of `items` work-items, `rounds_ms[round][index of items]`."""

    items: tuple[int, ...]
    rounds_ms: tuple[tuple[float, ...], ...]

    @property
    def medians_ms(self) -> Floats:
        """Over the rounds, for each number of items."""
        return np.asarray(np.median(np.array(self.rounds_ms), axis=0), np.float64)


@dataclass(frozen=True)
class Found:
    """The wave size; None where the staircase does not tell it, for the `reason`."""

    size: int | None
    reason: str


def find_wave(staircase: Staircase) -> Found:
    """The wave size that a staircase shows.

    Waves are powers of two on every GPU that there is, so only those are weighed; but the staircase
    must have its knee there of its own accord, and resampled rounds must agree.
    """
    items, latencies = np.array(staircase.items, float), staircase.medians_ms
    size = _best(items, latencies)
    if size is None:
        return Found(None, _why_none(items, latencies))
    agreeing = _agreement(staircase, size)
    if agreeing < AGREEMENT:
        return Found(None, f"too noisy: {agreeing:.0%} of resampled rounds say {size}")
    return Found(size, f"the latency climbs up to {size} work-items and not behind")


def _best(items: Floats, latencies: Floats) -> int | None:
    """The power of two with the most evidence; None where there is none with enough."""
    evidence = {}
    for size in _powers_of_two(int(items[-1])):
        window = items <= 2 * size
        own, values = items[window], latencies[window]
        if own[-1] < 1.25 * size or len(own) < 6:
            continue  # of what comes behind the knee too little is seen
        known = _evidence(own, values, size)
        if known > EVIDENCE and abs(_knee(own, values) - size) <= max(1.0, TOLERANCE * size):
            evidence[size] = known
    return max(evidence, key=lambda size: evidence[size]) if evidence else None


def _powers_of_two(most: int) -> list[int]:
    return [1 << exponent for exponent in range(1, most.bit_length()) if 1 << exponent < most]


def _evidence(items: Floats, latencies: Floats, knee: float) -> float:
    """For a knee rather than a line; none where it is no climb that ends."""
    (_, climb, behind), bent = _fit(items, latencies, knee)
    if climb <= 0 or abs(behind) > FLAT * climb:
        return 0.0
    _, straight = _fit(items, latencies, None)
    # A fit to the last bit would make anything certain.
    floor = len(items) * (1e-6 * float(np.ptp(latencies))) ** 2 + 1e-30
    count = len(items)
    return float(count * np.log((straight + floor) / (bent + floor)) - np.log(count))


def _knee(items: Floats, latencies: Floats) -> float:
    """Where a line that bends once fits best."""
    inner = items[1:-1]
    return float(min(inner, key=lambda at: _fit(items, latencies, at)[1]))


def _fit(items: Floats, latencies: Floats, knee: float | None) -> tuple[Floats, float]:
    """Offset and slopes before and behind the knee, or of a line; and the sum of squares left."""
    columns = [np.ones_like(items)]
    if knee is None:
        columns.append(items)
    else:
        columns += [np.minimum(items, knee), np.maximum(items - knee, 0.0)]
    basis = np.stack(columns, axis=1)
    found = np.asarray(np.linalg.lstsq(basis, latencies, rcond=None)[0], np.float64)
    return found, float(np.sum((basis @ found - latencies) ** 2))


def _agreement(staircase: Staircase, size: int) -> float:
    """The share of draws of as many rounds, with replacement, that show the same size."""
    rounds, random = np.array(staircase.rounds_ms), np.random.default_rng(0)
    items = np.array(staircase.items, float)
    near = items <= 4 * size  # what lies far behind cannot change it and takes long to fit
    same = 0
    for _ in range(DRAWS):
        drawn = rounds[random.integers(len(rounds), size=len(rounds))]
        same += _best(items[near], np.median(drawn, axis=0)[near]) == size
    return same / DRAWS


def _why_none(items: Floats, latencies: Floats) -> str:
    """A line through everything tells a climb to the end from no climb at all."""
    (_, slope), left = _fit(items, latencies, None)
    climbed = slope * (items[-1] - items[0])
    scatter = float(np.sqrt(left / len(items)))
    most = int(items[-1])
    if climbed > 4 * scatter and climbed > 2 * float(latencies[0]):
        return f"no step: the latency climbs up to {most} work-items, the most that were measured"
    return f"no step: the latency is the same from 1 to {most} work-items"
