"""Replays: a dataset in the place of a device, as `replay:DIR`.

For trying what follows a collection (its order and budgets) without a device. Nothing
is written to the dataset's folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, TypeVar

import msgspec

from codl.errors import CodlError, InvalidFileError, MismatchError, UnsupportedError
from codl.ir import to_text
from codl.ir.records import soc as socs
from codl.ir.records.results import Conditions
from codl.ir.records.soc import Soc
from codl.ir.types import Processor
from codl.measure.dataset import CsvTable, Dataset, OpRow, Row
from codl.measure.tasks import (
    BatchResult,
    MeasureBatch,
    Measurement,
    OpTask,
    SharingTask,
    Task,
    failed_row,
    processors_of,
)
from codl.measure.timing import AnchorTime
from codl.targets.base import Target
from codl_published import INSTEAD, SCHEME

SOURCE = "replayed"
#: A batch is compiled, built and measured: three steps, each as long as its rounds are to last.
STEPS = 3
RowT = TypeVar("RowT", bound=Row)


class Run(msgspec.Struct, frozen=True):
    """The fields of a run in a manifest that a replay needs."""

    created: datetime | None = None
    ended: datetime | None = None
    conditions: Conditions = Conditions()
    calibration: dict[str, Annotated[float, msgspec.Meta(gt=0)]] = {}
    anchors_ms: dict[Processor, dict[str, Annotated[float, msgspec.Meta(gt=0)]]] = {}


class _Manifest(msgspec.Struct, frozen=True):
    source: str
    soc: dict[str, Any]
    runs: dict[str, Run] = {}


@dataclass(frozen=True)
class Recording:
    """A dataset that was read as a whole; `rows` are by table and key.

    `anchors` has the usual latency of each anchor in the first run.
    """

    dataset: Dataset
    soc: Soc
    source: str
    #: As they are in the manifest, and the checked fields.
    manifest_runs: Mapping[str, Any]
    runs: Mapping[str, Run]
    rows: Mapping[str, Mapping[tuple[Any, ...], Row]]
    anchors: tuple[AnchorTime, ...]

    @classmethod
    def read(cls, folder: Path) -> Recording:
        """The dataset of a folder, or of one that comes with codl.

        Raises `InvalidFileError` where there is none, or where a file is empty, cut, or not what
        this codl writes.
        """
        dataset = Dataset.at(folder)
        if not dataset.manifest_path.is_file():
            fix = "Name a folder that `codl collect` or `codl dataset import` wrote."
            raise InvalidFileError(folder, "there is no dataset here (no manifest.json).", fix=fix)
        content, path = dataset.manifest(), dataset.manifest_path
        try:
            manifest = msgspec.convert(content, _Manifest)
        except msgspec.ValidationError as error:
            raise InvalidFileError(path, f"not a dataset's manifest: {error}.") from error
        rows: dict[str, dict[tuple[Any, ...], Row]] = {}
        for name, table in dataset.tables().items():
            by_key = rows.setdefault(name, {})
            for row in _whole(table):  # of several of a key the first that is ok
                before = by_key.setdefault(row.key, row)
                if (before.status, row.status) == ("failed", "ok"):
                    by_key[row.key] = row
        if not any(rows.values()):
            raise InvalidFileError(dataset.folder, "the dataset has no rows to replay.")
        return cls(
            dataset=dataset,
            soc=socs.from_dict(manifest.soc, path),
            source=manifest.source,
            manifest_runs=content.get("runs", {}),
            runs=manifest.runs,
            rows=rows,
            anchors=_usual(manifest.runs),
        )

    def row_of(self, task: Task) -> Row:
        """The row of a task, at the level of the first run, as predictors are trained on it.

        Raises `UnsupportedError` where there is none, or one of another part of the op.
        """
        folder = str(self.dataset.folder)
        tables = [self.rows[name] for name in task.tables if name in self.rows]
        row = next((rows[task.key] for rows in tables if task.key in rows), None)
        if row is None:
            raise UnsupportedError(f"The dataset {folder!r} has no row of this.")
        if isinstance(task, OpTask) and isinstance(row, OpRow) and row.part != to_text(task.part):
            raise UnsupportedError(
                f"In the dataset {folder!r} this share is of another part: {row.part}."
            )
        if row.run not in self.runs or not isinstance(task, OpTask | SharingTask):
            return row
        # How much slower its processors were than in the first run.
        factors = self.runs[row.run].calibration
        factor = mean(factors.get(processor, 1.0) for processor in processors_of(task))
        names = [field.name for field in fields(row) if field.name.endswith("_ms")]
        return replace(row, **{name: getattr(row, name) / factor for name in names})

    @property
    def conditions(self) -> Conditions:
        """Those at the beginning of the first run."""
        return next((run.conditions for run in self.runs.values()), Conditions())

    @property
    def seconds_per_row(self) -> float:
        """How long a measurement took, over all runs that ended; 0 where none says."""
        seconds = {name: _seconds(run) for name, run in self.runs.items()}
        count = sum(
            seconds.get(row.run, 0.0) > 0 for table in self.rows.values() for row in table.values()
        )
        return sum(seconds.values()) / count if count else 0.0


def _whole(table: CsvTable[RowT]) -> list[RowT]:
    """The rows of a file; raises `InvalidFileError` where its last line is cut."""
    path = table.path
    if path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        raise InvalidFileError(
            path,
            "the last line is cut.",
            fix="`codl collect --resume` of its device drops such a line, and measures it again.",
        )
    return table.read()


def _usual(runs: Mapping[str, Run]) -> tuple[AnchorTime, ...]:
    """The anchors of the first run that has some, at their usual levels.

    So replays are as fast as each other and as the first run, whatever part of it they repeat.
    """
    levels = next((run.anchors_ms for run in runs.values() if run.anchors_ms), {})
    return tuple(AnchorTime(op, p, ms) for p, by_op in levels.items() for op, ms in by_op.items())


def _seconds(run: Run) -> float:
    """How long a run took; 0 where that is not known."""
    if run.created is None or run.ended is None:
        return 0.0
    naive = {run.created.tzinfo is None, run.ended.tzinfo is None}
    return 0.0 if len(naive) > 1 else max(0.0, (run.ended - run.created).total_seconds())


class ReplayTarget(Target):
    """Answers `measure` with the rows of a dataset, marked `source: replayed`.

    A task that it has no row of is a failed row that says so; `codl collect` asks for no such one.
    Nothing is read before it is asked something; then `InvalidFileError` is raised where there is
    no whole dataset, and `MismatchError` where it is not one of `soc`.
    """

    def __init__(self, serial: str, soc: Soc | None = None) -> None:
        folder = serial.removeprefix(SCHEME)
        if not folder or "\0" in folder:
            raise CodlError(f"The serial must be like replay:lat_datasets/host, got {serial!r}.")
        super().__init__(soc)
        self.serial, self._folder = serial, Path(folder)

    def _unsupported(self, what: str) -> CodlError:
        return UnsupportedError(f"{self.serial!r} cannot {what}: {INSTEAD}")

    @cached_property
    def _recording(self) -> Recording:
        recording = Recording.read(self._folder)
        if self._soc is not None and not self._soc.is_as_in(recording.soc.to_dict()):
            raise MismatchError(
                f"{recording.dataset.manifest_path} describes another SoC "
                f"({recording.soc.name!r}) than --soc {self._soc.name} names: its rows are not of "
                "that one. Name the SoC that the dataset is of."
            )
        return recording

    @property
    def soc(self) -> Soc:  # type: ignore[override]
        """The facts of the SoC, which is at no place."""
        return self._facts.facts

    @property
    def replays(self) -> Mapping[str, Any]:
        """The dataset, what its latencies are, and the runs that they are of."""
        recording = self._recording
        return {
            "folder": str(recording.dataset.folder),
            "source": recording.source,
            "runs": dict(recording.manifest_runs),
        }

    def can_measure(self, task: Task) -> bool:
        return isinstance(self._row(task), Row)

    def conditions(self) -> Conditions:
        """The conditions at the beginning, without temperature and throttling.

        A collection would wait for those to end; each row has its temperature.
        """
        return replace(self._recording.conditions, temperature_c=None, throttled=())

    def measure(self, batch: MeasureBatch) -> BatchResult:
        """The rows of as many tasks as were measured in the time of a batch."""
        recording, at_most = self._recording, len(batch.tasks)
        seconds = min(batch.left_s, STEPS * batch.rounds.span_s)
        if recording.seconds_per_row > 0:
            at_most = max(1, min(at_most, int(seconds / recording.seconds_per_row)))
        rows = {task: self._row(task) for task in batch.tasks[:at_most]}
        return BatchResult(
            tuple(_measurement(task, row, batch.run) for task, row in rows.items()),
            recording.anchors,
            conditions=self.conditions(),
            skipped_s=recording.seconds_per_row * sum(isinstance(r, Row) for r in rows.values()),
        )

    def _row(self, task: Task) -> Row | UnsupportedError:
        """The recorded row, or why there is none."""
        try:
            return self._recording.row_of(task)
        except UnsupportedError as error:
            return error

    def close(self) -> None:
        """Nothing is open."""


def _measurement(task: Task, row: Row | UnsupportedError, run: str) -> Measurement:
    replayed = row if isinstance(row, Row) else failed_row(task, run, str(row))
    return Measurement(task, replace(replayed, run=run, source=SOURCE))
