"""Collector of datasets: measures tasks in batches on a device and writes their rows, resumable."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

from codl import files
from codl.errors import CodlError, CodlWarning, DeviceError, MismatchError
from codl.files import now as time_now
from codl.files import provenance
from codl.ir import yaml_file
from codl.ir.environment import Environment, check_alike, differences
from codl.ir.records import statistic
from codl.ir.records.results import Conditions
from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.machine.placement import require_local
from codl.measure.budget import GRACE_S, Budget, Progress, no_progress
from codl.measure.cool_down import CoolDown, low_battery
from codl.measure.dataset import Dataset, Row
from codl.measure.drift import Anchors, by_processor, calibration
from codl.measure.tasks import (
    NEVER_AGAIN,
    BatchResult,
    MeasureBatch,
    Task,
    crash_row,
    processors_of,
)
from codl.measure.timing import Rounds

#: Reason of a collection's end: no task left, a limit (time, samples) reached, or a low battery.
Stopped = Literal["done", "budget", "samples", "battery"]
#: Least remaining time for a batch, as a share of a batch's time.
SHORTEST = 0.3
#: Most repeats of a disturbed task.
RETRIES = 1
#: Crashed processes after which a task is a failed row; a single crash may be a loose cable.
DEATHS = 2
#: Most tasks sent at a time; the rest follows in later batches.
MOST = 512
#: Seconds until a lost device is tried again: first (then doubled each time) and longest, and the
#: seconds without the device after which a collection ends.
FIRST_PAUSE_S, LONGEST_PAUSE_S, PATIENCE_S = 1.0, 60.0, 300.0
GO_ON = "What was measured is on disk; go on by --resume."
#: Most tries of a failing task; a task that crashes processes is not tried again.
TRIES = 3
#: Facts of the environment that are equal in all runs of a dataset.
MIXED = ("device", "driver", "libraries", "protocol")


class MeasuringTarget(Protocol):
    """The part of a target that a collection uses."""

    @property
    def serial(self) -> str: ...
    @property
    def soc(self) -> Soc: ...
    @property
    def replays(self) -> Mapping[str, Any] | None:
        """The replayed dataset's identity; None for a device that measures."""
        ...

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """A context that ends requests of a hanging device after `seconds`."""
        ...

    def conditions(self) -> Conditions: ...
    def measure(self, batch: MeasureBatch) -> BatchResult: ...


@dataclass(frozen=True)
class Collected:
    """The result of a collection.

    `rows` counts written rows, `failed` the failed ones, `skipped` tasks with earlier rows. `again`
    counts tasks repeated after a disturbance or throttling, `left` tasks without a row, `lost` ends
    of the measuring process. `paused_s` is the time for cooling down. `reason` is a sentence about
    a device that ended the collection, or "".
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
    lost: int = 0


@dataclass(kw_only=True)
class Collection:
    """Measures tasks on a device, in a new run of the dataset.

    The collection ends when all `tasks` are measured, or after `budget_s` seconds or `samples`
    tasks, which are measured in order. Kernels use the choices of `tuning`. The clock of
    `cooling` is the collection's. `environment` is recorded with the run.

    The rows of a batch are on disk before the next begins. A task that crashes two processes is a
    failed row. A device that is lost after it has measured is tried again for `PATIENCE_S` seconds.
    A replay's recorded seconds count towards the budget.
    """

    target: MeasuringTarget = field(kw_only=False)
    dataset: Dataset = field(kw_only=False)
    tasks: Sequence[Task] = field(kw_only=False)
    tuning: Tuning = field(default_factory=Tuning, kw_only=False)
    resume: bool = False
    budget_s: float | None = None
    samples: int | None = None
    rounds: Rounds = field(default_factory=lambda: Rounds())
    progress: Progress = no_progress
    cooling: CoolDown | None = None
    environment: Environment | None = None

    def __post_init__(self) -> None:
        self._cooling = self.cooling or CoolDown(self.target.conditions)
        self._anchors = Anchors()
        #: Disturbances of each task, and rows of disturbed tasks, written if they are not repeated.
        self._again: dict[Task, int] = {}
        self._held: dict[Task, Row] = {}
        #: Crashed processes of each task, and of all.
        self._deaths: dict[Task, int] = {}
        self._lost = 0
        #: Most tasks of the next batch.
        self._most = MOST
        self._has_measured = False
        #: Name of the run, once it began.
        self._run = ""
        #: Time of the device's loss until it measures again, and seconds until the next try.
        self._away_since: float | None = None
        self._pause_s = FIRST_PAUSE_S
        self._reason = ""

    def run(self) -> Collected:
        """Measure until there is a reason to stop.

        Raises `CodlError` for an existing dataset without `resume`, `MismatchError` for a dataset
        of another SoC or protocol, and `DeviceError` if the device cannot be reached.
        """
        self._budget = Budget(self.budget_s, self._cooling.clock)
        with files.locked(self.dataset.folder):
            self._origin = _origin(self.target, self.rounds)
            self._source = self._origin.get("source", "measured")
            open_manifest(self.dataset, self.target.soc, self._source, resume=self.resume)
            self._writer = RowWriter(self.dataset)
            missing = [task for task in self.tasks if self._writer.lacks(task)]
            self._missing = missing[: self.samples]
            self._total = len(self._missing)
            try:
                stopped = self._measure_all()
                if stopped == "done" and self._total < len(missing):
                    stopped = "samples"
            finally:  # after any end, including Ctrl-C
                self._writer.write(list(self._held.items()))
                self._end_run()
            return Collected(
                stopped=stopped,
                rows=self._writer.rows,
                failed=self._writer.failed,
                skipped=len(self.tasks) - len(missing),
                left=sum(self._writer.lacks(task) for task in self.tasks),
                again=len(self._again),
                seconds=self._budget.spent_s,
                files=tuple(str(table.path) for table in self.dataset.tables().values()),
                paused_s=self._cooling.paused_s,
                reason=self._reason,
                lost=self._lost,
            )

    def _measure_all(self) -> Stopped:
        """Measure batch after batch; returns the reason to stop."""
        now = self._connected()
        while self._missing:
            self._reason = low_battery(now)
            if self._reason:
                return "battery"
            if self._has_time():
                self._cooling.wait(now, self._budget.left_s)
            if not self._has_time():
                return "budget"
            batch = MeasureBatch(
                tasks=tuple(self._missing[: self._most]),
                run=self._run,
                rounds=self.rounds,
                tuning=self.tuning,
                left_s=self._budget.left_s,
                reference_ms=self._anchors.reference_ms,
                tolerance=self._anchors.tolerance,
            )
            with self.target.within(batch.left_s + GRACE_S):
                result = self.target.measure(batch)
            self._record(result)
            is_gone = result.lost and not result.suspects and not result.measurements
            now = self._reconnected(DeviceError(result.lost)) if is_gone else result.conditions
        return "done"

    def _connected(self) -> Conditions:
        """Connect in the remaining time, and begin a run at the first connection."""
        with self.target.within(self._budget.left_s + GRACE_S):
            now = self.target.conditions()
        if not self._run:
            self._begin_run(now)
        return now

    def _begin_run(self, now: Conditions) -> None:
        """Add a run to the manifest; raises `MismatchError` for another environment than before."""
        soc, environment = self.target.soc, None
        manifest = open_manifest(self.dataset, soc, self._source, resume=True)
        if self.environment is not None:
            environment = replace(self.environment, protocol=self._origin.get("protocol", {}))
            _check_alike(self.dataset, manifest["runs"], environment)
        run = f"run{len(manifest['runs']) + 1}"
        manifest["soc"] = soc.to_dict()
        manifest["runs"][run] = {
            **provenance(),
            "serial": self.target.serial,
            **self._origin,
            "threads": {"cpu": soc.cpu.threads, "gpu": soc.gpu.compute_units},
            "conditions": asdict(now),
            "tuning": self.tuning.fingerprint,
            "environment": None if environment is None else asdict(environment),
        }
        self.dataset.write_manifest(manifest)
        self._run = run

    def _calibrate_run(self) -> None:
        """Write the run's anchor levels, and its calibration relative to the first run."""
        manifest = self.dataset.manifest()
        own = manifest["runs"][self._run]
        own["anchors_ms"] = by_processor(self._anchors.usual_ms)
        own["reference_ms"] = by_processor(self._anchors.reference_ms)
        own["calibration"] = calibration(manifest["runs"], self._run)
        self.dataset.write_manifest(manifest)

    def _end_run(self) -> None:
        if not self._run:
            return
        manifest = self.dataset.manifest()
        manifest["runs"][self._run]["ended"] = time_now()
        tables = self.dataset.tables()
        manifest["files"] = {table.path.name: len(table.read()) for table in tables.values()}
        self.dataset.write_manifest(manifest)

    def _reconnected(self, problem: DeviceError) -> Conditions:
        """Connect again after pauses that double, until the budget is over.

        Raises `DeviceError` for a device that never measured, or is away for `PATIENCE_S`.
        """
        if not self._has_measured:
            raise DeviceError(f"{_sentence(problem)} {GO_ON}")
        if self._away_since is None:
            text = f"{_sentence(problem)} {self.target.serial!r} is tried again."
            warnings.warn(text, CodlWarning, stacklevel=2)
            self._away_since, self._pause_s = self._cooling.clock(), FIRST_PAUSE_S
        while not self._budget.is_over():
            waited_s = self._cooling.clock() - self._away_since
            if waited_s >= PATIENCE_S:
                raise DeviceError(
                    f"No device has answered for {waited_s:.0f} s: {_sentence(problem)} {GO_ON}"
                )
            self._cooling.sleep(min(self._pause_s, self._budget.left_s))
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            try:
                return self._connected()
            except DeviceError as error:
                problem = error
        return Conditions()

    def _has_time(self) -> bool:
        return self._budget.left_s > 0 and self._budget.left_s >= SHORTEST * self.rounds.span_s

    def _record(self, result: BatchResult) -> None:
        """Write a batch's rows; disturbed or throttled tasks are repeated up to `RETRIES` times."""
        rows = []
        self._budget.skip(result.skipped_s)
        for measured in result.measurements:
            task, row = measured.task, measured.row
            throttled = self._cooling.throttled(row.throttled) & {*processors_of(task)}
            is_disturbed = measured.is_disturbed or (row.status == "ok" and bool(throttled))
            if is_disturbed and self._tries(task) < RETRIES:
                self._again[task] = self._tries(task) + 1
                self._held[task] = row
            else:
                self._held.pop(task, None)
                rows.append((task, row))
        if result.measurements:
            self._has_measured, self._away_since = True, None
        self._anchors.add(result.anchors)
        self._writer.write(rows + self._crashed(result))
        self._calibrate_run()
        self._missing = sorted(filter(self._writer.lacks, self._missing), key=self._tries)
        done = self._total - len(self._missing)
        self.progress(done, self._total, self._budget.to_go_s(done, self._total))

    def _crashed(self, result: BatchResult) -> list[tuple[Task, Row]]:
        """The failed row of a task that crashes processes, once it is the only suspect.

        With several suspects, the next batch has half as many tasks.
        """
        if not result.lost:
            self._most = min(2 * self._most, MOST)
            return []
        self._lost += 1
        if len(result.suspects) > 1:
            self._most = len(result.suspects) // 2
        if len(result.suspects) != 1:
            return []
        (task,) = result.suspects
        self._deaths[task] = DEATHS if result.has_hung else self._deaths.get(task, 0) + 1
        if self._deaths[task] < DEATHS:
            return []
        return [(task, crash_row(task, self._run, result.lost))]

    def _tries(self, task: Task) -> int:
        return self._again.get(task, 0)


def _sentence(problem: Exception) -> str:
    text = str(problem)
    return text if text.endswith((".", "?", "!")) else f"{text}."


@dataclass
class RowWriter:
    """Appends missing rows to tables; counts written `rows` and `failed` rows."""

    dataset: Dataset
    rows: int = 0
    failed: int = 0
    _done: dict[str, set[Any]] = field(init=False)

    def __post_init__(self) -> None:
        """Repair the tables and read the keys of finished rows."""
        tables = self.dataset.tables()
        for table in tables.values():
            table.repair()
        self._done = {name: _done(table.read()) for name, table in tables.items()}

    def lacks(self, task: Task) -> bool:
        return any(task.key not in self._done.get(name, ()) for name in task.tables)

    def write(self, measured: Sequence[tuple[Task, Row]]) -> None:
        """Append each row to its tables, unless present."""
        new: dict[str, list[Row]] = {}
        for task, row in measured:
            self.failed += row.status == "failed"
            for name in task.tables:
                keys = self._done.setdefault(name, set())
                if row.key not in keys:
                    new.setdefault(name, []).append(row)
                    keys.add(row.key)
        for name, rows in new.items():
            self.dataset.table(name).append(*rows)
            self.rows += len(rows)


def _done(rows: Sequence[Row]) -> set[Any]:
    """The keys of rows that later runs do not repeat."""
    failures = Counter(row.key for row in rows if row.status == "failed")
    return {
        row.key
        for row in rows
        if row.status == "ok"
        or row.source == "replayed"
        or row.reason.endswith(NEVER_AGAIN)
        or failures[row.key] >= TRIES
    }


def _origin(target: MeasuringTarget, rounds: Rounds) -> dict[str, Any]:
    """Manifest entries for the source of a run's latencies: replay, or placement and protocol.

    Raises `MismatchError` for a placement with another number of threads than the SoC.
    """
    if target.replays is not None:
        return {"source": "replayed", "replays": dict(target.replays)}
    soc = require_local(target.soc)
    if soc.placement.threads != soc.cpu.threads:
        raise MismatchError(
            f"The SoC {soc.name!r} is one of {soc.cpu.threads} threads of the CPU, and is placed "
            f"here with {soc.placement.threads}: their latencies cannot be mixed."
        )
    protocol = {**asdict(rounds), "statistic": statistic.NAME}
    return {"placement": soc.placement.to_dict(), "protocol": protocol}


def _check_alike(dataset: Dataset, runs: Mapping[str, Any], environment: Environment) -> None:
    """Raise `MismatchError` if the environment (not clocks) differs from the last known run's."""
    known = [(name, run["environment"]) for name, run in runs.items() if run.get("environment")]
    if known:
        run, content = known[-1]
        before = yaml_file.convert(content, Environment, dataset.manifest_path)
        differing = differences(before, environment, MIXED)
        fix = "Write another dataset by --datasets DIR."
        check_alike(differing, f"The rows of {run} in {dataset.folder}", "new ones", fix=fix)


def check_is_new(dataset: Dataset) -> None:
    """Raise `CodlError` for an existing dataset, which a new collection must not change."""
    if dataset.manifest_path.exists():
        raise CodlError(
            f"{dataset.folder} holds a dataset. Go on with it by --resume, or write another "
            "by --datasets DIR."
        )


def open_manifest(dataset: Dataset, soc: Soc, source: str, *, resume: bool) -> dict[str, Any]:
    """The existing or a new manifest, for a run with latencies from `source`.

    Raises `CodlError` for an existing dataset without `resume`, and `MismatchError` for a dataset
    of another SoC or source.
    """
    if not resume:
        check_is_new(dataset)
    if not dataset.manifest_path.exists():
        return {"runs": {}, "source": source, "soc": soc.to_dict()}
    manifest = dataset.manifest()
    if not soc.is_as_in(manifest.get("soc")):
        raise MismatchError(
            f"{dataset.manifest_path} describes another SoC than socs/{soc.name}.yaml does "
            "now; rows of both cannot be mixed. Write another dataset by --datasets DIR."
        )
    if manifest.get("source") != source:
        raise MismatchError(
            f"The rows in {dataset.folder} are {manifest.get('source')}, new ones are {source}, "
            "and they cannot be mixed. Write another dataset by --datasets DIR."
        )
    return manifest
