"""Timing of several works in turns, in rounds of random order.

Other programs slow a machine down in bursts of milliseconds to seconds. Samples in a row may all
lie in one burst; samples spread over seconds do not, and a burst hits all compared works alike.

`take_turns` is the common loop of three stopping rules: `Rounds` for batches of tasks, whose rows
train predictors; `Protocol` for compared kernels, until they are stable; `Effort` for models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from time import perf_counter
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import numpy as np

from codl.errors import CodlError
from codl.ir.records.results import Conditions, Latency
from codl.ir.records.statistic import level
from codl.ir.types import Processor
from codl.machine.conditions import Sensor, energy_mj
from codl.measure.budget import Budget

T = TypeVar("T")
#: Seconds of one run by part: `WHOLE`, and optionally named parts.
Seconds = Mapping[str, float]
#: Seconds of many runs by part.
Samples = Mapping[str, Sequence[float]]
WHOLE = "whole"
#: Values are equal within this share, or within this multiple of the usual difference, since some
#: machines are never quiet.
TOLERANCE, ORDINARY = 0.03, 2.0


def take_turns(
    things: Iterable[T],
    visit: Callable[[T, int], bool],
    goes_on: Callable[[int], bool],
    after_round: Callable[[], object] = lambda: None,
) -> list[T]:
    """Visit all things in every round, while `goes_on(rounds so far)` is true.

    `visit` receives a thing and the round's number; a thing leaves when it returns False. Returns
    the remaining things.
    """
    order, rounds = list(things), 0
    shuffle = Random(0).shuffle
    while order and goes_on(rounds):
        order = [thing for thing in order if visit(thing, rounds)]
        after_round()
        shuffle(order)  # avoids fixed predecessors
        rounds += 1
    return order


@dataclass(frozen=True)
class Rounds:
    """Visit each task `visits` times, and take `samples` of it at each visit.

    A visit begins with up to `settle` untimed runs, for at most `settle_s` seconds or one run:
    other tasks have evicted the task's data, which return to caches only after several runs. A
    sample repeats the work until it lasts `sample_s`, for the clock's resolution; its latency is
    the mean of the repeats. A task whose visits would last more than `task_s` seconds has fewer,
    but at least `least`. A task longer than `long_s` has one sample a visit, without untimed runs.
    A batch that ends before `span_s` seconds goes on until then, with up to `more` times as many
    visits; so does a disturbed one.
    """

    warm_up: int = 2
    visits: int = 12
    samples: int = 3
    settle: int = 6
    settle_s: float = 0.006
    sample_s: float = 0.0003
    task_s: float = 0.07
    long_s: float = 0.005
    least: int = 4
    span_s: float = 10.0
    more: int = 3


@dataclass
class Timed:
    """Work to be timed, and its samples so far by part.

    `sample(n)` runs the work n times and returns the mean seconds of one run by part.
    """

    sample: Callable[[int], Seconds]
    rounds: Rounds
    taken_s: dict[str, list[float]] = field(default_factory=dict)
    repeats: int = field(init=False)
    #: Untimed runs before the samples of a visit.
    settle: int = field(init=False)
    #: Samples in one visit, and visits in `rounds.visits` rounds.
    samples: int = field(init=False)
    visits: int = field(init=False)
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        """Warm up, and choose the repeats of a sample and the number of visits."""
        rounds = self.rounds
        once = self._once_s()
        if once < rounds.long_s:  # a first run may allocate or compile
            once = min((self._once_s() for _ in range(rounds.warm_up)), default=once)
        self.repeats = max(1, round(rounds.sample_s / max(once, 1e-7)))
        self.samples = 1 if once > rounds.long_s else rounds.samples
        settle = min(rounds.settle, max(1, round(rounds.settle_s / max(once, 1e-7))))
        self.settle = 0 if once > rounds.long_s else settle
        visit = (self.settle + self.samples * self.repeats) * once
        fits = int(rounds.task_s / max(visit, 1e-9))
        self.visits = min(rounds.visits, max(fits, min(rounds.least, rounds.visits)))
        self.seconds = self.visits * visit

    def _once_s(self) -> float:
        """Seconds of one run, including preparations outside its latency."""
        start = perf_counter()
        self.sample(1)
        return perf_counter() - start

    def is_due(self, turn: int) -> bool:
        """Whether round `turn` has a visit; visits are spread evenly over the rounds."""
        every, visits = self.rounds.visits, self.visits
        return (turn + 1) * visits // every > turn * visits // every

    def visit(self, turn: int | None = None) -> bool:
        """Take the samples of a visit, if round `turn` has one."""
        if turn is not None and not self.is_due(turn):
            return True
        if self.settle:
            self.sample(self.settle)
        for _ in range(self.samples):
            for part, seconds in self.sample(self.repeats).items():
                self.taken_s.setdefault(part, []).append(seconds)
        return True


def by_clock(work: Callable[[int], object]) -> Callable[[int], Seconds]:
    """A sampler by the host's clock; `work(n)` performs n runs and returns at their end."""

    def sample(repeats: int) -> Seconds:
        start = perf_counter()
        work(repeats)
        return {WHOLE: (perf_counter() - start) / repeats}

    return sample


def measure(
    things: Sequence[Timed],
    rounds: Rounds,
    is_disturbed: Callable[[], bool] = lambda: False,
    *,
    after_round: Callable[[], object] = lambda: None,
) -> None:
    """Take the samples of all things in turns; a disturbed or short batch gets more rounds."""
    begin = perf_counter()

    def goes_on(turn: int) -> bool:
        if turn >= rounds.visits * rounds.more:
            return False
        return turn < rounds.visits or perf_counter() - begin < rounds.span_s or is_disturbed()

    take_turns(things, Timed.visit, goes_on, after_round)


@dataclass(frozen=True)
class Protocol:
    """Stopping rule: sample until the latency is stable or `max_time_s` is over.

    Stable: `min_time_s` and `min_samples` are reached, and p80 - p20 is at most `spread` of the
    median. A sample repeats the work until it lasts `sample_s`, and has the mean of its repeats.
    """

    warm_up: int = 2
    min_samples: int = 5
    min_time_s: float = 0.02
    max_time_s: float = 0.12
    sample_s: float = 0.0005
    spread: float = 0.05

    def is_met(self, samples: Sequence[float], elapsed_s: float) -> bool:
        if len(samples) < self.min_samples or elapsed_s < self.min_time_s:
            return False
        p20, median, p80 = np.percentile(samples, (20, 50, 80))
        return bool(elapsed_s >= self.max_time_s or p80 - p20 <= self.spread * median)


def measure_together(
    works: Sequence[Callable[[int], object]], protocol: Protocol | None = None
) -> list[list[float]]:
    """Samples (works, rounds) of several works in seconds, timed in turns.

    Each `work(n)` performs n runs. Timing ends when every work is stable.
    """
    protocol = protocol or Protocol()
    warm_up = protocol.warm_up - 1  # `Timed` has already run once
    alone = Rounds(warm_up=warm_up, samples=1, settle=0, sample_s=protocol.sample_s, long_s=inf)
    things = [Timed(by_clock(work), alone) for work in works]
    begin = perf_counter()

    def goes_on(_: int) -> bool:
        each_s = (perf_counter() - begin) / len(things)
        return not all(protocol.is_met(thing.taken_s.get(WHOLE, ()), each_s) for thing in things)

    take_turns(things, lambda thing, _: thing.visit(), goes_on)
    return [thing.taken_s[WHOLE] for thing in things]


#: A function that performs n runs in a row and returns the seconds of each.
TimedRun: TypeAlias = Callable[[int], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """Stopping rule for models: least rounds and seconds, with one turn of each model a round.

    A turn is a cold run, with caches as other models left them, and `warm` runs after it. Except
    for the first, no round begins that would end after `max_seconds`.
    """

    min_rounds: int = 5
    min_seconds: float = 10.0
    warm: int = 3
    max_seconds: float | None = None

    @property
    def turn(self) -> int:
        return 1 + self.warm


@dataclass
class Turns:
    """Seconds of a model's runs: `cold` runs and `warm` runs."""

    cold: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)

    def add(self, turn: Sequence[float]) -> None:
        first, *behind = turn
        self.cold.append(first)
        self.warm += behind


@dataclass(frozen=True)
class AnchorTime:
    """The latency of an anchor op on a processor."""

    op: str
    processor: Processor
    latency_ms: float


@dataclass(frozen=True)
class TimedTogether:
    """Results of models timed in turns, by model name; `failed` maps failed models to reasons.

    `latency_ms` covers warm runs, `cold_ms` the first run of each turn. `anchors` show the
    machine's speed, `conditions` cover the whole measurement. `energy_mj` is the energy of one
    inference, if there are `sensors`.
    """

    latency_ms: Mapping[str, Latency]
    failed: Mapping[str, str] = field(default_factory=dict)
    energy_mj: Mapping[str, float] = field(default_factory=dict)
    sensors: tuple[str, ...] = ()
    anchors: tuple[AnchorTime, ...] = ()
    conditions: Conditions = field(default_factory=Conditions)
    cold_ms: Mapping[str, Latency] = field(default_factory=dict)


def timed(run: Callable[[], None]) -> TimedRun:
    """Time `run` by this process's clock."""

    def time(runs: int) -> list[float]:
        seconds = []
        for _ in range(runs):
            start = perf_counter()
            run()
            seconds.append(perf_counter() - start)
        return seconds

    return time


def interleave(
    runs: Mapping[str, TimedRun],
    effort: Effort,
    *,
    before_turn: Callable[[], object] = lambda: None,
    after_round: Callable[[], object] = lambda: None,
) -> tuple[dict[str, Turns], dict[str, CodlError]]:
    """The turns of models, one of each in each round, and the errors of models that failed.

    A model that raises a `CodlError` is left out.
    """
    turns, failed = {name: Turns() for name in runs}, dict[str, CodlError]()
    budget = Budget(effort.max_seconds, perf_counter)

    def visit(name: str, _: int) -> bool:
        before_turn()
        try:
            turns[name].add(runs[name](effort.turn))
        except CodlError as error:
            failed[name] = error
        return name not in failed

    def goes_on(rounds: int) -> bool:
        is_short = rounds < effort.min_rounds or budget.spent_s < effort.min_seconds
        return is_short and budget.has_time()

    stayed = take_turns(runs, visit, goes_on, after_round)
    return {name: turns[name] for name in runs if name in stayed}, failed


def time_together(
    runs: Mapping[str, TimedRun],
    effort: Effort,
    *,
    sensors: Sequence[Sensor] = (),
    anchors: Mapping[tuple[str, Processor], Timed] = MappingProxyType({}),
    read: Callable[[], Conditions] | None = None,
    before_turn: Callable[[], object] = lambda: None,
    after_round: Callable[[], None] = lambda: None,
) -> TimedTogether:
    """Time several models in turns; failing models are left out, with their reasons.

    `anchors`, by op and processor, are visited once a round. `read` reads the machine's conditions.
    """
    readings = [] if read is None else [read()]

    def beside() -> None:
        if read is not None:
            readings.append(read())
        for anchor in anchors.values():
            anchor.visit()
        after_round()

    turns, failed = interleave(runs, effort, before_turn=before_turn, after_round=beside)
    energy: dict[str, float | None] = {}
    for name in turns:
        with suppress(CodlError):  # its latency is kept
            energy[name] = energy_mj(partial(runs[name], effort.turn), sensors)
    return TimedTogether(
        latency_ms={name: Latency.of(taken.warm) for name, taken in turns.items()},
        cold_ms={name: Latency.of(taken.cold) for name, taken in turns.items()},
        failed={name: str(error) for name, error in failed.items()},
        energy_mj={name: mj / effort.turn for name, mj in energy.items() if mj is not None},
        sensors=tuple(sensor.name for sensor in sensors),
        anchors=tuple(
            AnchorTime(op, processor, 1e3 * level(anchor.taken_s[WHOLE]))
            for (op, processor), anchor in anchors.items()
            if anchor.taken_s.get(WHOLE)
        ),
        conditions=Conditions.over(readings),
    )
