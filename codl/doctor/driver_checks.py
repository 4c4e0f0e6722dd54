"""Checks of OpenCL: its loader, every driver that is installed, every device with a kernel."""

from __future__ import annotations

from collections.abc import Iterator

from codl.doctor.package_checks import LOADER
from codl.runtime.drivers import INSTALL_HINT
from codl.runtime.probe import ProbedDevice
from codl.targets.checks import Check, Outcome, Patient

TERMUX_LOADER = "`pkg install ocl-icd`, then `pip install pyopencl`."
TERMUX_DRIVER = "`pkg install opencl-vendor-driver` makes the phone's own driver known."


def loader(patient: Patient) -> Iterator[Outcome]:
    fix = TERMUX_LOADER if patient.examination.is_termux else ""
    version = patient.examination.packages.get(LOADER, "")
    if not version:
        yield Outcome(False, f"{LOADER} is not installed", fix=fix)
        return
    try:
        with patient.apart() as target:
            target.import_package(LOADER)
    except Exception as error:
        yield Outcome(False, str(error), fix=fix)
    else:
        yield Outcome(True, f"loaded by {LOADER} {version}")


def drivers(patient: Patient) -> Iterator[Outcome]:
    fix = TERMUX_DRIVER if patient.examination.is_termux else INSTALL_HINT
    if not patient.drivers:
        yield Outcome(False, "none was found", fix=fix)
    for result in patient.drivers:
        names = ", ".join(device.name for device in result.devices)
        if result.error:
            yield Outcome(False, result.error, of=result.icd)
        elif result.devices:
            yield Outcome(True, f"answers with {names}", of=result.icd)
        elif patient.devices:
            yield Outcome(True, "has no device here; another driver has", of=result.icd)
        else:
            yield Outcome(False, "loads, and has no device", of=result.icd, fix=fix)


def devices(patient: Patient) -> Iterator[Outcome]:
    """Looking at a driver has built and run a kernel on each of its devices."""
    for device in patient.devices:
        yield Outcome(True, f"built and ran a kernel: {_described(device)}", of=title(device))


def title(device: ProbedDevice) -> str:
    """A device and its driver, by which findings are told apart."""
    return f"{device.name} ({device.icd})"


def _described(device: ProbedDevice) -> str:
    facts = (
        device.version,
        f"driver {device.driver}",
        f"{device.compute_units} compute units",
        f"work-groups of up to {device.max_work_group_size}",
        f"vectors of {device.vector_width} floats",
        " and ".join(device.memory_types),
    )
    return ", ".join(facts)


CHECKS = (
    Check("opencl loader", loader, f"`pip install --force-reinstall {LOADER}`."),
    Check(
        "opencl driver",
        drivers,
        "codl uses the drivers that work. Install this one again, or remove its ICD file "
        "(/etc/OpenCL/vendors) or its package.",
    ),
    Check("opencl device", devices, ""),
)
