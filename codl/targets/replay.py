"""Datasets in the place of a device, as `replay:DIR`: what was measured is answered again.

For trying what is behind a collection (its order, budgets, active learning) without a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from codl.errors import CodlError, MismatchError, UnsupportedError
from codl.measure.batch import BatchListener, BatchResult, MeasureBatch, Measurement
from codl.measure.dataset import Row
from codl.measure.recording import Recording
from codl.measure.tasks import Task, failed_row
from codl.records.results import Conditions
from codl.records.soc import MEMORY_TYPES, Soc
from codl.records.soc_facts import Chip
from codl.runtime.hardware import CpuFacts
from codl.runtime.probe import ProbedDevice, ProbeResult
from codl.runtime.sensors import SensorInfo
from codl.targets.base import Elsewhere, TargetInfo
from codl.targets.wire import question_of

SCHEME = "replay:"
PATTERN = "replay:DIR"
SOURCE = "replayed"
#: What is said of a serial that is a recording.
INSTEAD = (
    "a replay answers with the rows of a dataset and runs nothing. Name a device by --serial, such "
    "as `local`."
)
#: A batch is compiled, built and measured: three steps, each as long as its rounds are to last.
STEPS = 3


def matches(serial: str) -> bool:
    return serial.startswith(SCHEME)


def folder_of(serial: str) -> Path | None:
    """The dataset that a serial replays; None where it is no replay.

    Raises `CodlError` where it names no folder.
    """
    if not matches(serial):
        return None
    folder = serial.removeprefix(SCHEME)
    if not folder or "\0" in folder:
        raise CodlError(f"The serial must be like replay:lat_datasets/host, got {serial!r}.")
    return Path(folder)


class ReplayTarget(Elsewhere):
    """Answers `measure` with the rows of a dataset, marked `source: replayed`.

    A task that it has no row of is a failed row that says so; `codl collect` asks for no such one.
    Nothing is read before it is asked something; then `InvalidFileError` is raised where there is
    no whole dataset, and `MismatchError` where it is not one of `soc`.
    """

    def __init__(self, serial: str, soc: Soc | None = None) -> None:
        self.serial, self._soc, self._folder = serial, soc, folder_of(serial)

    def _ask(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> NoReturn:
        what = question_of(method).method.__name__.replace("_", " ")
        raise UnsupportedError(f"{self.serial!r} cannot {what}: {INSTEAD}")

    @cached_property
    def _recording(self) -> Recording:
        assert self._folder is not None
        recording = Recording.read(self._folder)
        if self._soc is not None and not self._soc.is_as_in(recording.soc.to_dict()):
            raise MismatchError(
                f"{recording.dataset.manifest_path} describes another SoC "
                f"({recording.soc.name!r}) than --soc {self._soc.name} names: its rows are not of "
                "that one. Name the SoC that the dataset is of."
            )
        return recording

    @property
    def soc(self) -> Soc:
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

    def describe(self) -> TargetInfo:
        """The machine that was measured, as the manifest tells."""
        soc, placement = self._recording.soc, self._recording.placement
        sensors = (sensor for sensor in soc.sensors if sensor.quantity == "energy")
        warm = (sensor.name for sensor in soc.sensors if sensor.quantity == "temperature")
        return TargetInfo(
            cpu=CpuFacts(
                name=soc.cpu.name,
                cores=placement.cores if placement else (),
                simd_floats=soc.cpu.simd_floats,
                l2_cache_bytes=soc.cpu.l2_cache_bytes,
                clusters=soc.cpu.clusters,
                big_cores=soc.cpu.big_cores,
                caches=soc.cpu.caches,
            ),
            sensors=tuple(SensorInfo(sensor.name, sensor.part) for sensor in sensors),  # type: ignore[arg-type]
            chip=soc.chip or Chip(),
            thermometers=tuple(warm),
        )

    def probe(self) -> Sequence[ProbeResult]:
        """The OpenCL device that was measured, as the manifest tells; no driver is asked."""
        return [_probed(self._recording)]

    def clocks_mhz(self) -> dict[str, float]:
        return self._recording.clock_mhz

    def conditions(self) -> Conditions:
        """Those at the beginning of the recording, but nothing that one would wait for.

        How hot the device was, each row tells.
        """
        return replace(self._recording.conditions, temperature_c=None, throttled=())

    def measure(self, batch: MeasureBatch, watcher: BatchListener | None = None) -> BatchResult:
        """The rows of as many tasks as were measured in the time of a batch."""
        recording, at_most = self._recording, len(batch.tasks)
        seconds = min(batch.left_s, STEPS * batch.rounds.span_s)
        if recording.seconds_per_row > 0:
            at_most = max(1, min(at_most, int(seconds / recording.seconds_per_row)))
        rows = {task: self._row(task) for task in batch.tasks[:at_most]}
        return BatchResult(
            tuple(_measurement(task, row, batch.run) for task, row in rows.items()),
            tuple(replace(row, run=batch.run, source=SOURCE) for row in recording.anchors),
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


def _probed(recording: Recording) -> ProbeResult:
    """The device of the SoC file; what that does not know is as of a device that does not tell."""
    gpu, placement = recording.soc.gpu, recording.placement
    icd = placement.icd if placement else gpu.platform
    facts = {field.name: getattr(gpu, field.name, None) for field in fields(ProbedDevice)}
    facts |= {
        "icd": icd,
        "version": gpu.opencl_version,
        "memory_types": MEMORY_TYPES if gpu.max_image_width else MEMORY_TYPES[:1],
        "extensions": (),
    }
    told: dict[str, Any] = {name: value for name, value in facts.items() if value is not None}
    return ProbeResult(icd, (ProbedDevice(**told),))
