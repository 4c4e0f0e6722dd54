"""Collects a dataset: measures tasks in batches, writes rows, and can go on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from codl.errors import CodlError, DeviceError, MismatchError
from codl.ir.results import Conditions
from codl.kernels.tuning import Tuning
from codl.measure.batch import BatchResult, MeasureBatch, Measurement, processors_of
from codl.measure.cool_down import CoolDown, low_battery
from codl.measure.dataset import Dataset, Row
from codl.measure.drift import Anchors, calibration
from codl.measure.progress import Progress, seconds_left
from codl.measure.runner import failed_row
from codl.measure.tasks import Task
from codl.measure.timing import Rounds
from codl.provenance import now, provenance
from codl.runtime.placement import LocalSoc

#: Why a collection ended: nothing is left, a limit was reached, more would change nothing, or the
#: battery runs out.
Stopped = Literal["done", "budget", "samples", "settled", "battery"]
#: A batch in less time than this share of its own would tell little.
SHORTEST = 0.3
#: A task that was measured while the machine was disturbed is measured again so often.
RETRIES = 1
#: So many tasks at most are sent to a target to measure some of them, which the rest follow.
MOST = 512


class Chooser(Protocol):
    """Says what to measure next; asked before every batch, when all rows so far are on disk."""

    def choose(self, missing: Sequence[Task], seconds: float) -> Sequence[Task]:
        """Some of the tasks, the first first; none where more would change nothing.

        `seconds` have passed since the collection began.
        """
        ...


@dataclass(frozen=True)
class Collected:
    """`rows` written now, `failed` among them, `skipped` because a run before had them.

    `again` tasks were measured twice, because the machine was disturbed or throttled the first
    time. `paused_s` of the `seconds` went to cooling down. `reason` is a sentence about what
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


class Measures(Protocol):
    """What of a target collecting needs."""

    @property
    def serial(self) -> str: ...
    @property
    def soc(self) -> LocalSoc: ...

    def clocks_mhz(self) -> dict[str, float]:
        """The current clock of each core in use, where the system tells."""
        ...

    def conditions(self) -> Conditions:
        """Temperature, clocks and battery, as they are now."""
        ...

    def measure(self, batch: MeasureBatch) -> BatchResult: ...


def collect(
    target: Measures,
    dataset: Dataset,
    tasks: Sequence[Task],
    tuning: Tuning = Tuning(),
    *,
    resume: bool = False,
    budget_s: float | None = None,
    samples: int | None = None,
    rounds: Rounds | None = None,
    chooser: Chooser | None = None,
    progress: Progress | None = None,
    cooling: CoolDown | None = None,
) -> Collected:
    """Measure `tasks` on a target until all are done, `budget_s` seconds or `samples` tasks are
    used up, or the chooser has enough; kernels are measured as they were tuned.

    A task that takes the target's process down is a failed row. The rows of a batch are on disk
    before the next is begun, so a kill loses at most the one under way. Before each batch `cooling`
    waits for a machine that is hot; one whose battery runs out is left alone. Raises `CodlError`
    where there is a dataset and `resume` is not set, `MismatchError` where it is that of another
    SoC.
    """
    rounds, budget = rounds or Rounds(), _Budget(budget_s)
    cooling, now = cooling or CoolDown(target.conditions), target.conditions()
    run = _begin(target, dataset, rounds, tuning, now, resume=resume)
    state = _State(dataset, run, rounds, tuning, cooling)
    lacking = [task for task in tasks if state.lacks(task)]
    stopped, reason = _measure(target, state, lacking[:samples], now, budget, chooser, progress)
    if stopped == "done" and samples is not None and samples < len(lacking):
        stopped = "samples"
    state.end()
    _finish(dataset, run)
    return Collected(
        rows=state.rows,
        failed=state.failed,
        skipped=len(tasks) - len(lacking),
        left=sum(state.lacks(task) for task in tasks),
        again=len(state.again),
        seconds=budget.passed_s,
        stopped=stopped,
        files=tuple(str(table.path) for table in dataset.tables().values()),
        paused_s=cooling.paused_s,
        reason=reason,
    )


class _Budget:
    """The seconds that a collection may take, from now on; None for as many as it likes."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self._start = seconds, time.monotonic()

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self._start

    @property
    def left_s(self) -> float:
        return float("inf") if self.seconds is None else self.seconds - self.passed_s


def _measure(
    target: Measures,
    state: _State,
    missing: Sequence[Task],
    now: Conditions,
    budget: _Budget,
    chooser: Chooser | None,
    progress: Progress | None,
) -> tuple[Stopped, str]:
    """Measure batch after batch; why that ended, with a sentence where nobody wanted it to."""
    total, shortest_s = len(missing), SHORTEST * state.rounds.span_s
    while missing:
        if reason := low_battery(now):
            return "battery", reason
        state.cooling.wait(now, budget.left_s)
        wanted: Sequence[Task] = missing
        if chooser is not None:
            wanted = sorted(chooser.choose(missing, budget.passed_s), key=state.tries)
        if not wanted:
            return "settled", ""
        left = budget.left_s
        if left < shortest_s or left <= 0:
            return "budget", ""
        result = target.measure(state.next_batch(wanted, left))
        state.record(result)
        now = result.conditions
        missing = sorted((t for t in missing if state.lacks(t)), key=state.tries)
        if progress is not None:
            done = total - len(missing)
            progress(done, total, seconds_left(done, total, budget.passed_s, budget.seconds))
    return "done", ""


@dataclass
class _State:
    """What is on disk and what was tried."""

    dataset: Dataset
    run: str
    rounds: Rounds
    tuning: Tuning
    cooling: CoolDown
    anchors: Anchors = field(default_factory=Anchors)
    rows: int = 0
    failed: int = 0
    batch: int = 0
    #: So many tasks are sent at a time; fewer after one of them took the target's process down.
    most: int = MOST
    again: dict[Task, int] = field(default_factory=dict)
    #: Rows of tasks that are to be measured again: better than none, where no time is left for it.
    held: dict[Task, Row] = field(default_factory=dict)
    done: dict[str, set[Any]] = field(init=False)

    def __post_init__(self) -> None:
        """Read the keys that are there; tables lose a line that a kill left unfinished."""
        tables = self.dataset.tables()
        for table in tables.values():
            table.repair()
        self.dataset.anchors().repair()
        self.done = {name: {row.key for row in table.read()} for name, table in tables.items()}

    def lacks(self, task: Task) -> bool:
        return any(task.key not in self.done.get(name, ()) for name in task.tables)

    def tries(self, task: Task) -> int:
        return self.again.get(task, 0)

    def next_batch(self, wanted: Sequence[Task], left_s: float) -> MeasureBatch:
        """The first of the tasks, for the target to measure some of them."""
        return MeasureBatch(
            tasks=tuple(wanted[: self.most]),
            run=self.run,
            rounds=self.rounds,
            tuning=self.tuning,
            left_s=left_s,
            usual_ms=self.anchors.usual_ms,
            tolerance=self.anchors.tolerance,
        )

    def record(self, result: BatchResult) -> None:
        """Write what came of a batch.

        Tasks of a disturbed or throttled processor are left for later, but not more than `RETRIES`
        times.
        """
        rows = []
        for one in result.measurements:
            if self._is_disturbed(one) and self.tries(one.task) < RETRIES:
                self.again[one.task] = self.tries(one.task) + 1
                self.held[one.task] = one.row
            else:
                self.held.pop(one.task, None)
                rows.append((one.task, one.row))
        if result.anchors:
            self.batch += 1
            self.anchors.add(result.anchors)
            rows_of_batch = (replace(row, batch=self.batch) for row in result.anchors)
            self.dataset.anchors().append(*rows_of_batch)
        self._write(rows + self._lost(result))
        _calibrate(self.dataset, self.run, self.anchors)

    def _is_disturbed(self, one: Measurement) -> bool:
        throttled = self.cooling.throttled(one.row.throttled)
        is_slow = one.row.status == "ok" and throttled & {*processors_of(one.task)}
        return one.is_disturbed or bool(is_slow)

    def end(self) -> None:
        """Write what was to be measured again and was not."""
        self._write(list(self.held.items()))

    def _lost(self, result: BatchResult) -> list[tuple[Task, Row]]:
        """The failed row of what took the target's process down, once that is a single task.

        Of several suspects half as many are measured next; the others stay to be measured.
        """
        if not result.lost:
            self.most = min(2 * self.most, MOST)
            return []
        if len(result.suspects) == 1:
            (task,) = result.suspects
            return [(task, failed_row(task, self.run, result.lost))]
        if not result.suspects:
            problem = f"Nothing can be measured: {result.lost}"
            raise DeviceError(f"{problem} What was measured is on disk; go on by --resume.")
        self.most = len(result.suspects) // 2
        return []

    def _write(self, measured: Sequence[tuple[Task, Row]]) -> None:
        """Append every row to each of its tables that lacks it."""
        new: dict[str, list[Row]] = {}
        for task, row in measured:
            self.failed += row.status == "failed"
            for name in task.tables:
                keys = self.done.setdefault(name, set())
                if row.key not in keys:
                    new.setdefault(name, []).append(row)
                    keys.add(row.key)
        for name, rows in new.items():
            self.dataset.table(name).append(*rows)
            self.rows += len(rows)


def _calibrate(dataset: Dataset, run: str, anchors: Anchors) -> None:
    """Keep in the manifest how fast this run's machine is, beside the first run's."""
    manifest = dataset.manifest()
    own = manifest["runs"][run]
    own["anchors_ms"] = anchors.to_json()
    own["calibration"] = calibration(manifest["runs"], run)
    dataset.write_manifest(manifest)


def _begin(
    target: Measures,
    dataset: Dataset,
    rounds: Rounds,
    tuning: Tuning,
    now: Conditions,
    *,
    resume: bool,
) -> str:
    """Write or extend the manifest; returns the name of this run."""
    soc = target.soc
    manifest: dict[str, Any] = {"runs": {}}
    if soc.placement.threads != soc.cpu.threads:
        raise MismatchError(
            f"The SoC {soc.name!r} is one of {soc.cpu.threads} threads of the CPU, and is placed "
            f"here with {soc.placement.threads}: their latencies cannot be mixed."
        )
    if dataset.manifest_path.exists():
        if not resume:
            raise CodlError(
                f"{dataset.folder} holds a dataset. Go on with it by --resume, or write another "
                "by -o DIR."
            )
        manifest = dataset.manifest()
        if not soc.is_as_in(manifest.get("soc")):
            raise MismatchError(
                f"{dataset.manifest_path} describes another SoC than socs/{soc.name}.yaml does "
                "now; rows of both cannot be mixed. Write another dataset by -o DIR."
            )
    run = f"run{len(manifest['runs']) + 1}"
    manifest |= {"source": "measured", "soc": soc.to_dict()}
    manifest["runs"][run] = {
        **provenance(),
        "serial": target.serial,
        "placement": soc.placement.to_dict(),
        "threads": {"cpu": soc.cpu.threads, "gpu": soc.gpu.compute_units},
        "clock_mhz": target.clocks_mhz(),
        "conditions": asdict(now),
        "protocol": asdict(rounds),
        "tuning": tuning.fingerprint,
    }
    dataset.write_manifest(manifest)
    return run


def _finish(dataset: Dataset, run: str) -> None:
    manifest = dataset.manifest()
    manifest["runs"][run]["ended"] = now()
    tables = dataset.tables()
    manifest["files"] = {table.path.name: len(table.read()) for table in tables.values()}
    dataset.write_manifest(manifest)
