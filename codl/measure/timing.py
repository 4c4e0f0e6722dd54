"""How a batch of things is measured: in rounds, so that a disturbance hits a few samples of each.

On a machine that others use too, what runs is slower for bursts from milliseconds to seconds. Two
samples here and two there, spread over ten seconds, meet the undisturbed machine again and again;
the same number in a row may all lie in one burst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from time import perf_counter

#: Seconds of one run of something, by part: `WHOLE` and whatever else it times.
Seconds = Mapping[str, float]
#: The same of many runs.
Samples = Mapping[str, Sequence[float]]
WHOLE = "whole"
#: What differs by no more than this, and by no more than so many times what is usual, is the same:
#: some machines are never quiet.
TOLERANCE, ORDINARY = 0.03, 2.0


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
    found: dict[str, list[float]] = field(default_factory=dict)
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
            once = min(self._once_s() for _ in range(rounds.warm_up))
        self.repeats = max(1, round(rounds.sample_s / max(once, 1e-7)))
        self.samples = 1 if once > rounds.long_s else rounds.samples
        settle = max(1, min(rounds.settle, round(rounds.settle_s / max(once, 1e-7))))
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
        every, own = self.rounds.visits, self.visits
        return (turn + 1) * own // every > turn * own // every

    def visit(self) -> None:
        if self.settle:
            self.sample(self.settle)
        for _ in range(self.samples):
            for part, seconds in self.sample(self.repeats).items():
                self.found.setdefault(part, []).append(seconds)


def measure(
    things: Sequence[Timed],
    rounds: Rounds,
    is_disturbed: Callable[[], bool] = lambda: False,
    *,
    after_round: Callable[[], object] = lambda: None,
) -> None:
    """Fill the samples of all things, in rounds; on and on while `is_disturbed` says so."""
    order, begin, turn = list(things), perf_counter(), 0
    shuffle = Random(0).shuffle
    while order:
        for thing in order:
            if thing.is_due(turn):
                thing.visit()
        after_round()
        shuffle(order)  # so that nobody always follows the same neighbour
        turn += 1
        if turn >= rounds.visits * rounds.more:
            break
        is_over = perf_counter() - begin >= rounds.span_s
        if turn >= rounds.visits and is_over and not is_disturbed():
            break
