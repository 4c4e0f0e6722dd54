"""Collects a dataset: measures tasks in batches, writes rows, and can go on where it stopped.

Several devices share the tasks: whichever is done asks for more, so that a slower one gets less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from codl import files
from codl.errors import MismatchError
from codl.kernels.tuning import Tuning
from codl.measure.budget import Budget, Progress, nobody
from codl.measure.collection import MOST, Chooser, Collection, Stopped, Watch
from codl.measure.dataset import Dataset
from codl.measure.dataset_writer import RowWriter, RunLog
from codl.measure.devices_at_work import (
    SYSTEM_CLOCK,
    Clock,
    Cooling,
    DeviceNews,
    Measures,
    Tells,
    cool_down,
    devices_of,
    untold,
)
from codl.measure.tasks import Task
from codl.measure.timing import Rounds


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
    devices: tuple[DeviceNews, ...] = ()


def collect(
    targets: Measures | Sequence[Measures],
    dataset: Dataset,
    tasks: Sequence[Task],
    tuning: Tuning = Tuning(),
    *,
    resume: bool = False,
    budget_s: float | None = None,
    samples: int | None = None,
    rounds: Rounds | None = None,
    chooser: Chooser | None = None,
    progress: Progress = nobody,
    watch: Watch | None = None,
    cooling: Cooling = cool_down,
    tells: Tells = untold,
    clock: Clock = SYSTEM_CLOCK,
) -> Collected:
    """Measure `tasks` on a target until all are done, `budget_s` seconds or `samples` tasks are
    used up, or the chooser has enough; kernels are measured as they were tuned.

    Several targets are devices of one SoC, each with a run of its own in the dataset. One that goes
    away is tried again later while the others go on, and one that cannot be used is left out, with
    a warning. `watch` is told how it stands with each.

    A task that takes a target's process down twice is a failed row. The rows of a batch are on disk
    before the next is begun, so a kill loses at most the one under way. Before each batch what
    `cooling` gives for a target, once it is reached, waits while it is hot; one whose battery runs
    out is left alone. The manifest has the environment that `tells` gives for a target. Raises
    `CodlError` where there is a dataset and `resume` is not set, `MismatchError` where it is that
    of another SoC or was measured in another way, or where no target is the SoC, and `DeviceError`
    where none can be reached. A replay is the only target, and its recorded seconds are counted as
    if they had passed.
    """
    given = list(targets) if isinstance(targets, Sequence) else [targets]
    rounds, budget = rounds or Rounds(), Budget(budget_s, clock.now)
    _check_same(given)
    with files.locked(dataset.folder):
        log = RunLog(dataset, given[0], rounds, tuning, resume=resume)
        writer = RowWriter(dataset)
        missing = [task for task in tasks if writer.lacks(task)]
        skipped, wanted = len(tasks) - len(missing), missing[:samples]
        work = Collection(
            devices=devices_of(given, MOST, cooling, tells),
            writer=writer,
            log=log,
            rounds=rounds,
            tuning=tuning,
            missing=wanted,
            clock=clock,
            budget=budget,
            all_done="done" if len(wanted) == len(missing) else "samples",
            chooser=chooser,
            progress=progress,
            watch=watch,
        )
        stopped = work.run()
        return Collected(
            rows=writer.rows,
            failed=writer.failed,
            skipped=skipped,
            left=sum(writer.lacks(task) for task in tasks),
            again=len(work.again),
            seconds=budget.spent_s,
            stopped=stopped,
            files=tuple(str(table.path) for table in dataset.tables().values()),
            devices=tuple(device.news(clock.now()) for device in work.devices),
            paused_s=sum(device.cooling.paused_s for device in work.devices if device.cooling),
            reason=work.reason,
        )


def _check_same(targets: Sequence[Measures]) -> None:
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
