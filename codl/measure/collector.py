"""Collects a dataset: measures tasks in batches, writes rows, and can go on where it stopped.

Several devices share the tasks: whichever is done asks for more, so that a slower one gets less.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from codl import files
from codl.errors import CodlError, CodlWarning, DeviceError, MismatchError
from codl.kernels.tuning import Tuning
from codl.measure.batch import BatchResult, MeasureBatch, processors_of
from codl.measure.budget import Budget, Progress, no_progress
from codl.measure.cool_down import low_battery
from codl.measure.dataset import Dataset, Row
from codl.measure.dataset_writer import RowWriter, RunLog
from codl.measure.devices_at_work import (
    SYSTEM_CLOCK,
    Clock,
    Cooling,
    Device,
    DeviceStatus,
    EnvironmentReader,
    LowBatteryError,
    MeasuringTarget,
    cool_down,
    devices_of,
    no_environment,
)
from codl.measure.tasks import Task, crash_row
from codl.measure.timing import Rounds

#: Why a collection ended: nothing is left, a limit was reached, more would change nothing, or no
#: device's battery lasts.
Stopped = Literal["done", "budget", "samples", "settled", "battery"]
#: A batch in less time than this share of its own would tell little.
SHORTEST = 0.3
#: How often a task that was measured while the machine was disturbed is measured again.
RETRIES = 1
#: A task is a failed row once it took this many processes down: one may have been a cable.
DEATHS = 2
#: At most this many tasks are sent at a time; what a target leaves follows in a later batch.
MOST = 512
#: About this many are measured in one batch.
FEW = 64
#: A collection ends when no device has come back for this time.
PATIENCE_S = 300.0
GO_ON = "What was measured is on disk; go on by --resume."
#: Called with the state of each device, now and then.
Watch: TypeAlias = Callable[[Sequence[DeviceStatus]], None]


class Chooser(Protocol):
    """Chooses what to measure next; asked before every batch, when all rows are on disk."""

    def choose(self, missing: Sequence[Task], seconds: float) -> Sequence[Task]:
        """Some of the tasks in order; none if more rows would change nothing.

        `seconds` is the time since the collection began.
        """
        ...


@dataclass
class Collection:
    """The tasks that are left, and the devices that measure them."""

    devices: Sequence[Device]
    writer: RowWriter
    log: RunLog
    rounds: Rounds
    tuning: Tuning
    missing: list[Task]
    clock: Clock
    budget: Budget
    all_done: Stopped
    chooser: Chooser | None
    progress: Progress
    watch: Watch | None
    total: int = field(init=False)
    #: A sentence about what stopped it before its limits.
    reason: str = ""
    again: dict[Task, int] = field(default_factory=dict)
    #: Rows of tasks to be measured again: they are written if no time is left for that.
    held: dict[Task, Row] = field(default_factory=dict)
    #: How many processes crashed at each task.
    deaths: dict[Task, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.total = len(self.missing)

    def run(self) -> Stopped:
        """Measure until there is a reason to stop; raises if no device is left."""
        try:
            for device in self.devices:
                device.join(self.budget.left_s)
            while (stopped := self._step()) is None:
                pass
            return stopped
        finally:  # whatever ended it, Ctrl-C too
            for device in self.devices:
                device.close()
            self._finish()

    def _finish(self) -> None:
        """Write the rows of tasks that were to be measured again and were not."""
        self.writer.write(list(self.held.items()))
        self.log.finish()

    def figures(self) -> dict[str, Any]:
        """Those of `Collected` that are known here."""
        return {
            "rows": self.writer.rows,
            "failed": self.writer.failed,
            "again": len(self.again),
            "seconds": self.budget.spent_s,
            "paused_s": sum(each.cooling.paused_s for each in self.devices if each.cooling),
            "reason": self.reason,
            "devices": tuple(device.news(self.clock.now()) for device in self.devices),
        }

    def _step(self) -> Stopped | None:
        """Assign work, wait for a result and take it; returns a reason to stop, if any.

        When everything is measured, devices that are still connecting are not waited for.
        """
        reason = self._assign()
        is_over = not self.missing and any(device.run for device in self.devices)
        jobs = [
            device.job
            for device in self.devices
            if device.job is not None and not (is_over and device.state == "joining")
        ]
        if not jobs and reason is not None:
            return reason
        if not jobs:
            self._check_hope()
        if self.watch is not None:
            self.watch([device.news(self.clock.now()) for device in self.devices])
        retries = [device.retry_at for device in self.devices if device.state == "away"]
        pause_s = max(0.0, min(retries) - self.clock.now()) if retries else None
        self.clock.wait(jobs, None if pause_s is None else min(pause_s, self.budget.left_s))
        for device in self.devices:
            if device.job is not None and device.job.done():
                self._take(device)
        return None

    def _assign(self) -> Stopped | None:
        """Assign work to idle devices; returns the reason to stop if there is none."""
        now, reason = self.clock.now(), None
        if not self.missing:
            return self.all_done
        for device in self.devices:
            if device.state == "away" and now >= device.retry_at:
                device.join(self.budget.left_s)
            elif device.state == "idle" and (text := low_battery(device.now)):
                self._leave_out(device, LowBatteryError(text))
            elif device.state == "idle":
                reason = self._give(device)
        if all(device.state == "out" for device in self.devices):
            low = [device for device in self.devices if isinstance(device.problem, LowBatteryError)]
            several = len(self.devices) > 1
            self.reason = " ".join(
                f"{device.serial!r}: {device.problem}" if several else str(device.problem)
                for device in low
            )
            return "battery" if self.reason else None
        return "budget" if self.budget.is_over() else reason

    def _give(self, device: Device) -> Stopped | None:
        """Give a batch to a device; returns the reason if there is none."""
        taken = {task for other in self.devices for task in other.claimed}
        free: Sequence[Task] = [task for task in self.missing if task not in taken]
        if self.chooser is not None and free:
            free = sorted(self.chooser.choose(free, self.budget.spent_s), key=self._tries)
        left, least = self.budget.left_s, SHORTEST * self.rounds.span_s
        if not free or left < least or left <= 0:
            return "budget" if free else "settled"
        # Every device takes its share of many tasks, to leave some for others; of few only those
        # that wait now take any, as small batches are slow.
        sharing = [other for other in self.devices if other.state != "out"]
        if len(free) <= FEW * len(sharing):
            sharing = [other for other in sharing if other.state in ("idle", "joining")]
        batch = MeasureBatch(
            tasks=tuple(free[:: max(1, len(sharing))][: device.most]),
            run=device.run,
            rounds=self.rounds,
            tuning=self.tuning,
            left_s=left,
            reference_ms=device.anchors.reference_ms,
            tolerance=device.anchors.tolerance,
        )
        device.measure(batch, lambda: self.budget.left_s, least)
        return None

    def _take(self, device: Device) -> None:
        """Take the result of a device's job."""
        job, claimed = device.job, device.claimed
        assert job is not None
        device.job, device.claimed = None, ()
        try:
            result = job.result()
        except CodlError as error:
            is_away = isinstance(error, DeviceError) and not claimed
            self._drop(device, error) if is_away else self._leave_out(device, error)
            return
        if isinstance(result, BatchResult):
            self._record(device, result)
            return
        device.state, device.problem = "idle", None
        device.now, device.cooling = result.now, result.cooling
        if not device.run:
            device.run = self.log.begin(device.serial, result)

    def _record(self, device: Device, result: BatchResult) -> None:
        """Write the rows of a batch.

        Tasks of a disturbed or throttled processor are left for later, but not more than `RETRIES`
        times.
        """
        rows, device.state, device.now = [], "idle", result.conditions
        self.budget.skip(result.skipped_s)
        assert device.cooling is not None
        for measured in result.measurements:
            throttled = device.cooling.throttled(measured.row.throttled) & {
                *processors_of(measured.task)
            }
            is_disturbed = measured.is_disturbed or (
                measured.row.status == "ok" and bool(throttled)
            )
            if is_disturbed and self._tries(measured.task) < RETRIES:
                self.again[measured.task] = self._tries(measured.task) + 1
                self.held[measured.task] = measured.row
            else:
                self.held.pop(measured.task, None)
                rows.append((measured.task, measured.row))
        if result.measurements:
            device.works()
        if result.anchors:
            device.batch += 1
            device.anchors.add(result.anchors)
            self.writer.write_anchors(result.anchors, device.batch)
        device.measured += len(rows)
        self.writer.write(rows + self._lost(device, result))
        self.log.calibrate(device.run, device.anchors)
        self.missing = sorted(filter(self.writer.lacks, self.missing), key=self._tries)
        done = self.total - len(self.missing)
        self.progress(done, self.total, self.budget.to_go_s(done, self.total))

    def _lost(self, device: Device, result: BatchResult) -> list[tuple[Task, Row]]:
        """The failed row of a task that crashes processes, once a single task is left.

        Of several suspects half as many are measured next. Without suspects the device was away.
        """
        if not result.lost:
            device.most = min(2 * device.most, MOST)
            return []
        device.lost += 1
        if not result.suspects:
            if not result.measurements:
                self._drop(device, DeviceError(result.lost))
            return []
        if len(result.suspects) > 1:
            device.most = len(result.suspects) // 2
            return []
        (task,) = result.suspects
        self.deaths[task] = DEATHS if result.has_hung else self.deaths.get(task, 0) + 1
        if self.deaths[task] < DEATHS:
            return []
        return [(task, crash_row(task, device.run, result.lost))]

    def _drop(self, device: Device, problem: Exception) -> None:
        """A device went away: others take its tasks, and it is tried again later."""
        is_new, several = device.tries == 0, len(self.devices) > 1
        device.goes_away(problem, self.clock.now())
        if is_new and (device.has_worked or several):
            others = " while others go on" if several else ""
            _warn(f"{_sentence(problem)} {device.serial!r} is tried again{others}.")

    def _leave_out(self, device: Device, problem: Exception) -> None:
        device.state, device.problem = "out", problem
        if any(other.state != "out" for other in self.devices):
            _warn(f"{_sentence(problem)} {device.serial!r} is left out.")

    def _check_hope(self) -> None:
        """Raise if no device is left that can measure the rest."""
        away = [device for device in self.devices if device.state == "away"]
        problems = [device.problem for device in self.devices if device.problem is not None]
        has_begun = any(device.run for device in self.devices)
        if len(problems) == 1 and not (away and has_begun):
            raise problems[0]
        if not away or not any(device.has_worked for device in self.devices):
            said = " ".join(_sentence(problem) for problem in problems)
            raise DeviceError(f"{said} {GO_ON}" if has_begun else said)
        waited = self.clock.now() - max(device.away_since for device in away)
        if waited >= PATIENCE_S:
            raise DeviceError(
                f"No device has answered for {waited:.0f} s: {_sentence(away[0].problem)} {GO_ON}"
            )

    def _tries(self, task: Task) -> int:
        return self.again.get(task, 0)


def _warn(text: str) -> None:
    warnings.warn(text, CodlWarning, stacklevel=2)


def _sentence(problem: Exception | None) -> str:
    text = str(problem)
    return text if text.endswith((".", "?", "!")) else f"{text}."


@dataclass(frozen=True)
class Collected:
    """`rows` written now, `failed` among them, `skipped` because a run before had them.

    `again` tasks were measured twice, because the machine was disturbed or throttled the first
    time. `paused_s` seconds of all devices went to cooling down. `reason` is a sentence about what
    stopped it where nobody wanted that.
    """

    rows: int
    failed: int
    skipped: int
    left: int
    again: int
    seconds: float
    stopped: Stopped
    files: tuple[str, ...]
    paused_s: float = 0.0
    reason: str = ""
    devices: tuple[DeviceStatus, ...] = ()


def collect(
    targets: MeasuringTarget | Sequence[MeasuringTarget],
    dataset: Dataset,
    tasks: Sequence[Task],
    tuning: Tuning = Tuning(),
    *,
    resume: bool = False,
    budget_s: float | None = None,
    samples: int | None = None,
    rounds: Rounds | None = None,
    chooser: Chooser | None = None,
    progress: Progress = no_progress,
    watch: Watch | None = None,
    cooling: Cooling = cool_down,
    tells: EnvironmentReader = no_environment,
    clock: Clock = SYSTEM_CLOCK,
) -> Collected:
    """Measure `tasks` on a target until all are done, `budget_s` seconds or `samples` tasks are
    used up, or the chooser has enough; kernels are measured as they were tuned.

    Several targets are devices of one SoC, each with a run of its own in the dataset. One that goes
    away is tried again later, and one that cannot be used is left out, with a warning. `watch` is
    told how it stands with each; `cooling` waits before a batch while a target is hot.

    A task that takes a target's process down twice is a failed row. The rows of a batch are on disk
    before the next is begun. A replay's recorded seconds are counted as if they had passed.
    Raises `CodlError` where there is a dataset and `resume` is not set, `MismatchError` where it is
    of another SoC or was measured in another way, or where no target is the SoC, and `DeviceError`
    where none can be reached.
    """
    several = list(targets) if isinstance(targets, Sequence) else [targets]
    _check_alike(several)
    rounds, budget = rounds or Rounds(), Budget(budget_s, clock.now)
    with files.locked(dataset.folder):
        log = RunLog(dataset, several[0], rounds, tuning, resume=resume)
        writer = RowWriter(dataset)
        missing = [task for task in tasks if writer.lacks(task)]
        work = Collection(
            devices=devices_of(several, MOST, cooling, tells),
            writer=writer,
            log=log,
            rounds=rounds,
            tuning=tuning,
            missing=missing[:samples],
            clock=clock,
            budget=budget,
            all_done="done" if samples is None or samples >= len(missing) else "samples",
            chooser=chooser,
            progress=progress,
            watch=watch,
        )
        stopped = work.run()
        return Collected(
            skipped=len(tasks) - len(missing),
            left=sum(writer.lacks(task) for task in tasks),
            stopped=stopped,
            files=tuple(str(table.path) for table in dataset.tables().values()),
            **work.figures(),
        )


def _check_alike(targets: Sequence[MeasuringTarget]) -> None:
    """Raise `MismatchError` where rows of several targets cannot be in one dataset."""
    first, *others = targets
    for other in others:
        if first.replays or other.replays:
            raise MismatchError(
                f"A replay is collected from alone, got {first.serial!r} and {other.serial!r}."
            )
        if other.soc.facts != first.soc.facts:
            raise MismatchError(
                f"{first.serial!r} and {other.serial!r} are of different SoCs, whose rows cannot "
                "be mixed: collect one after the other, with a --soc each."
            )
