"""Collects a dataset: measures tasks in batches, writes rows, and can go on where it stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from codl.errors import CodlError, MismatchError
from codl.ir.soc import Soc
from codl.kernels.tuning import Tuning
from codl.measure import timing as batches
from codl.measure.compile_workers import Ahead, worker_count
from codl.measure.dataset import Dataset, Row
from codl.measure.drift import Anchors, calibration
from codl.measure.progress import Progress, seconds_left
from codl.measure.runner import Bench, Prepared
from codl.measure.tasks import OpTask, SharingTask, Task
from codl.measure.timing import Rounds
from codl.provenance import now, provenance

#: Why a collection ended: nothing is left, a limit was reached, or more would change nothing.
Stopped = Literal["done", "budget", "samples", "settled"]
#: What a batch may take of the memory, and how often a task's tensors and weights lie there.
MEMORY_SHARE, MEMORY_BYTES, COPIES = 0.25, 6 << 30, 3
#: Tasks that take more than one such share of that, and all of them together at most the other:
#: enough small ones must fit beside them to fill a batch's time.
LARGE, ALL_LARGE = 0.02, 0.5
#: A batch in less time than this share of its own would tell little.
SHORTEST = 0.3
#: A task that was measured while the machine was disturbed is measured again so often.
RETRIES = 1


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

    `again` tasks were measured twice, because the machine was disturbed the first time.
    """

    rows: int
    failed: int
    skipped: int
    left: int
    again: int
    seconds: float
    stopped: Stopped
    files: tuple[str, ...]


def collect(
    soc: Soc,
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
) -> Collected:
    """Measure `tasks` until all are done, `budget_s` seconds or `samples` tasks are used up, or the
    chooser has enough; kernels are measured as they were tuned.

    The rows of a batch are on disk before the next is begun, so a kill loses at most the one under
    way. Raises `CodlError` where there is a dataset and `resume` is not set, `MismatchError` where
    it is that of another SoC.
    """
    soc.check_present()
    start, rounds = time.monotonic(), rounds or Rounds()
    run = _begin(soc, dataset, rounds, tuning, resume=resume)
    bench = Bench(soc, run, rounds, tuning)
    with Ahead(soc, worker_count(soc), tuning=tuning) as ahead:
        state = _State(dataset, Anchors(bench, dataset, run), ahead)
        missing = [task for task in tasks if state.lacks(task)]
        skipped, lacking = len(tasks) - len(missing), len(missing)
        missing = missing[:samples]
        total = len(missing)
        stopped: Stopped = "done" if total == lacking else "samples"
        while missing:
            elapsed = time.monotonic() - start
            wanted = missing
            if chooser is not None:
                wanted = sorted(chooser.choose(missing, elapsed), key=state.tries)
            left = float("inf") if budget_s is None else budget_s - (time.monotonic() - start)
            if not wanted or left < SHORTEST * rounds.span_s or left <= 0:
                stopped = "budget" if wanted else "settled"
                break
            state.measure(bench, wanted, left)
            missing = sorted((t for t in missing if state.lacks(t)), key=state.tries)
            if progress is not None:
                done, elapsed = total - len(missing), time.monotonic() - start
                progress(done, total, seconds_left(done, total, elapsed, budget_s))
        state.end()
    _finish(dataset, run)
    return Collected(
        rows=state.rows,
        failed=state.failed,
        skipped=skipped,
        left=sum(state.lacks(task) for task in tasks),
        again=len(state.again),
        seconds=time.monotonic() - start,
        stopped=stopped,
        files=tuple(str(table.path) for table in dataset.tables().values()),
    )


@dataclass
class _State:
    """What is on disk and what was tried."""

    dataset: Dataset
    anchors: Anchors
    ahead: Ahead
    rows: int = 0
    failed: int = 0
    batch: int = 0
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

    def measure(self, bench: Bench, wanted: Sequence[Task], left_s: float) -> None:
        """Measure the first of the tasks as a batch, in a batch's time or what is left.

        Those of a disturbed processor are left for later, but not more than `RETRIES` times.
        """
        # As much time each to compile, to build and to measure them.
        seconds = min(left_s / (3 if self.ahead.is_used else 2), bench.rounds.span_s)
        self.ahead.compile(wanted, seconds)
        prepared, found = _prepare(bench, wanted, seconds, self.ahead.deadly)
        anchors = self.anchors
        anchors.begin()
        timed = [*anchors.timed, *(one.timed for one in prepared)]
        rounds = replace(bench.rounds, span_s=seconds)
        batches.measure(timed, rounds, lambda: _is_disturbed(anchors, prepared))
        self.batch += 1
        for one in prepared:
            if _is_disturbed(anchors, [one]) and self.tries(one.task) < RETRIES:
                self.again[one.task] = self.tries(one.task) + 1
                self.held[one.task] = one.row()
            else:
                self.held.pop(one.task, None)
                found.append((one.task, one.row()))
        anchors.end(self.batch)
        self._write(found)
        _calibrate(self.dataset, anchors)

    def end(self) -> None:
        """Write what was to be measured again and was not."""
        self._write(list(self.held.items()))

    def _write(self, found: Sequence[tuple[Task, Row]]) -> None:
        """Append every row to each of its tables that lacks it."""
        new: dict[str, list[Row]] = {}
        for task, row in found:
            self.failed += row.status == "failed"
            for name in task.tables:
                keys = self.done.setdefault(name, set())
                if row.key not in keys:
                    new.setdefault(name, []).append(row)
                    keys.add(row.key)
        for name, rows in new.items():
            self.dataset.table(name).append(*rows)
            self.rows += len(rows)


def _is_disturbed(anchors: Anchors, prepared: Sequence[Prepared]) -> bool:
    """Whether a processor that some of these ran on is slower than usual."""
    tasks = [one.task for one in prepared]
    used = {task.processor for task in tasks if isinstance(task, OpTask)}
    if any(not isinstance(task, OpTask) for task in tasks):
        used = {"cpu", "gpu"}
    return any(anchors.is_disturbed(processor) for processor in used)


def _prepare(
    bench: Bench, wanted: Sequence[Task], seconds: float, deadly: Mapping[Task, str]
) -> tuple[list[Prepared], list[tuple[Task, Row]]]:
    """Build tasks until there is enough for so many seconds, or for the memory.

    Those that are ready, and the rows of those that failed or are done; `deadly` ones fail.
    """
    prepared: list[Prepared] = []
    done: list[tuple[Task, Row]] = []
    planned = taken = large = 0.0
    limit, begin = _memory_bytes(), time.monotonic()
    for task in wanted:
        is_enough = planned >= seconds or time.monotonic() - begin >= seconds
        if is_enough and (prepared or done):
            break
        size = COPIES * _bytes(task)
        more = size if size > LARGE * limit else 0.0
        if prepared and (taken + size > limit or (more and large + more > ALL_LARGE * limit)):
            continue  # smaller ones may fit; it comes first in a later batch
        taken, large = taken + size, large + more
        one = bench.refused(task, deadly[task]) if task in deadly else bench.prepare(task)
        if isinstance(one, Prepared):
            prepared.append(one)
            planned += one.timed.seconds
        else:
            done.append((task, one))
    return prepared, done


def _bytes(task: Task) -> int:
    if isinstance(task, OpTask):
        return task.part.bytes
    return 2 * task.shape.bytes if isinstance(task, SharingTask) else 0


def _memory_bytes() -> float:
    """What a batch may take: devices and hosts with little memory get small batches."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(MEMORY_SHARE * total, MEMORY_BYTES)


def _calibrate(dataset: Dataset, anchors: Anchors) -> None:
    """Keep in the manifest how fast this run's machine is, beside the first run's."""
    manifest = dataset.manifest()
    own = manifest["runs"][anchors.run]
    own["anchors_ms"] = anchors.to_json()
    own["calibration"] = calibration(manifest["runs"], anchors.run)
    dataset.write_manifest(manifest)


def _begin(soc: Soc, dataset: Dataset, rounds: Rounds, tuning: Tuning, *, resume: bool) -> str:
    """Write or extend the manifest; returns the name of this run."""
    manifest: dict[str, Any] = {"runs": {}}
    if dataset.manifest_path.exists():
        if not resume:
            raise CodlError(
                f"{dataset.folder} holds a dataset. Go on with it by --resume, or write another "
                "by -o DIR."
            )
        manifest = dataset.manifest()
        if manifest.get("soc") != soc.to_dict():
            raise MismatchError(
                f"{dataset.manifest_path} describes another SoC than socs/{soc.name}.yaml does "
                "now; rows of both cannot be mixed. Write another dataset by -o DIR."
            )
    run = f"run{len(manifest['runs']) + 1}"
    manifest |= {"source": "measured", "soc": soc.to_dict()}
    manifest["runs"][run] = {
        **provenance(),
        "threads": {"cpu": soc.cpu.threads, "gpu": soc.gpu.compute_units},
        "clock_mhz": _clock_mhz(soc),
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


def _clock_mhz(soc: Soc) -> dict[str, float]:
    """Current clock of each core in use, where the system tells."""
    folder = Path("/sys/devices/system/cpu")
    paths = {c: folder / f"cpu{c}/cpufreq/scaling_cur_freq" for c in soc.cpu.cores + soc.gpu.cores}
    return {str(c): int(p.read_text()) / 1e3 for c, p in paths.items() if p.exists()}
