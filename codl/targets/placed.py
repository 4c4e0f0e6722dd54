"""Loading of a SoC with its placement on a target."""

from __future__ import annotations

import warnings
from contextlib import closing
from pathlib import Path

from codl.errors import CodlError, CodlWarning, DeviceError
from codl.ir.records import soc as socs
from codl.ir.records.soc import PublishedSoc, Soc
from codl.machine.placement import LocalSoc, beside, check_measured, place, read
from codl.targets.base import Target
from codl.targets.connect import Tell, connect, machine_of, prepare, silent


def load_local(
    name: str | Path,
    serial: str = "local",
    precision: str | None = None,
    *,
    install: bool = True,
    tell: Tell = silent,
) -> LocalSoc:
    """Load a SoC with its placement, by name or from a `.yaml` file.

    `precision` is that of `Soc.at`, by default the file's. Without a placement file, the target is
    searched for the SoC's device. Published facts are completed on the target and written to files.
    A device gets this codl's agent, unless `install` is off. `tell` receives a line per action.
    Raises the errors of `codl.ir.records.soc.load`, `codl.machine.placement.read` and
    `codl.targets.connect.prepare`; `UnsupportedError` for a replayed SoC or a serial that is no
    machine; `DeviceError` if the target does not have the SoC's device; and `MismatchError` if its
    chip differs from the published one.
    """
    soc, path = socs.read(name), socs.path_of(name)
    transport = machine_of(serial, f"run anything on the SoC {soc.name!r}")
    if isinstance(soc, Soc):
        soc = soc.at(precision)
        check_measured(soc)
    prepare(serial, install=install, tell=tell)
    if isinstance(soc, PublishedSoc):
        from codl.targets.detect import complete  # it measures facts

        return complete(soc, name, serial, tell=tell).at(precision)
    placed = read(soc, path, is_here=transport.shell is None)
    if placed is not None:
        return placed
    with closing(connect(serial)) as target:
        return _placed(soc, path, target)


def _placed(soc: Soc, path: Path, target: Target) -> LocalSoc:
    """The SoC with its placement on a target, by the rules of `detect`."""
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
        local = LocalSoc.of(soc, place(matching[0], target.describe().cpu))
    except CodlError as error:
        raise type(error)(f"{missing}. {error} {fix}") from error
    warnings.warn(f"{missing}; it was found by asking every driver. {fix}", CodlWarning, 2)
    return local
