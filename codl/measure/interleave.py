"""Times several things in turns, so that whatever disturbs the machine disturbs all of them.

A turn is several runs, since that is how a model is used: what it finds in the caches is its own.
The first run of a turn finds what others left there, and is kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import perf_counter
from typing import TypeAlias

from codl.errors import CodlError
from codl.ir.types import Processor
from codl.measure.budget import Budget
from codl.records.results import Conditions, Latency

#: Does something so many times in a row, and returns the seconds that each of them took.
Timed: TypeAlias = Callable[[int], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure: at least so many rounds and seconds; in a round everybody has a turn.

    A turn is a run that finds the caches as the others left them, and `warm` runs right behind it,
    as where one inference follows the other. With `keep_runs` what every run took is told. Where
    there are `max_seconds`, no round but the first is begun that would end behind them.
    """

    min_rounds: int = 5
    min_seconds: float = 10.0
    warm: int = 3
    keep_runs: bool = False
    max_seconds: float | None = None

    @property
    def turn(self) -> int:
        """The runs of a turn."""
        return 1 + self.warm


@dataclass
class Turns:
    """Seconds of everything that one ran: the first run of each turn, and those behind it.

    `every` has both in their order.
    """

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    every: list[float] = field(default_factory=list, compare=False)

    def add(self, turn: Sequence[float]) -> None:
        first, *behind = turn
        self.cold.append(first)
        self.warm += behind
        self.every += turn


@dataclass(frozen=True)
class AnchorTime:
    """What an anchor took."""

    op: str
    processor: Processor
    latency_ms: float


@dataclass(frozen=True)
class TimedTogether:
    """Latencies by name, or why one `failed`; `anchors` say how fast the machine was meanwhile.

    `latency_ms` is of the warm runs, `cold_ms` of the first run of every turn. `conditions` are
    those of the whole time.
    `energy_mj` is that of one inference, by `sensors`; there is none where there are no sensors.
    `runs_ms` are all runs, in order, where they were to be kept.
    """

    latency_ms: Mapping[str, Latency]
    failed: Mapping[str, str] = field(default_factory=dict)
    energy_mj: Mapping[str, float] = field(default_factory=dict)
    sensors: tuple[str, ...] = ()
    anchors: tuple[AnchorTime, ...] = ()
    conditions: Conditions = field(default_factory=Conditions)
    cold_ms: Mapping[str, Latency] = field(default_factory=dict)
    runs_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def timed(run: Callable[[], None]) -> Timed:
    """`run` by this process's clock."""
    return partial(_time, run)


def _time(run: Callable[[], None], runs: int) -> list[float]:
    seconds = []
    for _ in range(runs):
        start = perf_counter()
        run()
        seconds.append(perf_counter() - start)
    return seconds


def interleave(
    runs: Mapping[str, Timed],
    effort: Effort,
    *,
    before_turn: Callable[[], object] = lambda: None,
    after_round: Callable[[], None] = lambda: None,
    failed: dict[str, CodlError] | None = None,
    found: dict[str, Turns] | None = None,
) -> dict[str, Turns]:
    """Everybody has a turn in every round, in a new order each time.

    What comes before a turn is the same for all. Whoever raises a `CodlError` leaves, and `failed`
    gets the error; without `failed` it is raised. `found` gets everybody's turns as they are done.
    """
    found = {} if found is None else found
    found |= {name: Turns() for name in runs}
    order, rounds, budget = list(runs), 0, Budget(effort.max_seconds, perf_counter)
    shuffle = Random(0).shuffle
    while order and (rounds < effort.min_rounds or budget.spent_s < effort.min_seconds):
        if not budget.has_time():
            break
        for name in tuple(order):
            before_turn()
            try:
                found[name].add(runs[name](effort.turn))
            except CodlError as error:
                if failed is None:
                    raise
                failed[name] = error
                order.remove(name)
        after_round()
        shuffle(order)  # so that nobody always follows the same neighbour
        rounds += 1
    return {name: found[name] for name in runs if name in order}
