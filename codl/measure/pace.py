"""Whether a machine holds its pace: the same work over and over, its first rounds and its last.

A processor that is hot, or whose clock was only boosted for a moment, is slower at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from codl.ir.statistic import level
from codl.measure.timing import ORDINARY, TOLERANCE
from codl.runtime import threads

#: Edge of the matrices that are multiplied: a round stays in a core's cache and lasts milliseconds.
EDGE, REPEATS = 128, 16
#: Of all rounds, the first and the last third are compared; each is so many stretches.
PART, STRETCHES = 3, 3


def pace(seconds: float) -> tuple[float, ...]:
    """Multiply matrices on one core for so long; the seconds of every round."""
    matrix = np.full((EDGE, EDGE), 1.0 / EDGE, np.float32)
    out = np.empty_like(matrix)
    samples: list[float] = []
    with threads.one_blas_thread():
        begin = last = perf_counter()
        while last - begin < seconds or len(samples) < PART:
            for _ in range(REPEATS):
                np.matmul(matrix, matrix, out=out)
            now = perf_counter()
            samples.append(now - last)
            last = now
    return tuple(samples)


def held(samples_s: Sequence[float]) -> float:
    """The pace of the last rounds over that of the first: 1 where it holds, 0.5 at half of it."""
    count = max(1, len(samples_s) // PART)
    return level(samples_s[:count]) / level(samples_s[-count:])


def tolerance(samples_s: Sequence[float]) -> float:
    """By how much the pace may fall: a little, and more where one stretch differs from the next."""
    stretches = np.array_split(np.asarray(samples_s), PART * STRETCHES)
    levels = [level(own.tolist()) for own in stretches if own.size]
    steps = np.abs(np.diff(np.log(levels)))
    spread = float(np.median(steps)) if steps.size else 0.0
    return max(TOLERANCE, ORDINARY * spread)
