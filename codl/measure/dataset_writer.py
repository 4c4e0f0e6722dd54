"""Writes what a collection measures to a dataset: each row once, and runs in the manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from codl import yaml_file
from codl.errors import CodlError, MismatchError
from codl.ir.environment import Environment, check_alike, differences
from codl.kernels.tuning import Tuning
from codl.measure.dataset import AnchorRow, Dataset, Row
from codl.measure.devices_at_work import ConnectedDevice, MeasuringTarget
from codl.measure.drift import Anchors, by_processor, calibration
from codl.measure.tasks import NEVER_AGAIN, Task
from codl.measure.timing import Rounds
from codl.provenance import now as time_now
from codl.provenance import provenance
from codl.records import statistic
from codl.records.soc import Soc
from codl.runtime.placement import require_local

#: How often what other runs failed at is tried in all, unless it takes processes down.
TRIES = 3
#: In these all runs of a dataset are the same.
MIXED = ("device", "driver", "libraries", "protocol")


@dataclass
class RowWriter:
    """Appends rows to the tables that lack them; counts `rows` written and `failed` ones."""

    dataset: Dataset
    rows: int = 0
    failed: int = 0
    _done: dict[str, set[Any]] = field(init=False)

    def __post_init__(self) -> None:
        """Read what is done; tables lose a line that a kill left unfinished."""
        tables = self.dataset.tables()
        for table in tables.values():
            table.repair()
        self.dataset.anchors().repair()
        self._done = {name: _done(table.read()) for name, table in tables.items()}

    def lacks(self, task: Task) -> bool:
        return any(task.key not in self._done.get(name, ()) for name in task.tables)

    def write(self, measured: Sequence[tuple[Task, Row]]) -> None:
        """Append every row to each of its tables that lacks it."""
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

    def write_anchors(self, rows: Sequence[AnchorRow], batch: int) -> None:
        self.dataset.anchors().append(*(replace(row, batch=batch) for row in rows))


class RunLog:
    """The runs of a collection in the dataset's manifest, one for each device.

    Raises `CodlError` where there is a dataset and `resume` is not set, `MismatchError` where it is
    that of another SoC or of latencies from elsewhere, or where the SoC is not placed as it is
    described.
    """

    def __init__(
        self,
        dataset: Dataset,
        target: MeasuringTarget,
        rounds: Rounds,
        tuning: Tuning,
        *,
        resume: bool,
    ) -> None:
        self._dataset, self._soc = dataset, target.soc
        self._origin = _origin(target, rounds)
        self._source: str = self._origin.get("source", "measured")
        self._tuning = tuning.fingerprint
        self._own: dict[str, Anchors] = {}
        open_manifest(dataset, self._soc, self._source, resume=resume)

    def begin(self, serial: str, reached: ConnectedDevice) -> str:
        """Note a new run of a device as it is now; returns its name.

        Raises `MismatchError` where runs before it were measured otherwise.
        """
        soc = self._soc
        manifest = open_manifest(self._dataset, soc, self._source, resume=True)
        environment = reached.environment
        if environment is not None:
            environment = replace(environment, protocol=self._origin.get("protocol", {}))
            _check_alike(self._dataset, manifest["runs"], environment)
        run = f"run{len(manifest['runs']) + 1}"
        manifest["soc"] = soc.to_dict()
        manifest["runs"][run] = {
            **provenance(),
            "serial": serial,
            **self._origin,
            "threads": {"cpu": soc.cpu.threads, "gpu": soc.gpu.compute_units},
            "clock_mhz": dict(reached.clock_mhz),
            "conditions": asdict(reached.now),
            "tuning": self._tuning,
            "environment": None if environment is None else asdict(environment),
        }
        self._dataset.write_manifest(manifest)
        self._own[run] = Anchors()
        return run

    def calibrate(self, run: str, anchors: Anchors) -> None:
        """Keep how fast a run's machine is, beside the first run's, which others are held against.

        So each run of this collection is looked at again: the first one's level moves, too.
        """
        self._own[run] = anchors
        manifest = self._dataset.manifest()
        runs = manifest["runs"]
        for name, kept in self._own.items():
            runs[name]["anchors_ms"] = by_processor(kept.usual_ms)
            runs[name]["reference_ms"] = by_processor(kept.reference_ms)
        for name in self._own:
            runs[name]["calibration"] = calibration(runs, name)
        self._dataset.write_manifest(manifest)

    def finish(self) -> None:
        if not self._own:
            return
        manifest = self._dataset.manifest()
        for run in self._own:
            manifest["runs"][run]["ended"] = time_now()
        tables = self._dataset.tables()
        manifest["files"] = {table.path.name: len(table.read()) for table in tables.values()}
        self._dataset.write_manifest(manifest)


def _done(rows: Sequence[Row]) -> set[Any]:
    """The keys of rows that no other run measures again."""
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
    """What a manifest says of where a run's latencies are from.

    Raises `MismatchError` where the SoC is not placed as it is described.
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
    """Raise `MismatchError` where rows of the last run that tells cannot stand beside new ones.

    Clocks may be others: anchors tell how fast each run's machine was.
    """
    told = [(name, run["environment"]) for name, run in runs.items() if run.get("environment")]
    if told:
        run, content = told[-1]
        before = yaml_file.convert(content, Environment, dataset.manifest_path)
        differing = differences(before, environment, MIXED)
        fix = "Write another dataset by --datasets DIR."
        check_alike(differing, f"The rows of {run} in {dataset.folder}", "new ones", fix=fix)


def check_is_new(dataset: Dataset) -> None:
    """Raises `CodlError` where there is a dataset, which a new collection leaves alone."""
    if dataset.manifest_path.exists():
        raise CodlError(
            f"{dataset.folder} holds a dataset. Go on with it by --resume, or write another "
            "by --datasets DIR."
        )


def open_manifest(dataset: Dataset, soc: Soc, source: str, *, resume: bool) -> dict[str, Any]:
    """The manifest to add a run of latencies from `source` to, which may be a new one.

    Raises `CodlError` where there is a dataset and `resume` is not set, and `MismatchError` where
    it is that of another SoC, or of latencies from elsewhere.
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
