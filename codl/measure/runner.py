"""Turns a task into a row: builds what it measures, and makes a row of the samples."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial

from codl.boundary import is_defect
from codl.errors import DeviceError
from codl.ir.types import PROCESSORS
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.measure.dataset import BatchRow, Row, SharingRow, StageRow
from codl.measure.exchanges import TINY, CacheEvictor, Exchanges, Timer, filled, stream_op
from codl.measure.measurement_order import in_batch
from codl.measure.op_runner import CpuWork, GpuWork, Work, default_work, repeated, work_of
from codl.measure.signals import SignalTimer
from codl.measure.stages import VISITS, StageTimer
from codl.measure.tasks import (
    BatchTask,
    DispatchTask,
    OpTask,
    SharingTask,
    SignalTask,
    StageTask,
    Task,
    failed_row,
    op_tasks,
)
from codl.measure.timing import WHOLE, Rounds, Samples, Seconds, Timed, by_clock
from codl.records.statistic import level
from codl.runtime.opencl import OpenClDevice

#: How long one image and the batch are run in a sample, and the least number of samples.
BATCH_S, BATCH_VISITS = 0.004, 5
MOST_REPEATS = 400


@dataclass(frozen=True)
class Prepared:
    """A task that is built and warm: `timed` takes samples, `fill` makes a row of them."""

    task: Task
    row_template: Row
    timed: Timed
    fill: Callable[[Samples], Row]

    def row(self, drift: float = 1.0) -> Row:
        """The row of the samples so far, from a machine that was `drift` times as slow.

        What they do not allow becomes a failed one.
        """
        samples = {
            part: [each / drift for each in taken] for part, taken in self.timed.taken_s.items()
        }
        try:
            return self.fill(samples)
        except DeviceError as error:
            return failed_row(self.task, self.row_template.run, _reason(error))


class BesideTask(OpTask):
    """An op on the CPU while the GPU is at the same."""


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
        """Build a task and run it; where that fails, a failed row with the reason.

        A defect of codl is raised: a row would say that the device fails.
        """
        row_template = replace(task.row_template, run=self._run)
        least = {StageTask: VISITS, BatchTask: BATCH_VISITS}.get(type(task), self.rounds.least)
        try:
            sample, fill = self._timer(task, row_template)
            timed = Timed(sample, replace(self.rounds, least=least))
            return Prepared(task, row_template, timed, fill)
        except Exception as error:  # a failed configuration is a result, not the end
            if is_defect(error):
                raise
            return failed_row(task, self._run, _reason(error))

    def _timer(self, task: Task, row_template: Row) -> Timer:
        """What takes samples of a task, and what makes a row of them."""
        if isinstance(task, SharingTask) and isinstance(row_template, SharingRow):
            return self._exchanges.timer(task, row_template)
        if isinstance(task, BatchTask) and isinstance(row_template, BatchRow):
            return self._batch(task, row_template)
        if isinstance(task, StageTask) and isinstance(row_template, StageRow):
            timer = self._stage(task)
            return timer.sample, partial(timer.row, row_template)
        if isinstance(task, SignalTask):
            return SignalTimer(self._gpu).sample(task), partial(_positive, row_template)
        if isinstance(task, DispatchTask):
            kernels, count = default_work(TINY, "gpu", self._gpu, self.tuning), task.count
            work = repeated(lambda: kernels(count))
        else:
            assert isinstance(task, OpTask)
            work = self.work(task)
        share = work.share if isinstance(work, CpuWork) else 1.0
        return by_clock(work), lambda samples: filled(
            row_template, [share * s for s in samples[WHOLE]]
        )

    def compile(self, task: Task) -> None:
        """Build and run what a task has on the GPU, so that its kernels lie in the caches.

        What goes wrong here goes wrong in `prepare` too, which reports it.
        """
        row_template = task.row_template
        with suppress(Exception):
            if isinstance(task, SharingTask) and isinstance(row_template, SharingRow):
                sample, _ = self._exchanges.timer(task, row_template)
                sample(1)
            elif isinstance(task, StageTask):
                self._stage(task)
            elif isinstance(task, OpTask) and task.processor == "gpu":
                self.work(task)
            elif isinstance(task, BatchTask) and task.processor == "gpu":
                for op in (task.op, in_batch(task.op, task.images), in_batch(TINY, task.images)):
                    default_work(op or TINY, "gpu", self._gpu, self.tuning)

    def work(self, task: OpTask) -> Work:
        variant = registry.find(task.part, task.variant)
        return work_of(variant, task.part, self._gpu, self.tuning)

    def streams(self) -> list[Prepared]:
        """What streams through the memory: on each processor, and on the CPU beside a busy GPU.

        None where there is too little memory for it, or no kernel.
        """
        op = stream_op(self.soc)
        tasks = [
            task
            for processor in PROCESSORS
            for task in op_tasks(op, processor, self.soc, [1.0])[:1]
        ]
        try:
            cpu, gpu = works = [self.work(task) for task in tasks]
        except Exception as error:  # what is told of the memory is no reason to measure nothing
            if is_defect(error):
                raise
            return []
        ready = [self._timed(task, by_clock(work)) for task, work in zip(tasks, works, strict=True)]
        if isinstance(gpu, GpuWork):
            parts = {each.name: getattr(tasks[0], each.name) for each in fields(OpTask)}
            ready.append(self._timed(BesideTask(**parts), partial(_beside, cpu, gpu)))
        return ready

    def _timed(self, task: OpTask, sample: Callable[[int], Seconds]) -> Prepared:
        row_template = replace(task.row_template, run=self._run)
        # It lasts long enough for one sample to tell, and takes the time of what is measured.
        timed = Timed(sample, replace(self.rounds, least=1))
        return Prepared(
            task, row_template, timed, lambda samples: filled(row_template, samples[WHOLE])
        )

    def _stage(self, task: StageTask) -> StageTimer:
        return StageTimer(task, self._gpu, self.tuning, self._caches.evict)

    def _batch(self, task: BatchTask, row_template: BatchRow) -> Timer:
        """One image and the batch, each repeated, so that the machine's drift cancels in a row.

        What a batch of tiny images takes longer than one is of the call, of which a network has one
        for all of its ops.
        """
        ops = {
            "single": task.op,
            WHOLE: in_batch(task.op, task.images),
            "tiny": TINY,
            "tiny batch": in_batch(TINY, task.images),
        }
        works = []
        for part, op in ops.items():
            work = by_clock(default_work(op or task.op, task.processor, self._gpu, self.tuning))
            once = min(work(1)[WHOLE] for _ in range(3))
            works.append((part, work, min(MOST_REPEATS, max(1, round(BATCH_S / once)))))

        def sample(repeats: int) -> Seconds:
            return {part: work(times * repeats)[WHOLE] for part, work, times in works}

        def fill(samples: Samples) -> Row:
            row = filled(row_template, samples[WHOLE])
            calls_ms = 1e3 * max(0.0, level(samples["tiny batch"]) - level(samples["tiny"]))
            single_ms = 1e3 * level(samples["single"])
            latency_ms = max(row.latency_ms - calls_ms, single_ms)
            return replace(row, latency_ms=latency_ms, single_ms=single_ms)

        return sample, fill


def _beside(cpu: Work, gpu: GpuWork, repeats: int) -> Seconds:
    """Mean seconds of what the CPU does while the GPU does the same, once more than it."""
    gpu.begin(repeats + 1)
    try:
        return by_clock(cpu)(repeats)
    finally:
        gpu.end()


def _positive(row_template: Row, samples: Samples) -> Row:
    """A row of a wait, of which no less than nothing is left.

    Raises `DeviceError` where the device's clock explains more than all of it.
    """
    row = filled(row_template, samples[WHOLE])
    if row.latency_ms <= 0:
        raise DeviceError(
            f"By the device's clock it was over {-1e3 * row.latency_ms:.3f} us too early."
        )
    return row


def _reason(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
