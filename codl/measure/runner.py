"""Measurement of batches: building tasks, timing them in turns, and converting samples to rows.

Kernels of a batch are compiled ahead, and tasks are built until they fill its time. They are then
measured in turns with the anchors, which track the machine's speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import mean
from typing import Protocol

from codl.errors import DeviceError, is_defect
from codl.ir import parse, to_text
from codl.ir.records.results import Conditions
from codl.ir.records.soc import Soc
from codl.ir.records.statistic import level
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.machine.examination import memory_of
from codl.measure import timing
from codl.measure.dataset import Row, SharingRow, StageRow
from codl.measure.drift import OPS, Drift
from codl.measure.exchanges import TINY, CacheEvictor, Exchanges, Timer, WaitTimer, filled
from codl.measure.op_runner import CpuWork, Work, default_work, work_of
from codl.measure.stages import VISITS, StageTimer
from codl.measure.tasks import (
    DispatchTask,
    Emit,
    MeasureBatch,
    Measurement,
    OpTask,
    SharingTask,
    StageTask,
    Task,
    WaitTask,
    crash_row,
    failed_row,
    op_tasks,
    processors_of,
)
from codl.measure.timing import WHOLE, AnchorTime, Rounds, Samples, Timed, by_clock
from codl.runtime.opencl import OpenClDevice


@dataclass(frozen=True)
class Prepared:
    """A built and warmed-up task; `fill` converts its samples to a row."""

    task: Task
    row_template: Row
    timed: Timed
    fill: Callable[[Samples], Row]

    @property
    def anchor(self) -> tuple[str, Processor]:
        """The key of an anchor: its op as text, and its processor."""
        assert isinstance(self.task, OpTask)
        return to_text(self.task.op), self.task.processor

    @property
    def anchor_time(self) -> AnchorTime:
        """The latency of an anchor by the samples so far."""
        return AnchorTime(*self.anchor, 1e3 * level(self.timed.taken_s[WHOLE]))

    def row(self, drift: float = 1.0) -> Row:
        """The row of the samples so far, divided by `drift`; a failed row for invalid samples."""
        samples = {
            part: [each / drift for each in taken] for part, taken in self.timed.taken_s.items()
        }
        try:
            return self.fill(samples)
        except DeviceError as error:
            return failed_row(self.task, self.row_template.run, _reason(error))


class Bench:
    """Builds tasks on an OpenCL device and its CPU."""

    def __init__(
        self,
        gpu: OpenClDevice,
        run: str,
        rounds: Rounds | None = None,
        tuning: Tuning = Tuning(),
    ) -> None:
        self.soc, self.tuning = gpu.soc, tuning
        self.rounds = rounds or Rounds()
        self._run = run
        self._gpu = gpu
        self._caches = CacheEvictor(gpu, tuning)
        self._exchanges = Exchanges(gpu, self._caches)

    def prepare(self, task: Task) -> Prepared | Row:
        """Build a task and warm it up; returns a failed row for an error of the device.

        Defects of codl are raised.
        """
        row_template = replace(task.row_template, run=self._run)
        least = VISITS if isinstance(task, StageTask) else self.rounds.least
        try:
            sample, fill = self._timer(task, row_template)
            timed = Timed(sample, replace(self.rounds, least=least))
            return Prepared(task, row_template, timed, fill)
        except Exception as error:  # a failed configuration is a result, not the end
            if is_defect(error):
                raise
            return failed_row(task, self._run, _reason(error))

    def _timer(self, task: Task, row_template: Row) -> Timer:
        """The sampler of a task, and the converter of its samples to a row."""
        if isinstance(task, SharingTask) and isinstance(row_template, SharingRow):
            return self._exchanges.timer(task, row_template)
        if isinstance(task, StageTask) and isinstance(row_template, StageRow):
            timer = self._stage(task)
            return timer.sample, partial(timer.row, row_template)
        if isinstance(task, WaitTask):
            return WaitTimer(self._gpu).sample(task), partial(_positive, row_template)
        if isinstance(task, DispatchTask):
            kernels, count = default_work(TINY, "gpu", self._gpu, self.tuning), task.count
            sample = by_clock(lambda repeats: [kernels(count) for _ in range(repeats)])
            return sample, lambda samples: filled(row_template, samples[WHOLE])
        assert isinstance(task, OpTask)
        work = self.work(task)
        share = work.share if isinstance(work, CpuWork) else 1.0
        return by_clock(work), lambda samples: filled(
            row_template, [share * s for s in samples[WHOLE]]
        )

    def anchors(self) -> list[Prepared]:
        """The anchors that the SoC can run, in default variants."""
        built = map(self.prepare, anchor_tasks(self.soc))
        return [each for each in built if isinstance(each, Prepared)]

    def compile(self, task: Task) -> None:
        """Build and run a task's GPU work to cache its kernels; `prepare` reports errors."""
        row_template = task.row_template
        with suppress(Exception):
            if isinstance(task, SharingTask) and isinstance(row_template, SharingRow):
                sample, _ = self._exchanges.timer(task, row_template)
                sample(1)
            elif isinstance(task, StageTask):
                self._stage(task)
            elif isinstance(task, OpTask) and task.processor == "gpu":
                self.work(task)

    def work(self, task: OpTask) -> Work:
        variant = registry.find(task.part, task.variant)
        return work_of(variant, task.part, self._gpu, self.tuning)

    def _stage(self, task: StageTask) -> StageTimer:
        return StageTimer(task, self._gpu, self.tuning, self._caches.evict)


def anchor_tasks(soc: Soc) -> list[OpTask]:
    """The tasks of the anchors `OPS`, whole and in the default variant of each processor."""
    return [
        task
        for op in map(parse, OPS)
        for processor in PROCESSORS
        for task in op_tasks(op, processor, soc, [1.0])[:1]
    ]


def _positive(row_template: Row, samples: Samples) -> Row:
    """The row of a signal; raises `DeviceError` for a latency that is not positive."""
    row = filled(row_template, samples[WHOLE])
    if row.latency_ms <= 0:
        raise DeviceError(
            f"By the device's clock it was over {-1e3 * row.latency_ms:.3f} us too early."
        )
    return row


def _reason(error: Exception) -> str:
    return str(error).strip() or type(error).__name__


# Batches.

#: Largest share of memory and most bytes of a batch, and copies of a task's tensors and weights.
MEMORY_SHARE, MEMORY_BYTES, COPIES = 0.25, 6 << 30, 3
#: Shares of a batch's memory: of a large task, and of all large tasks together, so that small ones
#: fill the batch's time.
LARGE, ALL_LARGE = 0.02, 0.5


class PrecompilePool(Protocol):
    """Compiles the kernels of the next tasks; `crashing_tasks` has the reason of each crash."""

    @property
    def crashing_tasks(self) -> Mapping[Task, str]: ...

    @property
    def is_used(self) -> bool: ...

    def compile(self, tasks: Sequence[Task], tuning: Tuning, seconds: float) -> None: ...


class BatchRunner:
    """Measures the batches of one run; anchors are built once, `read` reads the conditions."""

    def __init__(self, bench: Bench, ahead: PrecompilePool, read: Callable[[], Conditions]) -> None:
        self._bench, self._ahead, self._read = bench, ahead, read

    @cached_property
    def _anchors(self) -> list[Prepared]:
        return self._bench.anchors()

    def measure(self, batch: MeasureBatch, emit: Emit) -> tuple[tuple[AnchorTime, ...], Conditions]:
        """Build the first tasks and time them in turns, within the batch's or the remaining time.

        `emit` receives each measurement. Returns the anchors and the last conditions.
        """
        # Compiling, building and measuring get equal times.
        seconds = min(batch.left_s / (3 if self._ahead.is_used else 2), batch.rounds.span_s)
        first = (*anchor_tasks(self._bench.soc), *batch.tasks)
        self._ahead.compile(first, batch.tuning, seconds)
        readings = [self._read()]
        prepared = self._prepare(batch, seconds, emit)

        def look() -> None:
            readings.append(self._read())

        look()
        for anchor in self._anchors:
            anchor.timed.taken_s.clear()
        emit("timing", 0, None)
        timed: list[Timed] = [item.timed for item in (*self._anchors, *prepared.values())]
        rounds = replace(batch.rounds, span_s=seconds)
        timing.measure(
            timed, rounds, lambda: self._is_disturbed(batch, [*prepared.values()]), after_round=look
        )
        meanwhile = Conditions.over(readings)
        for index, item in prepared.items():
            is_disturbed = self._is_disturbed(batch, [item])
            drifts = [self._drift_of(p, batch).factor for p in processors_of(item.task)]
            row = item.row(1.0 if is_disturbed else mean(drifts))
            emit("done", index, Measurement(item.task, row.under(meanwhile), is_disturbed))
        return tuple(anchor.anchor_time for anchor in self._anchors), readings[-1]

    def _is_disturbed(self, batch: MeasureBatch, prepared: Sequence[Prepared]) -> bool:
        """Whether anchors of the tasks' processors scatter beyond the tolerance."""
        used = {processor for item in prepared for processor in processors_of(item.task)}
        drifts = {p: self._drift_of(p, batch) for p in used}
        return any(drifts[p].scatter > batch.tolerance.get(p, float("inf")) for p in used)

    def _drift_of(self, processor: Processor, batch: MeasureBatch) -> Drift:
        """The drift of a processor by the samples so far; no drift without a reference."""
        factors = []
        for anchor in self._anchors:
            reference_ms = batch.reference_ms.get(anchor.anchor)
            if anchor.anchor[1] == processor and reference_ms is not None:
                factors.append(anchor.anchor_time.latency_ms / reference_ms)
        return Drift.of(factors)

    def _prepare(self, batch: MeasureBatch, seconds: float, emit: Emit) -> dict[int, Prepared]:
        """Build tasks until they fill `seconds` or the memory; returns them by index.

        Tasks that fail, or whose compilation crashed processes, are done with a failed row.
        """
        prepared: dict[int, Prepared] = {}
        is_any_done = False
        planned = taken = large = 0.0
        # Devices and hosts with little memory get small batches.
        limit = min(MEMORY_SHARE * memory_of().total or MEMORY_BYTES, MEMORY_BYTES)
        begin = time.monotonic()
        for index, task in enumerate(batch.tasks):
            is_enough = planned >= seconds or time.monotonic() - begin >= seconds
            if is_enough and (prepared or is_any_done):
                break
            size = COPIES * _bytes(task)
            more = size if size > LARGE * limit else 0.0
            if prepared and (taken + size > limit or (more and large + more > ALL_LARGE * limit)):
                continue  # smaller tasks may fit; this one leads a later batch
            taken, large = taken + size, large + more
            emit("begin", index, None)
            crash = self._ahead.crashing_tasks.get(task)
            built = crash_row(task, batch.run, crash) if crash else self._bench.prepare(task)
            if isinstance(built, Prepared):
                prepared[index] = built
                planned += built.timed.seconds
            else:
                is_any_done = True
                emit("done", index, Measurement(task, built.under(self._read())))
        return prepared


def _bytes(task: Task) -> int:
    if isinstance(task, OpTask):
        return task.part.bytes
    if isinstance(task, StageTask):
        return task.bytes
    return 2 * task.shape.bytes if isinstance(task, SharingTask) else 0
