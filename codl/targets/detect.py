"""Describes a target as a SoC, and finds a SoC again on a target."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from codl.errors import CodlError, CodlWarning, DeviceError, InvalidFileError
from codl.records import soc as socs
from codl.records.soc import ELEMENT_NAMES, GpuSide, Soc
from codl.records.soc_facts import Chip, SensorFact
from codl.runtime.detect import choose, describe, place
from codl.runtime.placement import LocalSoc, beside, check_measured, read
from codl.targets.base import Target, TargetInfo
from codl.targets.connect import connect, machine_of, transport_of


def detect(
    target: Target,
    name: str,
    *,
    device: str | None = None,
    memory_types: Sequence[str] = (),
    element: str = ELEMENT_NAMES[0],
) -> LocalSoc:
    """Describe the machine that a target is.

    `device` picks the OpenCL device by driver or device name; otherwise a real GPU is taken before
    a CPU. `memory_types` and `element` are as in `GpuSide`; by default all that the device is good
    at, and float32. Raises `DeviceError` where there is no OpenCL device or only one core for two
    sides, or where the device has no such memory or says what cannot be, and `UnsupportedError`
    where the target is no machine.
    """
    if target.replays is not None:
        machine_of(target.serial, f"be described as the SoC {name!r}")
    chosen = choose(target.probe(), device)
    info = target.describe()
    soc = describe(name, chosen, cpu=info.cpu, memory_types=memory_types, element=element)
    found = replace(
        soc,
        chip=info.chip if info.chip != Chip() else None,
        sensors=sensors_of(info),
        sources={
            "gpu.wave_size": "driver: on a CPU work-items run one after another"
            if soc.gpu.is_cpu
            else "driver: the multiple of a work-group's size that it prefers",
            **_registers_source(soc.gpu),
        },
    )
    try:
        socs.from_dict(found.to_dict(), socs.own_path_of(name))
    except InvalidFileError as error:
        raise DeviceError(f"{target.serial!r} says of itself what cannot be: {error}") from error
    return found


def _registers_source(gpu: GpuSide) -> dict[str, str]:
    """Where the number of vector registers is from, if it is known."""
    if gpu.vector_registers is None:
        return {}
    floats = gpu.vector_width
    return {"gpu.vector_registers": f"system: its instruction set with vectors of {floats} floats"}


def sensors_of(info: TargetInfo) -> tuple[SensorFact, ...]:
    """The sensors of a machine that can be read."""
    energy = (SensorFact(own.name, "energy", own.part) for own in info.sensors)
    return (*energy, *(SensorFact(name, "temperature") for name in info.thermometers))


def load_local(name: str | Path, serial: str = "local") -> LocalSoc:
    """Load a SoC that is to be worked on, by name or from a `.yaml` file, and where it is.

    Where the file of its placement is missing, the SoC's device is looked for on the target.
    Raises as `codl.records.soc.load` and `codl.runtime.placement.read` do, `UnsupportedError` for a
    replayed SoC or a serial that is no machine, and `DeviceError` where the target does not have
    its device.
    """
    soc, path = socs.load(name), socs.path_of(name)
    transport = machine_of(serial, f"run anything on the SoC {soc.name!r}")
    check_measured(soc)
    known = read(soc, path, is_here=transport.shell is None)
    if known is not None:
        return known
    with closing(connect(serial)) as target:
        return _placed(soc, path, target)


def load_measured(name: str | Path, serial: str = "local") -> Soc:
    """Load a SoC that is to be measured: as `load_local` does, but of a replay the facts alone."""
    if transport_of(serial).is_machine:
        return load_local(name, serial)
    return socs.load(name)


def _placed(soc: Soc, path: Path, target: Target) -> LocalSoc:
    """The SoC where a target has it, by the rules of `detect`."""
    fix = f"`codl soc detect --serial {target.serial} --name {soc.name}` writes it."
    missing = f"There is no {beside(path)}, which says where the SoC {soc.name!r} is"
    devices = [device for result in target.probe() for device in result.devices]
    wanted = (soc.gpu.platform, soc.gpu.name)
    matching = [device for device in devices if (device.platform, device.name) == wanted]
    if not matching:
        names = ", ".join(repr(device.name) for device in devices) or "none"
        raise DeviceError(
            f"{missing}, and its OpenCL device {soc.gpu.name!r} of {soc.gpu.platform!r} is not "
            f"here (there are: {names}). {fix}"
        )
    try:
        local = LocalSoc.of(soc, place(matching[0], target.describe().cpu.cores))
    except CodlError as error:
        raise type(error)(f"{missing}. {error} {fix}") from error
    warnings.warn(f"{missing}; it was found by asking every driver. {fix}", CodlWarning, 2)
    return local
