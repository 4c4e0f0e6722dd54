"""Requests that measure, and the checks of their results.

Datasets are read for years, so a device can only add numbers for the tasks that it was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, Generic, TypeVar

import msgspec

from codl.ir import Op
from codl.ir.types import PROCESSORS
from codl.kernels.tuning import Tuning
from codl.measure import drift
from codl.measure.batch import MeasureBatch, Measurement
from codl.measure.check_variants import CheckTask
from codl.measure.dataset import AnchorRow, Row
from codl.measure.facts import Fact
from codl.measure.tasks import Task
from codl.measure.timing import Effort, TimedTogether
from codl.measure.tuner import TuneTask
from codl.measure.ui_frames import Drawn
from codl.records.results import Conditions
from codl.records.tuned import BenchRow, Refused, Trial, Tuned
from codl.runtime.connection import FrameError
from codl.targets.client import AgentLostError
from codl.targets.wire import EventKind, Request

T = TypeVar("T")
#: Most letters of a text of a device that are kept.
MOST_LETTERS = 300
#: Most letters of a list.
MOST_LISTED = 4000


@dataclass(frozen=True)
class MeasureFacts(Request[tuple[Fact, ...]]):
    """Measure facts of an OpenCL device, each in a process of its own or all in this one.

    All facts where `keys` is empty.
    """

    driver: str
    device: str
    keys: tuple[str, ...] = ()
    apart: bool = True
    limit_s = 1800.0


@dataclass(frozen=True)
class MeasuredRow:
    """The row of a task, as a CSV file has it."""

    row: dict[str, Any]
    is_disturbed: bool


@dataclass(frozen=True)
class Measure(Request[tuple[tuple[AnchorRow, ...], Conditions]]):
    """Measure a batch.

    Tasks begin, are timed together, and are done with a `MeasuredRow`. The answer is the anchors
    and the last conditions.
    """

    batch: MeasureBatch
    event = MeasuredRow

    limit_s = property(lambda self: 300.0 + 4 * self.batch.rounds.span_s)


@dataclass(frozen=True)
class TuneFailure:
    """A task for which no choice works, by its index among the tasks."""

    index: int
    reason: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Tune(Request[tuple[TuneFailure, ...]]):
    """Search the choices of kernels; `begun` are results of searches that were cut short.

    A task that is done has its `Tuned` result. The answer is the failures.
    """

    tasks: tuple[TuneTask, ...]
    begun: tuple[Tuned, ...]
    budget_s: float | None
    limit_s = 600.0
    event = Tuned


@dataclass(frozen=True)
class Check(Request[None]):
    """Check kernel variants against the NumPy interpreter; a task is done with its problem."""

    tasks: tuple[CheckTask, ...]
    budget_s: float | None
    event = str

    @property
    def limit_s(self) -> float:
        """One that hangs should not outlast the budget by much; compiling may take 30 s."""
        return 120.0 if self.budget_s is None else min(120.0, max(30.0, self.budget_s))


@dataclass(frozen=True)
class Compile(Request[None]):
    """Build and run the kernels of a task once."""

    task: Task
    tuning: Tuning
    limit_s = 600.0


@dataclass(frozen=True)
class Bench(Request[tuple[list[BenchRow], list[Refused]]]):
    """Measure an op in its kernel variants; the answer has those that were not measured, too."""

    op: Op
    tuning: Tuning
    every: bool
    limit_s = 600.0


@dataclass(frozen=True)
class Time(Request[TimedTogether]):
    """Time models and peers in turns, each on its last inputs; an event ends each round."""

    handles: dict[str, int]
    effort: Effort
    with_energy: bool
    anchors: Tuning | None
    limit_s = 300.0


@dataclass(frozen=True)
class DrawFrames(Request[Drawn]):
    """Draw an interface at 60 Hz on the GPU for `seconds`."""

    seconds: float

    limit_s = property(lambda self: 60.0 + 2 * self.seconds)


# Checks of events.


class Remaining(Generic[T]):
    """Tasks that agents work through; after one was lost with a task, another does the rest."""

    def __init__(self, tasks: Sequence[T]) -> None:
        self.tasks = list(tasks)
        self._current: T | None = None

    def work(
        self, ask: Callable[[tuple[T, ...]], object], lost: Callable[[T, str], object]
    ) -> None:
        """Call `ask` with the tasks left until an agent finishes; `lost` gets a task that ends one.

        Raises `AgentLostError` where an agent is lost before a task, or the connection is cut.
        """
        while self.tasks:
            self._current = None
            try:
                ask(tuple(self.tasks))
                return
            except AgentLostError as error:
                if self._current is None or error.is_blameless:
                    raise
                self.done(self._current)
                lost(self._current, str(error))

    def event(self, kind: EventKind, sent: Sequence[T], index: int) -> T:
        """Note that a task begins or is done, by its index among those `sent`."""
        if kind not in ("begin", "done") or not 0 <= index < len(sent):
            raise FrameError(f"it sent {kind!r} of task {index} of {len(sent)}")
        task = sent[index]
        if task not in self.tasks:
            raise FrameError(f"it sent {kind!r} of task {index}, which is done")
        if kind == "done":
            self.done(task)
        else:
            self._current = task
        return task

    def done(self, task: T) -> None:
        self.tasks.remove(task)


@dataclass
class Arriving:
    """Progress of an agent on a batch."""

    batch: MeasureBatch
    rows: dict[int, Measurement] = field(default_factory=dict)
    built: list[int] = field(default_factory=list)
    is_timing: bool = False

    def on_event(self, kind: EventKind, index: int, measured: MeasuredRow | None) -> None:
        """Note an event; raises `FrameError` for one that is not valid."""
        count = len(self.batch.tasks)
        if kind == "timing":
            self.is_timing = True
        elif kind not in ("begin", "done") or not 0 <= index < count:
            raise FrameError(f"it sent {kind!r} of task {index} of {count}")
        elif measured is None:
            self.built.append(index)
        elif index in self.rows:
            raise FrameError(f"it sent the row of task {index} twice")
        else:
            task = self.batch.tasks[index]
            row = checked_row(task, self.batch.run, measured.row)
            self.rows[index] = Measurement(task, row, measured.is_disturbed)

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        return tuple(self.rows.values())

    @property
    def suspects(self) -> tuple[Task, ...]:
        """Tasks that may have ended the agent: the one being built, or all that take turns."""
        built = self.built if self.is_timing else self.built[-1:]
        return tuple(self.batch.tasks[index] for index in built if index not in self.rows)


def checked_row(task: Task, run: str, content: dict[str, Any]) -> Row:
    """The row of a task from its values; raises `FrameError` for values that are not valid."""
    blank = replace(task.row_template, run=run)
    try:
        row: Row = msgspec.convert(content, type(blank))
    except msgspec.ValidationError as error:
        raise FrameError(f"it sent an invalid row: {error}") from error
    for name in (column.name for column in fields(row)):
        value, asked = getattr(row, name), getattr(blank, name)
        if isinstance(asked, str) and asked and name != "status" and value != asked:
            raise FrameError(f"it sent a row whose {name} is {value!r} instead of {asked!r}")
        if isinstance(value, float) and not isfinite(value):
            raise FrameError(f"it sent a row whose {name} is {value}")
    if row.key != blank.key:
        raise FrameError(f"it sent the row of {row.key} instead of {blank.key}")
    if row.status == "ok" and not row.latency_ms > 0:
        raise FrameError(f"it sent a latency of {row.latency_ms} ms, which must be positive")
    lists = row.list_fields
    own_words: Any = {name: plain(value, MOST_LISTED if name in lists else MOST_LETTERS)
                      for name, value in vars(row).items()
                      if isinstance(value, str) and not getattr(blank, name)}  # fmt: skip
    return replace(row, **own_words)


def check_anchors(rows: Sequence[AnchorRow], run: str) -> None:
    """Raise `FrameError` for rows that are not anchors of a run."""
    for row in rows:
        is_known = drift.is_anchor(row.op) and row.processor in PROCESSORS
        if not is_known or row.run != run or row.status != "ok":
            raise FrameError(f"it sent {row.op!r} on {row.processor!r}, which is not an anchor")
        if not (isfinite(row.latency_ms) and row.latency_ms > 0):
            raise FrameError(f"it sent an anchor of {row.latency_ms} ms, which must be positive")


def plain(text: str, most: int = MOST_LETTERS) -> str:
    """A text of a device on one line of at most `most` letters, without control characters."""
    visible = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(visible.split())[:most]
