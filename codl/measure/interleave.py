"""Times several things in turns, so that whatever disturbs the machine disturbs all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import perf_counter
from typing import TypeAlias

from codl.errors import CodlError
from codl.ir.results import Conditions, Latency
from codl.ir.types import Processor

#: Does something once and returns the seconds that it took.
Timed: TypeAlias = Callable[[], float]


@dataclass(frozen=True)
class Effort:
    """How long to measure: warm-up rounds, then at least so many rounds and seconds.

    With a `lead_in` everybody's timed run comes right after so many of its own that are not timed,
    as where one inference follows the other.
    """

    warm_up: int = 2
    min_rounds: int = 15
    min_seconds: float = 10.0
    lead_in: int = 0


@dataclass(frozen=True)
class AnchorTime:
    """What an anchor took in the median."""

    op: str
    processor: Processor
    latency_ms: float


@dataclass(frozen=True)
class TimedTogether:
    """Latencies by name, or why one `failed`; `anchors` say how fast the machine was meanwhile.

    `conditions` are those of the whole time.
    `energy_mj` is that of one inference, by `sensors`; there is none where there are no sensors.
    """

    latency_ms: Mapping[str, Latency]
    failed: Mapping[str, str] = field(default_factory=dict)
    energy_mj: Mapping[str, float] = field(default_factory=dict)
    sensors: tuple[str, ...] = ()
    anchors: tuple[AnchorTime, ...] = ()
    conditions: Conditions = field(default_factory=Conditions)


def with_peers(min_seconds: float) -> Effort:
    """Fewer rounds, in which everybody runs twice: there are many, and large models take long."""
    return Effort(warm_up=1, min_rounds=5, min_seconds=min_seconds, lead_in=1)


def timed(run: Callable[[], None], lead_in: int = 0) -> Timed:
    """`run` by this process's clock."""
    return partial(_time, run, lead_in)


def _time(run: Callable[[], None], lead_in: int) -> float:
    for _ in range(lead_in):
        run()
    start = perf_counter()
    run()
    return perf_counter() - start


def interleave(
    runs: Mapping[str, Timed],
    effort: Effort,
    beside: Callable[[], None] = lambda: None,
    *,
    failed: dict[str, CodlError] | None = None,
) -> dict[str, Latency]:
    """Everybody once a round, in a new order each time, and then `beside`.

    Whoever raises a `CodlError` leaves, and `failed` gets the error; without `failed` it is
    raised.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    order, rounds, begin = list(runs), -effort.warm_up, perf_counter()
    shuffle = Random(0).shuffle
    while order and (rounds < effort.min_rounds or perf_counter() - begin < effort.min_seconds):
        if rounds == 0:
            begin = perf_counter()
        for name in tuple(order):
            try:
                seconds = runs[name]()
            except CodlError as error:
                if failed is None:
                    raise
                failed[name] = error
                order.remove(name)
                continue
            if rounds >= 0:
                samples[name].append(seconds)
        if rounds >= 0:
            beside()
        shuffle(order)  # so that nobody always follows the same neighbour
        rounds += 1
    return {name: Latency.of(samples[name]) for name in runs if name in order}
