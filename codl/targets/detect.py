"""Detection of a target's SoC, and completion of published SoCs."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote
from typing import Any

from codl.errors import CodlWarning, DeviceError, InvalidFileError, MismatchError
from codl.files import check_writable, set_aside
from codl.ir.records import soc as socs
from codl.ir.records.soc import ELEMENT_NAMES, AnySoc, Chip, PublishedSoc, Soc
from codl.machine.placement import LocalSoc, beside, choose, describe
from codl.targets.base import Target
from codl.targets.connect import Tell, connect, machine_of, silent


def detect(
    target: Target,
    name: str,
    *,
    device: str | None = None,
    memory_types: Sequence[str] = (),
    element: str = ELEMENT_NAMES[0],
    cpu_threads: int | None = None,
) -> LocalSoc:
    """Describe the machine of a target as a SoC.

    `device` names the OpenCL device or its driver; by default a GPU is preferred to a CPU.
    `memory_types` and `element` are those of `GpuSide`, by default the device's types and float32.
    `cpu_threads` is by default one per core of the CPU side. Raises `DeviceError` for a machine
    without OpenCL device, with one core, without the memory type, or with impossible facts;
    `CodlError` for more threads than cores; and `UnsupportedError` for a target that is no machine.
    """
    if target.replays is not None:
        machine_of(target.serial, f"be described as the SoC {name!r}")
    seen = target.examine()
    if seen.confinement:
        warnings.warn(f"{seen.confinement} {seen.release}", CodlWarning, 2)
    if seen.quota:
        warnings.warn(seen.quota, CodlWarning, 2)
    chosen = choose(target.probe(), device)
    info = target.describe()
    soc = describe(
        name,
        chosen,
        cpu=info.cpu,
        memory_types=memory_types,
        element=element,
        cpu_threads=cpu_threads,
    )
    described = replace(soc, chip=info.chip if info.chip != Chip() else None)
    try:
        socs.from_dict(described.to_dict(), socs.own_path_of(name))
    except InvalidFileError as error:
        raise DeviceError(
            f"{target.serial!r} reported facts that are not possible: {error}"
        ) from error
    return described


def complete(
    published: PublishedSoc, name: str | Path, serial: str, *, tell: Tell = silent
) -> LocalSoc:
    """Complete a SoC of published facts with a device's facts, and write its files.

    Writes to the user's own folder, or to the named file. Raises the errors of `detect`, and
    `MismatchError` for a device with another chip, without writing.
    """
    path = socs.own_path_of(name)
    check_writable(path)
    tell(f"Of the SoC {published.name!r} only published facts are known: {serial!r} tells the rest")
    with closing(connect(serial)) as target:
        found = detect(target, published.name)
        if problem := contradiction(published, found, serial):
            raise MismatchError(
                f"{problem} Name another device by --serial, or describe this one: "
                f"`codl soc detect --serial {quote(serial)} --name NAME`."
            )
        if published.cpu.threads not in (None, found.cpu.threads):
            found = detect(target, published.name, cpu_threads=published.cpu.threads)
        done = completed(published, found)
    write(done, path, tell=tell)
    return done


def write(soc: LocalSoc, path: Path, *, tell: Tell = silent) -> None:
    """Write the files of a SoC; keeps a former SoC file beside the new one."""
    if kept := set_aside(path):
        tell(f"What {path} held before is kept as {kept}")
    soc.save(path)
    tell(f"Wrote {path}, and {beside(path)}: where its parts are on the device")


# Published facts beside a device's. A device with another GPU or chip than the published one is a
# contradiction. In other differences its value wins: published ones often belong to a sibling chip.

#: The maker's word in a GPU's name, and its model, such as G72 in "Mali-G72 MP12".
MAKER, MODEL = re.compile(r"[a-z]+"), re.compile(r"[a-z]?\d{2,}")
#: Values that mean "not reported by the device".
UNTOLD: tuple[Any, ...] = (None, "", (), 0)


def contradiction(published: PublishedSoc, found: Soc, serial: str) -> str:
    """A sentence with the published and the found chip if they differ; else empty."""
    has_same_chip = _has_same_chip(published, found)
    if has_same_chip and _has_same_gpu(published, found):
        return ""
    names = "" if has_same_chip else f", which systems call {' or '.join(published.chips)},"
    wanted = f"{published.description}{names} with the GPU {published.gpu.name or 'unknown'}"
    chip = (
        f"chip {found.chip.name!r}" if found.chip and found.chip.name else f"CPU {found.cpu.name!r}"
    )
    version = f" ({found.gpu.opencl_version})" if found.gpu.opencl_version else ""
    return (
        f"The SoC {published.name!r} is {wanted}, and the device {serial!r} has the {chip} and "
        f"the OpenCL device {found.gpu.name!r}{version}."
    )


def _has_same_gpu(published: PublishedSoc, found: Soc) -> bool:
    """False only if the GPU's type, maker or model (Adrenos': in the version) differs."""
    gpu, name = published.gpu, (published.gpu.name or "").lower()
    stated = f"{found.gpu.name} {found.gpu.opencl_version}".lower()
    maker, model = MAKER.search(name), MODEL.search(name)
    return (
        gpu.type in (None, found.gpu.type)
        and (maker is None or maker[0] in stated)
        and (model is None or MODEL.search(stated) is None or model[0] in MODEL.findall(stated))
    )


def _has_same_chip(published: PublishedSoc, found: Soc) -> bool:
    """Whether a name of the chip is a published one; True if either has no names."""
    chip = found.chip
    stated = " ".join((chip.name, *chip.compatible)).lower() if chip else ""
    return not stated or not published.chips or any(n.lower() in stated for n in published.chips)


def completed(published: PublishedSoc, found: AnySoc) -> AnySoc:
    """The found SoC with the published description, and published values for unreported ones."""
    values: dict[str, dict[str, Any]] = {"cpu": {}, "gpu": {}}
    sources = dict(found.sources)
    for side, key, value in _values(published):
        stated = getattr(getattr(found, side), key)
        if stated in UNTOLD and stated is not False:
            values[side][key] = value
            source = published.sources.get(f"{side}.{key}") or published.sources[side]
            sources[f"{side}.{key}"] = f"published: {source}"
    return replace(
        found,
        description=published.description,
        cpu=replace(found.cpu, **values["cpu"]),
        gpu=replace(found.gpu, **values["gpu"]),
        sources=sources,
    )


def _values(published: PublishedSoc) -> Iterator[tuple[str, str, Any]]:
    """The published values, each with its side and key."""
    for side in ("cpu", "gpu"):
        facts = getattr(published, side)
        for key in asdict(facts):
            if (value := getattr(facts, key)) not in (None, ()):
                yield side, key, value
