"""Collects a dataset: runs tasks, writes each row as it comes, and can go on where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codl.collect.benchmarks import Bench
from codl.collect.protocol import Protocol
from codl.collect.tasks import Task
from codl.dataset import Dataset, Row
from codl.errors import CodlError, MismatchError
from codl.kernels import tuned
from codl.provenance import now, provenance
from codl.soc import Soc

#: Called after every task: rows that are done, rows in all, seconds left as far as can be told.
Progress = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Collected:
    """`rows` written now, `failed` among them, `skipped` because a run before had them."""

    rows: int
    failed: int
    skipped: int
    left: int
    seconds: float
    files: tuple[str, ...]


def collect(
    soc: Soc,
    dataset: Dataset,
    tasks: Sequence[Task],
    *,
    resume: bool = False,
    budget_s: float | None = None,
    samples: int | None = None,
    protocol: Protocol | None = None,
    progress: Progress | None = None,
) -> Collected:
    """Measure `tasks` until all are done, or `budget_s` seconds or `samples` tasks are used up.

    A row is on disk before the next is begun, so a kill loses at most the one under way. Raises
    `CodlError` where there is a dataset and `resume` is not set, `MismatchError` where it is that
    of another SoC.
    """
    soc.check_present()
    protocol = protocol or Protocol()
    run = _begin(soc, dataset, protocol, resume)
    done = {name: {row.key for row in table.read()} for name, table in _tables(dataset).items()}
    missing = [t for t in tasks if any(t.key not in done.get(n, ()) for n in t.tables)]
    chosen = missing[:samples]
    bench, start, written = Bench(soc, run, protocol), time.monotonic(), 0
    failed = 0
    for index, task in enumerate(chosen):
        row = bench.row(task)
        failed += row.status == "failed"
        written += _write(dataset, task, row, done)
        elapsed = time.monotonic() - start
        if progress is not None:
            expected = elapsed / (index + 1) * (len(chosen) - index - 1)
            limit = expected if budget_s is None else max(budget_s - elapsed, 0.0)
            progress(index + 1, len(chosen), min(expected, limit))
        if budget_s is not None and elapsed >= budget_s:
            break
    _finish(dataset, run)
    left = sum(any(t.key not in done.get(n, ()) for n in t.tables) for t in tasks)
    files = tuple(str(table.path) for table in dataset.tables().values())
    skipped, seconds = len(tasks) - len(missing), time.monotonic() - start
    return Collected(written, failed, skipped, left, seconds, files)


def _tables(dataset: Dataset) -> dict[str, Any]:
    """All tables, each cleared of a line that a kill left unfinished."""
    tables = dataset.tables()
    for table in tables.values():
        table.repair()
    return tables


def _write(dataset: Dataset, task: Task, row: Row, done: dict[str, set[Any]]) -> int:
    """Append a row to each of its tables that lacks it."""
    written = 0
    for name in task.tables:
        keys = done.setdefault(name, set())
        if row.key not in keys:
            dataset.table(name).append(row)
            keys.add(row.key)
            written += 1
    return written


def _begin(soc: Soc, dataset: Dataset, protocol: Protocol, resume: bool) -> str:
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
        "protocol": asdict(protocol),
        "tuning": tuned.fingerprint(soc),
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
