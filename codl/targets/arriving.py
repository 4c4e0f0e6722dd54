"""Results that arrive from an agent at work: how they are checked, and what is left if it is lost.

What reaches a dataset is read for years; so a device cannot put anything there but numbers for what
it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, Generic, TypeVar

import msgspec

from codl.ir.types import PROCESSORS
from codl.measure import drift
from codl.measure.batch import BatchListener, MeasureBatch, Measurement
from codl.measure.dataset import AnchorRow, Row
from codl.measure.tasks import Task
from codl.runtime.connection import FrameError
from codl.targets.client import AgentLostError

T = TypeVar("T")
#: The most letters of a device's own words that are kept.
MOST_LETTERS = 300
#: And of a list of what ran.
MOST_LISTED = 4000


class Remaining(Generic[T]):
    """Tasks that agents work through: another does those behind the task that one was lost with.

    Whoever hears from an agent says which task `begins` and which is `done`.
    """

    def __init__(self, tasks: Sequence[T]) -> None:
        self.tasks = list(tasks)
        self._current: T | None = None

    def work(
        self, ask: Callable[[tuple[T, ...]], object], lost: Callable[[T, str], object]
    ) -> None:
        """Ask for what is left until an agent comes to its end; `lost` is told of what one dies of.

        Raises `AgentLostError` where one does not come as far as a task, or the way was cut.
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

    def begins(self, task: T) -> None:
        self._check(task)
        self._current = task

    def done(self, task: T) -> None:
        self._check(task)
        self.tasks.remove(task)

    def _check(self, task: T) -> None:
        if task not in self.tasks:
            raise FrameError(f"It spoke of {task}, which was not asked, or is done.")


@dataclass
class Arriving:
    """What an agent has done of a batch when it was last heard of; `watcher` is told, too."""

    batch: MeasureBatch
    watcher: BatchListener = field(default_factory=BatchListener)
    rows: dict[int, Measurement] = field(default_factory=dict)
    built: list[int] = field(default_factory=list)
    is_timing: bool = False

    def building(self, index: int) -> None:
        self._task(index)
        self.built.append(index)
        self.watcher.building(index)

    def timing(self) -> None:
        self.is_timing = True
        self.watcher.timing()

    def measured(self, index: int, content: dict[str, Any], is_disturbed: bool) -> None:
        task = self._task(index)
        if index in self.rows:
            raise FrameError(f"It sent the row of task {index} twice.")
        row = checked_row(task, self.batch.run, content)
        self.rows[index] = Measurement(task, row, is_disturbed)
        self.watcher.measured(self.rows[index])

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        return tuple(self.rows.values())

    @property
    def suspects(self) -> tuple[Task, ...]:
        """The task that was being built, or all that took turns, but those whose rows are here."""
        built = self.built if self.is_timing else self.built[-1:]
        return tuple(self.batch.tasks[index] for index in built if index not in self.rows)

    def _task(self, index: int) -> Task:
        """The task that an agent speaks of; raises `FrameError` where none such was asked."""
        if not 0 <= index < len(self.batch.tasks):
            raise FrameError(f"It spoke of task {index} of {len(self.batch.tasks)}.")
        return self.batch.tasks[index]


def checked_row(task: Task, run: str, content: dict[str, Any]) -> Row:
    """The row of a task, of what a device sent; raises `FrameError` where it is none."""
    row_template = replace(task.row_template, run=run)
    try:
        row: Row = msgspec.convert(content, type(row_template))
    except msgspec.ValidationError as error:
        raise FrameError(f"It sent a row that is none: {error}.") from error
    for name in (column.name for column in fields(row)):
        value, asked = getattr(row, name), getattr(row_template, name)
        if isinstance(asked, str) and asked and name != "status" and value != asked:
            raise FrameError(f"It sent a row whose {name} is {value!r}, where {asked!r} was asked.")
        if isinstance(value, float) and not isfinite(value):
            raise FrameError(f"It sent a row whose {name} is {value}.")
    if row.key != row_template.key:
        raise FrameError(f"It sent the row of {row.key}, where {row_template.key} was asked.")
    if row.status == "ok" and not row.latency_ms > 0:
        raise FrameError(f"It sent a latency of {row.latency_ms} ms, which must be positive.")
    lists = row.list_fields
    own_words: Any = {name: plain(value, MOST_LISTED if name in lists else MOST_LETTERS)
                      for name, value in vars(row).items()
                      if isinstance(value, str) and not getattr(row_template, name)}  # fmt: skip
    return replace(row, **own_words)


def check_anchors(rows: Sequence[AnchorRow], run: str) -> None:
    """Raise `FrameError` for what are no anchors of a run."""
    for row in rows:
        is_known = drift.is_anchor(row.op) and row.processor in PROCESSORS
        if not is_known or row.run != run or row.status != "ok":
            raise FrameError(f"It sent {row.op!r} on {row.processor!r}, which is no anchor.")
        if not (isfinite(row.latency_ms) and row.latency_ms > 0):
            raise FrameError(f"It sent an anchor of {row.latency_ms} ms, which must be positive.")


def plain(text: str, most: int = MOST_LETTERS) -> str:
    """A device's own words on one line, without what steers terminals, and not too many."""
    visible = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(visible.split())[:most]
