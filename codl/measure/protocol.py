"""How a latency is measured: warm up, repeat until it is stable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from codl.records.results import Latency


@dataclass(frozen=True)
class Protocol:
    """Warm up, then sample until `min_time_s` and `min_samples` are reached and p20 ... p80 lies
    within `spread` of the median, or `max_time_s` is over.

    A sample repeats the work until it lasts `sample_s`, so that the clock's resolution does not
    matter; its latency is the mean of its repeats.
    """

    warm_up: int = 2
    min_samples: int = 5
    min_time_s: float = 0.02
    max_time_s: float = 0.12
    sample_s: float = 0.0005
    spread: float = 0.05


def measure(work: Callable[[int], None], protocol: Protocol | None = None) -> Latency:
    """Measure `work(n)`, which does the same thing n times over and returns when it is done."""
    protocol = protocol or Protocol()
    repeats = _repeats(work, protocol)
    samples: list[float] = []
    begin = perf_counter()
    while not _is_enough(samples, perf_counter() - begin, protocol):
        samples.append(_sample(work, repeats))
    return Latency.of(samples)


def measure_together(
    works: Sequence[Callable[[int], None]], protocol: Protocol | None = None
) -> list[list[float]]:
    """Measure several things in turns: whatever disturbs the machine disturbs all of them.

    The samples of each, in seconds and one from every round. Each gets the time that `measure`
    would give it, and the slowest decides when to stop.
    """
    protocol = protocol or Protocol()
    repeats = [_repeats(work, protocol) for work in works]
    samples: list[list[float]] = [[] for _ in works]
    order, begin = list(range(len(works))), perf_counter()
    while not all(
        _is_enough(own, (perf_counter() - begin) / len(works), protocol) for own in samples
    ):
        for index in order:
            samples[index].append(_sample(works[index], repeats[index]))
        order.append(order.pop(0))  # nobody always follows the same neighbour
    return samples


def _repeats(work: Callable[[int], None], protocol: Protocol) -> int:
    """Warm up, and see how many repeats make a sample long enough."""
    once = min(_sample(work, 1) for _ in range(protocol.warm_up))
    return max(1, round(protocol.sample_s / max(once, 1e-7)))


def _sample(work: Callable[[int], None], repeats: int) -> float:
    start = perf_counter()
    work(repeats)
    return (perf_counter() - start) / repeats


def _is_enough(samples: list[float], elapsed: float, protocol: Protocol) -> bool:
    if len(samples) < protocol.min_samples or elapsed < protocol.min_time_s:
        return False
    p20, median, p80 = np.percentile(samples, (20, 50, 80))
    return bool(elapsed >= protocol.max_time_s or p80 - p20 <= protocol.spread * median)
