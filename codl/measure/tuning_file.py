"""The file of a device's tuning results: `lat_datasets/<soc>/tuning.json`, beside what they timed.

JSON that a person can read, a line for every trial, with a version, the device and a checksum. A
file of another device is refused: a tuned choice says nothing about other hardware or drivers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from codl import files
from codl.errors import InvalidFileError, MismatchError
from codl.ir.constants import digest
from codl.kernels.tuning import Tuning
from codl.measure.dataset import Dataset
from codl.records.soc import Soc
from codl.records.tuned import Tuned

NAME = "tuning.json"
VERSION = 2
#: Who adds a result has the file for a moment; who measures for longer has it for hours.
LOCK_S = 5.0
#: What of a SoC's GPU side does not matter to how fast a choice is.
_ELSEWHERE = {"memory_types", "element", "arithmetic"}


def path_of(dataset: Dataset) -> Path:
    return dataset.folder / NAME


def device_of(soc: Soc) -> dict[str, Any]:
    """All that a result depends on but the op and the variant."""
    gpu = {k: v for k, v in asdict(soc.gpu).items() if k not in _ELSEWHERE}
    # Drivers for CPUs give models the same name, and kernels are cut for the SoC's cache.
    return gpu | {"host": soc.cpu.name, "l2_cache_bytes": soc.cpu.l2_cache_bytes}


def read(dataset: Dataset, soc: Soc) -> Tuning:
    """What was tuned for a SoC's device; nothing where there is no file.

    Raises `InvalidFileError` for a file that is damaged or of another version, and `MismatchError`
    for one of another device.
    """
    path = path_of(dataset)
    if not path.exists():
        return Tuning()
    return Tuning.of(_parse(files.read_json(path, fix=_fix(soc)), path, soc), soc)


def add(dataset: Dataset, soc: Soc, results: Iterable[Tuned]) -> Tuning:
    """Write more results beside those of the file, other processes' too; raises as `read` does.

    Raises `UnwritableFileError` where the file cannot be written, and `BusyError` where another
    process measures for the dataset.
    """
    path = path_of(dataset)
    # Other processes would read the file, change it and write it back meanwhile.
    with files.locked(path.parent, wait_s=LOCK_S):
        tuning = read(dataset, soc).with_results(results, soc)
        write(tuning, path, soc)
    return tuning


def write(tuning: Tuning, path: Path, soc: Soc) -> None:
    """Write a whole file at once: a crash leaves the old one or the new one."""
    files.write(path, _format(tuning, device_of(soc)))


def forget(dataset: Dataset) -> None:
    """Delete the file, where there is one."""
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


class _File(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    device: dict[str, Any]
    sha256: str
    results: list[dict[str, Any]]


def _parse(content: Any, path: Path, soc: Soc) -> list[Tuned]:
    fix = _fix(soc)
    try:
        if isinstance(content, dict) and content.get("version", VERSION) != VERSION:
            problem = f"must be {VERSION}, got {content['version']!r}."
            raise InvalidFileError(path, problem, where="version", fix=fix)
        file = msgspec.convert(content, _File)
        results = msgspec.convert(file.results, list[Tuned])
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidFileError(path, f"cannot be read: {error}.", fix=fix) from error
    if file.sha256 != _checksum(file.device, file.results):
        problem = "does not fit the results: the file was changed or cut."
        raise InvalidFileError(path, problem, where="sha256", fix=fix)
    _check_device(file.device, path, soc)
    return results


def _check_device(device: Mapping[str, Any], path: Path, soc: Soc) -> None:
    here = json.loads(json.dumps(device_of(soc)))
    for key in here:  # older files have more, which says nothing of the device
        if device.get(key) != here.get(key):
            raise MismatchError(
                f"{path}, device, {key}: is {device.get(key)!r}, but {here.get(key)!r} in the SoC "
                f"{soc.name!r}: kernels were tuned for another device. {_fix(soc)}"
            )


def _fix(soc: Soc) -> str:
    return f"`codl tune --soc {soc.name} --anew` begins anew."


def _checksum(device: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    return digest({"device": device, "results": rows})
