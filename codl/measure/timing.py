"""How latencies are measured: everything in turns, in rounds of another order every time.

On a machine that others use too, what runs is slower for bursts from milliseconds to seconds. Two
samples here and two there, spread over ten seconds, meet the undisturbed machine again and again;
the same number in a row may all lie in one burst. And whatever disturbs the machine disturbs all
things that are compared.

There is one loop, `take_turns`, and three rules of when it is enough: `Rounds` for batches of
tasks, of which predictors learn; `Protocol` for kernels that are compared, until they are stable;
`Effort` for whole models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from time import perf_counter
from typing import TypeAlias, TypeVar

import numpy as np

from codl.errors import CodlError
from codl.ir.types import Processor
from codl.measure.budget import Budget
from codl.records.results import Conditions, Latency

T = TypeVar("T")
#: Seconds of one run of something, by part: `WHOLE` and whatever else it times.
Seconds = Mapping[str, float]
#: The same of many runs.
Samples = Mapping[str, Sequence[float]]
WHOLE = "whole"
#: What differs by no more than this, and by no more than twice what is usual, is the same:
#: some machines are never quiet.
TOLERANCE, ORDINARY = 0.03, 2.0


def take_turns(
    things: Iterable[T],
    visit: Callable[[T, int], bool],
    goes_on: Callable[[int], bool],
    after_round: Callable[[], object] = lambda: None,
) -> list[T]:
    """Visit all things in every round, while `goes_on` says so of the number of rounds so far.

    `visit` gets the number of the round too, and a thing of which it gives False leaves. Those that
    stayed are returned.
    """
    order, rounds = list(things), 0
    shuffle = Random(0).shuffle
    while order and goes_on(rounds):
        order = [thing for thing in order if visit(thing, rounds)]
        after_round()
        shuffle(order)  # so that nobody always follows the same neighbour
        rounds += 1
    return order


@dataclass(frozen=True)
class Rounds:
    """Visit everything `visits` times, and take `samples` of it at each visit.

    A visit begins with `settle` runs that are not timed, but not more than last `settle_s` seconds
    or one: the others of a batch have put its data out of the caches, and a shared cache takes it
    back only after several runs. A sample repeats the work until it lasts `sample_s`, so that the
    clock's resolution does not matter; its latency is the mean of its repeats. What takes so long
    that this would last more than `task_s` seconds is visited less often, but `least` times. What
    lasts longer than `long_s` is at no visit sampled more than once, with no run before. A batch
    that is done before `span_s` seconds goes on until then, with up to `more` times as many visits;
    so does one that was disturbed.
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
    """One thing that is measured, ready to run, and its samples so far, by part.

    `sample(n)` runs it n times over and gives the mean seconds of one run: `WHOLE`, and any parts.
    """

    sample: Callable[[int], Seconds]
    rounds: Rounds
    taken_s: dict[str, list[float]] = field(default_factory=dict)
    repeats: int = field(init=False)
    #: Runs before the samples of a visit.
    settle: int = field(init=False)
    #: Samples in one visit, and visits in `rounds.visits` rounds.
    samples: int = field(init=False)
    visits: int = field(init=False)
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        """Warm up, and see how many repeats make a sample, and how many visits it is worth."""
        rounds = self.rounds
        once = self._once_s()
        if once < rounds.long_s:  # what allocates or compiles at first is much slower then
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
        """Seconds of one run, with what comes before it and is not part of its latency."""
        start = perf_counter()
        self.sample(1)
        return perf_counter() - start

    def is_due(self, turn: int) -> bool:
        """Whether it is visited in round `turn`, so that its visits are spread evenly."""
        every, visits = self.rounds.visits, self.visits
        return (turn + 1) * visits // every > turn * visits // every

    def visit(self, turn: int | None = None) -> bool:
        """Take the samples of a visit, if it is due in round `turn`."""
        if turn is not None and not self.is_due(turn):
            return True
        if self.settle:
            self.sample(self.settle)
        for _ in range(self.samples):
            for part, seconds in self.sample(self.repeats).items():
                self.taken_s.setdefault(part, []).append(seconds)
        return True


def by_clock(work: Callable[[int], object]) -> Callable[[int], Seconds]:
    """The mean seconds of what does the same thing n times over and returns when it is done."""

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
    """Fill the samples of all things; on and on while `is_disturbed` says so."""
    begin = perf_counter()

    def goes_on(turn: int) -> bool:
        if turn >= rounds.visits * rounds.more:
            return False
        return turn < rounds.visits or perf_counter() - begin < rounds.span_s or is_disturbed()

    take_turns(things, Timed.visit, goes_on, after_round)


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

    def is_met(self, samples: Sequence[float], elapsed_s: float) -> bool:
        if len(samples) < self.min_samples or elapsed_s < self.min_time_s:
            return False
        p20, median, p80 = np.percentile(samples, (20, 50, 80))
        return bool(elapsed_s >= self.max_time_s or p80 - p20 <= self.spread * median)


def measure_together(
    works: Sequence[Callable[[int], object]], protocol: Protocol | None = None
) -> list[list[float]]:
    """The samples of several things, in seconds and one from every round.

    Each `work(n)` does the same thing n times over. The slowest decides when to stop.
    """
    protocol = protocol or Protocol()
    warm_up = protocol.warm_up - 1  # behind the first run
    alone = Rounds(warm_up=warm_up, samples=1, settle=0, sample_s=protocol.sample_s, long_s=inf)
    things = [Timed(by_clock(work), alone) for work in works]
    begin = perf_counter()

    def goes_on(_: int) -> bool:
        each_s = (perf_counter() - begin) / len(things)
        return not all(protocol.is_met(thing.taken_s.get(WHOLE, ()), each_s) for thing in things)

    take_turns(things, lambda thing, _: thing.visit(), goes_on)
    return [thing.taken_s[WHOLE] for thing in things]


#: Does something a number of times in a row, and returns the seconds that each of them took.
TimedRun: TypeAlias = Callable[[int], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure models: the least rounds and seconds, a turn in every round.

    A turn is several runs, since that is how a model is used: what it finds in the caches is its
    own. It is a run that finds the caches as the others left them, and `warm` runs right behind it,
    as where one inference follows the other. With `keep_runs` what every run took is told. Where
    there are `max_seconds`, no round but the first is begun that would end behind them. With
    `keep_cut` Ctrl-C ends it with the turns before.
    """

    min_rounds: int = 5
    min_seconds: float = 10.0
    warm: int = 3
    keep_runs: bool = False
    max_seconds: float | None = None
    keep_cut: bool = False

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
    `runs_ms` are all runs, in order, where they were to be kept. Where Ctrl-C ended it, it
    `is_cut_short`.
    """

    latency_ms: Mapping[str, Latency]
    failed: Mapping[str, str] = field(default_factory=dict)
    energy_mj: Mapping[str, float] = field(default_factory=dict)
    sensors: tuple[str, ...] = ()
    anchors: tuple[AnchorTime, ...] = ()
    conditions: Conditions = field(default_factory=Conditions)
    cold_ms: Mapping[str, Latency] = field(default_factory=dict)
    runs_ms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    is_cut_short: bool = False


def timed(run: Callable[[], None]) -> TimedRun:
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
    runs: Mapping[str, TimedRun],
    effort: Effort,
    *,
    before_turn: Callable[[], object] = lambda: None,
    after_round: Callable[[], object] = lambda: None,
    failed: dict[str, CodlError] | None = None,
    turns: dict[str, Turns] | None = None,
) -> dict[str, Turns]:
    """The turns of everybody, one in every round.

    What comes before a turn is the same for all. Whoever raises a `CodlError` leaves, and `failed`
    gets the error; without `failed` it is raised. `turns` gets everybody's as they are done.
    """
    turns = {} if turns is None else turns
    turns |= {name: Turns() for name in runs}
    budget = Budget(effort.max_seconds, perf_counter)

    def visit(name: str, _: int) -> bool:
        before_turn()
        try:
            turns[name].add(runs[name](effort.turn))
        except CodlError as error:
            if failed is None:
                raise
            failed[name] = error
            return False
        return True

    def goes_on(rounds: int) -> bool:
        is_short = rounds < effort.min_rounds or budget.spent_s < effort.min_seconds
        return is_short and budget.has_time()

    stayed = take_turns(runs, visit, goes_on, after_round)
    return {name: turns[name] for name in runs if name in stayed}
