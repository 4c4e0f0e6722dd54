"""The file of a device's tuning results, `lat_datasets/<soc>/tuning.json`.

Readable JSON with a version, the device, a checksum, and a line for each trial. A file of another
device is refused, since tuned choices do not transfer to other hardware or drivers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from codl import files
from codl.errors import InvalidFileError, MismatchError
from codl.ir import yaml_file
from codl.ir.constants import digest
from codl.ir.records.soc import Soc
from codl.ir.records.tuned import Tuned
from codl.kernels.tuning import Tuning
from codl.measure.dataset import Dataset

NAME = "tuning.json"
VERSION = 2
#: Longest wait for the lock: adding a result takes a moment, measuring holds it for hours.
LOCK_S = 5.0
#: Keys of a SoC's GPU without influence on a choice's latency.
_ELSEWHERE = {"memory_types", "element", "arithmetic"}


def path_of(dataset: Dataset) -> Path:
    return dataset.folder / NAME


def device_of(soc: Soc) -> dict[str, Any]:
    """The properties of a device on which results depend, beside op and variant."""
    gpu = {k: v for k, v in asdict(soc.gpu).items() if k not in _ELSEWHERE}
    # CPU drivers may name different models alike, and tiles depend on the SoC's cache.
    return gpu | {"host": soc.cpu.name, "l2_cache_bytes": soc.cpu.l2_cache_bytes}


def read(dataset: Dataset, soc: Soc) -> Tuning:
    """The tuning of a SoC's device; empty without a file.

    Raises `InvalidFileError` for a damaged file or one of another version, and `MismatchError` for
    a file of another device.
    """
    path = path_of(dataset)
    if not path.exists():
        return Tuning()
    return Tuning.of(_parse(files.read_json(path, fix=_fix(soc)), path, soc))


def add(dataset: Dataset, soc: Soc, results: Iterable[Tuned]) -> Tuning:
    """Merge results into the file under a lock; returns the merged tuning.

    Raises the errors of `read`, `UnwritableFileError` for an unwritable file, and `BusyError` while
    another process measures for the dataset.
    """
    path = path_of(dataset)
    # Without the lock, concurrent updates could be lost.
    with files.locked(path.parent, wait_s=LOCK_S):
        tuning = Tuning.of([*read(dataset, soc).results.values(), *results])
        write(tuning, path, soc)
    return tuning


def write(tuning: Tuning, path: Path, soc: Soc) -> None:
    """Write the file atomically: a crash leaves the old or the new one."""
    files.write(path, _format(tuning, device_of(soc)))


def forget(dataset: Dataset) -> None:
    path_of(dataset).unlink(missing_ok=True)


def _format(tuning: Tuning, device: Mapping[str, Any]) -> str:
    rows = [asdict(result) for _, result in sorted(tuning.results.items())]
    head = {"version": VERSION, "device": device, "sha256": _checksum(device, rows)}
    body = ",\n".join(_format_row(row) for row in rows)
    return json.dumps(head, indent=1)[:-2] + ',\n "results": [\n' + body + "\n]}\n"


def _format_row(row: Mapping[str, Any]) -> str:
    lines = ",\n".join(f"   {json.dumps(trial)}" for trial in row["trials"])
    head = json.dumps({k: v for k, v in row.items() if k != "trials"})
    return f"  {head[:-1]}, " + f'"trials": [\n{lines}]}}'


@dataclass(frozen=True)
class _File:
    version: int
    device: dict[str, Any]
    sha256: str
    results: list[dict[str, Any]]


def _parse(content: Any, path: Path, soc: Soc) -> list[Tuned]:
    fix = _fix(soc)
    if isinstance(content, dict) and content.get("version", VERSION) != VERSION:
        problem = f"must be {VERSION}, got {content['version']!r}."
        raise InvalidFileError(path, problem, where="version", fix=fix)
    file = yaml_file.convert(content, _File, path, fix=fix)
    results = yaml_file.convert(file.results, list[Tuned], path, fix=fix)
    if file.sha256 != _checksum(file.device, file.results):
        problem = "does not fit the results: the file was changed or cut."
        raise InvalidFileError(path, problem, where="sha256", fix=fix)
    _check_device(file.device, path, soc)
    return results


def _check_device(device: Mapping[str, Any], path: Path, soc: Soc) -> None:
    here = json.loads(json.dumps(device_of(soc)))
    for key in here:  # older files have further, irrelevant keys
        if device.get(key) != here.get(key):
            raise MismatchError(
                f"{path}, device, {key}: is {device.get(key)!r}, but {here.get(key)!r} in the SoC "
                f"{soc.name!r}: kernels were tuned for another device. {_fix(soc)}"
            )


def _fix(soc: Soc) -> str:
    return f"`codl tune --soc {soc.name} --anew` begins anew."


def _checksum(device: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    return digest({"device": device, "results": rows})
