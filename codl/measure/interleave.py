"""Times several things in turns, so that whatever disturbs the machine disturbs all of them.

A turn is several runs, since that is how a model is used: what it finds in the caches is its own.
The first run of a turn finds what others left there, and is kept apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from time import perf_counter
from typing import TypeAlias

from codl.errors import CodlError
from codl.ir.results import Conditions, Latency
from codl.ir.statistic import level
from codl.ir.types import Processor
from codl.measure import drift
from codl.measure.batch import ReadsConditions
from codl.measure.budget import Budget
from codl.measure.runner import Prepared
from codl.measure.timing import WHOLE
from codl.runtime.energy import Sensor, energy_mj

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


def time_together(
    runs: Mapping[str, Timed],
    effort: Effort,
    *,
    sensors: Sequence[Sensor] = (),
    anchors: Sequence[Prepared] = (),
    machine: ReadsConditions | None = None,
    before_turn: Callable[[], object] = lambda: None,
    after_round: Callable[[], None] = lambda: None,
) -> TimedTogether:
    """Time all in turns; what fails leaves, with its reason.

    Anchors are visited once a round, and the `machine` is looked at.
    """
    failed: dict[str, CodlError] = {}
    readings: list[Conditions] = []

    def beside() -> None:
        if machine is not None:
            readings.append(machine.read())
        for anchor in anchors:
            anchor.timed.visit()
        after_round()

    found = interleave(runs, effort, before_turn=before_turn, after_round=beside, failed=failed)
    energy: dict[str, float | None] = {}
    for name in found:
        with suppress(CodlError):  # its latency is kept
            energy[name] = energy_mj(partial(runs[name], effort.turn), sensors)
    return TimedTogether(
        latency_ms={name: Latency.of(turns.warm) for name, turns in found.items()},
        cold_ms={name: Latency.of(turns.cold) for name, turns in found.items()},
        failed={name: str(error) for name, error in failed.items()},
        energy_mj={name: mj / effort.turn for name, mj in energy.items() if mj is not None},
        sensors=tuple(sensor.name for sensor in sensors),
        anchors=tuple(
            AnchorTime(*drift.key(one), 1e3 * level(one.timed.found[WHOLE]))
            for one in anchors
            if one.timed.found.get(WHOLE)
        ),
        conditions=Conditions.over(readings),
        runs_ms={name: tuple(1e3 * s for s in turns.every) for name, turns in found.items()}
        if effort.keep_runs
        else {},
    )


def slowdown(
    anchors: Sequence[AnchorTime], usual_ms: Mapping[tuple[str, str], float]
) -> dict[str, float] | None:
    """By processor, how many times longer its anchors take than usual.

    None where no anchor has a usual latency: a dataset was imported, or there is none. Where other
    programs or the heat slow a processor down by a tenth, its plans take a tenth longer than
    predicted, and no predictor is to blame.
    """
    ratios: dict[str, list[float]] = {}
    for one in anchors:
        if (one.op, one.processor) in usual_ms:
            own = ratios.setdefault(one.processor, [])
            own.append(one.latency_ms / usual_ms[one.op, one.processor])
    return {processor: drift.Drift.of(own).factor for processor, own in ratios.items()} or None
