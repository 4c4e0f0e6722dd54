"""Rows of a batch as they arrive from an agent, each held against the task that it should be of.

What reaches a dataset is read for years; so a device cannot put anything there but numbers for what
it was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, TypeVar

import msgspec

from codl.ir import parse, to_text
from codl.ir.types import PROCESSORS
from codl.measure import drift
from codl.measure.batch import MeasureBatch, Measurement
from codl.measure.dataset import AnchorRow, Row
from codl.measure.runner import blank_row
from codl.measure.tasks import Task
from codl.runtime.connection import FrameError
from codl.targets.measure_messages import MeasuredRow
from codl.targets.message_base import Building, Reply, Timing

T = TypeVar("T")
#: So many letters of a device's own words are kept.
MOST_LETTERS = 300
#: And of a list of what ran.
MOST_LISTED = 4000


@dataclass
class Arriving:
    """What an agent has done of a batch when it was last heard of."""

    batch: MeasureBatch
    rows: dict[int, Measurement] = field(default_factory=dict)
    built: list[int] = field(default_factory=list)
    is_timing: bool = False

    def hear(self, event: Reply) -> None:
        """Take an event; raises `FrameError` for one that cannot be."""
        if isinstance(event, Building):
            self._task(event.index)
            self.built.append(event.index)
        elif isinstance(event, Timing):
            self.is_timing = True
        elif isinstance(event, MeasuredRow):
            task = self._task(event.index)
            if event.index in self.rows:
                raise FrameError(f"It sent the row of task {event.index} twice.")
            row = checked_row(task, self.batch.run, event.row)
            self.rows[event.index] = Measurement(task, row, event.is_disturbed)

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        return tuple(self.rows.values())

    @property
    def suspects(self) -> tuple[Task, ...]:
        """The task that was being built, or all that took turns, but those whose rows are here."""
        built = self.built if self.is_timing else self.built[-1:]
        return tuple(self.batch.tasks[index] for index in built if index not in self.rows)

    def _task(self, index: int) -> Task:
        return task_at(self.batch.tasks, index)


def task_at(tasks: Sequence[T], index: int) -> T:
    """The task that an agent speaks of; raises `FrameError` where it was asked for none such."""
    if not 0 <= index < len(tasks):
        raise FrameError(f"It spoke of task {index} of {len(tasks)}.")
    return tasks[index]


def checked_row(task: Task, run: str, content: dict[str, Any]) -> Row:
    """The row of a task, of what a device sent; raises `FrameError` where it is none."""
    blank = blank_row(task, run)
    try:
        row: Row = msgspec.convert(content, type(blank))
    except msgspec.ValidationError as error:
        raise FrameError(f"It sent a row that is none: {error}.") from error
    for name in (own.name for own in fields(row)):
        value, asked = getattr(row, name), getattr(blank, name)
        if isinstance(asked, str) and asked and name != "status" and value != asked:
            raise FrameError(f"It sent a row whose {name} is {value!r}, where {asked!r} was asked.")
        if isinstance(value, float) and not isfinite(value):
            raise FrameError(f"It sent a row whose {name} is {value}.")
    if row.key != blank.key:
        raise FrameError(f"It sent the row of {row.key}, where {blank.key} was asked.")
    if row.status == "ok" and not row.latency_ms > 0:
        raise FrameError(f"It sent a latency of {row.latency_ms} ms, which must be positive.")
    lists = row.list_fields
    own_words: Any = {name: plain(value, MOST_LISTED if name in lists else MOST_LETTERS)
                      for name, value in vars(row).items()
                      if isinstance(value, str) and not getattr(blank, name)}  # fmt: skip
    return replace(row, **own_words)


def check_anchors(rows: Sequence[AnchorRow], run: str) -> None:
    """Raise `FrameError` for what are no anchors of a run."""
    known = {to_text(parse(op)) for op in drift.OPS}
    for row in rows:
        is_known = row.op in known and row.processor in PROCESSORS
        if not is_known or row.run != run or row.status != "ok":
            raise FrameError(f"It sent {row.op!r} on {row.processor!r}, which is no anchor.")
        if not (isfinite(row.latency_ms) and row.latency_ms > 0):
            raise FrameError(f"It sent an anchor of {row.latency_ms} ms, which must be positive.")


def plain(text: str, most: int = MOST_LETTERS) -> str:
    """A device's own words on one line, without what steers terminals, and not too many."""
    visible = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(visible.split())[:most]
