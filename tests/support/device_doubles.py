"""Devices that measure nothing: rows of a fixed latency, by which one tells who made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from codl.ir import parse, to_text
from codl.ir.records.results import Conditions
from codl.ir.types import PROCESSORS
from codl.machine.placement import LocalSoc, Placement
from codl.measure import drift
from codl.measure.cool_down import CoolDown
from codl.measure.dataset import Dataset
from codl.measure.tasks import BatchResult, Emit, MeasureBatch, Measurement, Task
from codl.measure.timing import AnchorTime
from support.simulated import SOC

BOARD = LocalSoc.of(SOC, Placement("none", cpu_cores=(0,)))


def measured(
    batch: MeasureBatch, latency_ms: float, most: int, emit: Emit = lambda *event: None
) -> BatchResult:
    """Rows of the first tasks, emitted as they are made, and the anchors."""
    found = []
    for index, task in enumerate(batch.tasks[:most]):
        emit("begin", index, None)
        row = replace(task.row_template, run=batch.run, latency_ms=latency_ms, runs=1)
        found.append(Measurement(task, row))
        emit("done", index, found[-1])
    emit("timing", 0, None)
    anchors = tuple(
        AnchorTime(to_text(parse(op)), processor, latency_ms)
        for op in drift.OPS
        for processor in PROCESSORS
    )
    return BatchResult(tuple(found), anchors)


@dataclass
class DeviceDouble:
    """A target whose rows all have the same latency; `each` tasks make a batch.

    `before` is called with the number of each batch, and `at_door` at each try to reach it: either
    may raise, and what `before` returns is the result.
    """

    serial: str
    latency_ms: float = 1.0
    each: int = 3
    soc: LocalSoc = BOARD
    replays: None = None
    before: Callable[[int], BatchResult | None] = lambda number: None
    at_door: Callable[[int], object] = lambda number: None
    batches: list[Sequence[Task]] = field(default_factory=list)
    reached: int = 0

    def within(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()

    def conditions(self) -> Conditions:
        self.reached += 1
        self.at_door(self.reached)
        return Conditions()

    def measure(self, batch: MeasureBatch) -> BatchResult:
        self.batches.append(batch.tasks)
        return self.before(len(self.batches)) or measured(batch, self.latency_ms, self.each)


@dataclass
class SteppingClock:
    """Passes when it is slept."""

    now_s: float = 0.0
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds

    def cooling(self, read: Callable[[], Conditions]) -> CoolDown:
        return CoolDown(read, clock=lambda: self.now_s, sleep=self.sleep)


def keys(dataset: Dataset) -> list[tuple[str, Any]]:
    """What is in any table, in order; a doubled row is there twice."""
    return sorted((name, row.key) for name, t in dataset.tables().items() for row in t.read())


def wanted(tasks: Sequence[Task]) -> list[tuple[str, Any]]:
    """What there should be."""
    return sorted({(name, task.key) for task in tasks for name in task.tables})
