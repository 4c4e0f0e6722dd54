"""Controller of an adaptive engine: when shares move from one processor to the other.

It sees of every inference how long the CPU worked in stages that both processors share, and how
long it then waited for the GPU. With `t` the time and `r` the share of each processor, the shares
that would have ended together are r_i' = r_i / sum_j(t_i r_j / t_j). Where the CPU waited, the GPU
took both times together, and all that is left of the rule is one number: how many times as fast
the GPU is now beside the CPU as where the plan is balanced. Where the CPU did not wait, the GPU was
done before, nobody knows how long; then the CPU's own time says whether it has become slower, and
else one step is tried.

Every move is a trial: inferences that are not faster afterwards end it, and it is not repeated
until something has changed, or a while has passed that doubles each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Literal

from codl.ir.executable import Executable, GpuOp, Launch, RunNet, Stage, Transfer, Wait
from codl.records.results import Move

#: Inferences whose median is looked at: two of them may be disturbed.
WINDOW = 5
#: Inferences in a row that must be unlike all before them to be the first after a change.
FIRST = 2
#: A share of the time in which a wait is none.
DONE = 0.02
#: A move wants evidence of this part of the way to the next alternative.
HYSTERESIS = 0.6
#: Inferences must take less than this part of what they took before for a move to be kept.
WORTH = 0.98
#: A processor has changed where the CPU's time, by the first part, or the share of the time that
#: is waiting, by the second, is out of the range that it had.
CHANGED, CHANGED_WAITING = 0.15, 0.08
#: How many inferences pass before what did not pay is tried again: at first, and at the most.
PATIENCE, MOST_PATIENCE = 100, 800
#: After a move that did not pay none is tried for two windows, after the next one for four, up to
#: this many, whatever has changed: on a machine where everything changes all the time nothing pays.
MOST_REST = 32
#: How many moves are remembered.
REMEMBERED = 256

Direction = Literal[-1, 1]


@dataclass(frozen=True)
class RunTimes:
    """One inference: nanoseconds in all, of the CPU's work in shared stages, and of its waits."""

    total: int
    work: int
    wait: int

    @cached_property
    def waiting(self) -> float:
        """The part of the shared stages that is waiting."""
        return self.wait / max(1, self.work + self.wait)


def _median(values: list[float]) -> float:
    """Of `WINDOW` values: the library's takes longer than all the rest of a look."""
    return sorted(values)[WINDOW // 2]


@dataclass(frozen=True)
class _Seen:
    """Some inferences, and their medians."""

    samples: tuple[RunTimes, ...]
    total: float
    work: float
    waiting: float

    @classmethod
    def of(cls, samples: tuple[RunTimes, ...]) -> _Seen:
        return cls(
            samples,
            _median([sample.total for sample in samples]),
            _median([sample.work for sample in samples]),
            _median([sample.waiting for sample in samples]),
        )

    def is_like(self, other: _Seen) -> bool:
        """Whether this is within what was seen then, so that no processor need have changed.

        One inference on either side of the range may have been disturbed.
        """
        working = sorted(sample.work for sample in other.samples)[1:-1]
        waiting = sorted(sample.waiting for sample in other.samples)[1:-1]
        if not (1 - CHANGED) * working[0] <= self.work <= (1 + CHANGED) * working[-1]:
            return False
        return waiting[0] - CHANGED_WAITING <= self.waiting <= waiting[-1] + CHANGED_WAITING


@dataclass(frozen=True)
class _TriedMove:
    """A move that is not yet known to pay: from where, and what was seen there."""

    origin: int
    direction: Direction
    before: _Seen
    #: How many alternatives further it went without knowing how far; 0 where that was known.
    blind: int


@dataclass(frozen=True)
class _Hold:
    """A move that did not pay: what was seen before it, and when it may be tried again."""

    seen: _Seen
    until: int
    patience: int


class Controller:
    """Chooses among alternatives, which differ in how fast the GPU is beside the CPU (`scales`).

    `active` is the one to run now; it only changes in `observe`. `moves` are the last ones.
    """

    def __init__(self, scales: Sequence[float], active: int) -> None:
        if list(scales) != sorted({*scales}):
            raise ValueError(f"scales must rise, got {scales}")
        self.scales, self.active = tuple(scales), active
        self.runs = 0
        self.moves: deque[Move] = deque(maxlen=REMEMBERED)
        self._window: deque[RunTimes] = deque(maxlen=WINDOW)
        self._trial: _TriedMove | None = None
        self._holds: dict[tuple[int, Direction], _Hold] = {}
        #: By alternative, what was seen of it when nothing was left to do.
        self._settled: dict[int, _Seen] = {}
        self._stride = 1
        #: Moves in turn that did not pay, and until when none is tried.
        self._losses, self._rest_until = 0, 0

    def use(self, scale: float) -> None:
        """Make an alternative the active one now, whatever was seen."""
        self._trial, self._stride = None, 1
        self._move(self.scales.index(scale))

    def observe(self, sample: RunTimes) -> None:
        """Take in an inference of the active alternative, and choose the next one's."""
        self.runs += 1
        self._window.append(sample)
        if len(self._window) < WINDOW or len(self.scales) == 1 or self._forgets():
            return
        seen = _Seen.of(tuple(self._window))
        if self._trial is not None and not self._has_paid(self._trial, seen):
            return
        if self.runs < self._rest_until:
            return
        target, blind = self._target(seen)
        direction: Direction = 1 if target > self.active else -1
        if target == self.active or self._is_held(direction, seen):
            self._settled[self.active] = seen
            self._stride = 1
        else:
            self._trial = _TriedMove(self.active, direction, seen, blind)
            self._move(target)

    def _forgets(self) -> bool:
        """Forget inferences that the last ones are unlike; whether there were any.

        What is half from before a change and half from after it says nothing of either.
        """
        samples = tuple(self._window)
        for amounts in ([sample.work for sample in samples], [sample.total for sample in samples]):
            then, now = amounts[:-FIRST], amounts[-FIRST:]
            if min(now) > (1 + CHANGED) * max(then) or max(now) < (1 - CHANGED) * min(then):
                self._window = deque(samples[-FIRST:], WINDOW)
                return True
        return False

    def _has_paid(self, trial: _TriedMove, seen: _Seen) -> bool:
        """Keep a move that made inferences faster, or take it back."""
        self._trial = None
        if seen.total < WORTH * trial.before.total:
            self._stride = 2 * trial.blind if trial.blind else 1
            self._losses = 0
            return True
        self._losses += 1
        self._rest_until = self.runs + WINDOW * min(2**self._losses, MOST_REST)
        key = (trial.origin, trial.direction)
        hold = self._holds.get(key)
        patience = PATIENCE
        if hold is not None and trial.before.is_like(hold.seen):
            patience = min(2 * hold.patience, MOST_PATIENCE)
        self._holds[key] = _Hold(trial.before, self.runs + patience, patience)
        self._stride = 1
        self._move(trial.origin)
        return False

    def _is_held(self, direction: Direction, seen: _Seen) -> bool:
        hold = self._holds.get((self.active, direction))
        return hold is not None and self.runs < hold.until and seen.is_like(hold.seen)

    def _target(self, seen: _Seen) -> tuple[int, int]:
        """The alternative that fits what was seen, and how far it is a guess."""
        scale, last = self.scales[self.active], len(self.scales) - 1
        if seen.waiting > DONE:
            return self._nearest(scale * (1 - seen.waiting)), 0
        settled = self._settled.get(self.active)
        if settled is not None and seen.work > (1 + CHANGED) * settled.work:
            fitting = self._nearest(scale * seen.work / settled.work)
            if fitting != self.active:
                return fitting, 0
        target = min(self.active + self._stride, last)
        return target, target - self.active

    def _nearest(self, wanted: float) -> int:
        """The nearest alternative; the active one unless the way to the next is mostly gone."""
        scale = self.scales[self.active]
        beside = self.active + (1 if wanted > scale else -1)
        if not 0 <= beside < len(self.scales):
            return self.active
        if abs(log(wanted / scale)) < HYSTERESIS * abs(log(self.scales[beside] / scale)):
            return self.active
        others = (number for number in range(len(self.scales)) if number != self.active)
        return min(others, key=lambda number: abs(log(self.scales[number] / wanted)))

    def _move(self, target: int) -> None:
        self.moves.append(Move(self.runs, self.scales[self.active], self.scales[target]))
        self.active = target
        self._window.clear()


@dataclass(frozen=True)
class OverlapSpan:
    """What lies between two stages in which the CPU waits for the GPU: `waits` of the later one.

    `is_shared` where both processors have work in every stage between. Only then does the wait say
    which of the two was done first.
    """

    waits: int
    is_shared: bool


class OverlapMonitor:
    """Reads the marks of one executable's runs.

    A wait takes some time even where the GPU has long been idle: what is shared must still be
    copied. `calibrate` takes that off.
    """

    def __init__(self, executable: Executable) -> None:
        self.spans = overlap_spans(executable)
        #: The same, and what each exchange alone takes.
        self._plain = [(span.waits, span.is_shared, 0) for span in self.spans]

    @property
    def sees(self) -> bool:
        """Whether there is a stage that says anything."""
        return any(span.is_shared for span in self.spans)

    def calibrate(self, drained: Sequence[Sequence[int]]) -> None:
        """Take the marks of runs in which the GPU was idle whenever the CPU came to a stage."""
        exchanges = [min(waits) for waits in zip(*map(self._waits, drained), strict=True)]
        self._plain = [
            (*plain[:2], exchange) for plain, exchange in zip(self._plain, exchanges, strict=True)
        ]

    def sample(self, start: int, marks: Sequence[int], end: int) -> RunTimes:
        """A run from `start` to `end`, in nanoseconds: one plain loop, as every run pays for it."""
        taken, waited, last, at = 0, 0, start, 0
        for waits, is_shared, exchange in self._plain:
            wait = marks[at + 1] - marks[at]
            for other in range(at + 2, at + 2 * waits, 2):
                wait += marks[other + 1] - marks[other]
            at += 2 * waits
            if is_shared:
                taken += marks[at - 1] - last
                if wait > exchange:
                    waited += wait - exchange
            last = marks[at - 1]
        return RunTimes(end - start, taken - waited, waited)

    def _waits(self, marks: Sequence[int]) -> list[int]:
        """What the waits of every stretch took."""
        taken, at = [], 0
        for span in self.spans:
            stop = at + 2 * span.waits
            taken.append(sum(marks[at + 1 : stop : 2]) - sum(marks[at:stop:2]))
            at = stop
        return taken


def overlap_spans(executable: Executable) -> tuple[OverlapSpan, ...]:
    """Those of one inference, in order."""
    spans: list[OverlapSpan] = []
    between: list[tuple[bool, bool]] = []
    for stage in executable.stages:
        waits = sum(
            is_for_gpu(executable, command)
            for command in stage.commands
            if isinstance(command, Wait)
        )
        if waits:
            spans.append(OverlapSpan(waits, bool(between) and all(map(all, between))))
            between = []
        works = _works(executable, stage)
        if any(works):
            between.append(works)
    return tuple(spans)


def is_for_gpu(executable: Executable, wait: Wait) -> bool:
    """Whether the CPU waits for what the GPU computes, and not for memory that it is to fill."""
    step = executable.steps[wait.step]
    return not (isinstance(step, Transfer) and step.direction == "to_gpu")


def _works(executable: Executable, stage: Stage) -> tuple[bool, bool]:
    """Whether the CPU, and whether the GPU, computes something in a stage."""
    on_gpu = any(
        isinstance(command, Launch) and isinstance(executable.steps[command.step], GpuOp)
        for command in stage.commands
    )
    return any(isinstance(command, RunNet) for command in stage.commands), on_gpu
