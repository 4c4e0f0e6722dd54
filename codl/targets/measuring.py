"""Requests that measure tasks and time models, with checks of their results.

Datasets are read for years, so only numbers for the requested tasks are accepted from a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any

import msgspec

from codl.ir.records.results import Conditions
from codl.ir.types import PROCESSORS
from codl.kernels.tuning import Tuning
from codl.measure import drift
from codl.measure.dataset import Row
from codl.measure.tasks import MeasureBatch, Measurement, Task
from codl.measure.timing import AnchorTime, Effort, TimedTogether
from codl.targets.connection import FrameError
from codl.targets.requests import EventKind, Request

#: Most characters kept of a device's text.
MOST_LETTERS = 300
#: Most characters kept of a list.
MOST_LISTED = 4000


@dataclass(frozen=True)
class MeasuredRow:
    """The row of a task, as in a CSV file."""

    row: dict[str, Any]
    is_disturbed: bool


@dataclass(frozen=True)
class Measure(Request[tuple[tuple[AnchorTime, ...], Conditions]]):
    """Measure a batch, with a `MeasuredRow` per task; answers anchors and last conditions."""

    batch: MeasureBatch
    event = MeasuredRow

    limit_s = property(lambda self: 300.0 + 4 * self.batch.rounds.span_s)


@dataclass(frozen=True)
class Compile(Request[None]):
    """Build and run the kernels of a task once."""

    task: Task
    tuning: Tuning
    limit_s = 600.0


@dataclass(frozen=True)
class Time(Request[TimedTogether]):
    """Time models and peers in turns, each on its last inputs; an event ends each round."""

    handles: dict[str, int]
    effort: Effort
    with_energy: bool
    anchors: Tuning | None
    limit_s = 300.0


@dataclass
class Arriving:
    """An agent's progress on a batch."""

    batch: MeasureBatch
    rows: dict[int, Measurement] = field(default_factory=dict)
    built: list[int] = field(default_factory=list)
    is_timing: bool = False

    def on_event(self, kind: EventKind, index: int, measured: MeasuredRow | None) -> None:
        """Record an event; raises `FrameError` for an invalid one."""
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
    """The row of a task from its values; raises `FrameError` for invalid values."""
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


def check_anchors(anchors: Sequence[AnchorTime]) -> None:
    """Raise `FrameError` for what is not an anchor, or has an impossible latency."""
    for anchor in anchors:
        op, processor, ms = anchor.op, anchor.processor, anchor.latency_ms
        if op not in drift.TEXTS or processor not in PROCESSORS:
            raise FrameError(f"it sent {op!r} on {processor!r}, which is not an anchor")
        if not (isfinite(ms) and ms > 0):
            raise FrameError(f"it sent an anchor of {ms} ms, which must be positive")


def plain(text: str, most: int = MOST_LETTERS) -> str:
    """A device's text on one line of at most `most` characters, without control characters."""
    visible = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(visible.split())[:most]
