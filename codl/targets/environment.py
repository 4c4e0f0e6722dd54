"""The environment in which a target measures, as results carry it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from codl.boundary import MissingPackageError
from codl.errors import CodlWarning, DeviceError
from codl.ir.environment import Environment
from codl.records.results import Conditions
from codl.runtime.examination import Examination
from codl.runtime.placement import require_local
from codl.targets.base import Target


def identity_of(target: Target) -> Mapping[str, str]:
    """The device and its driver; empty where none can be opened."""
    try:
        return target.open()
    except (DeviceError, MissingPackageError):
        return {}


def libraries_of(target: Target) -> Mapping[str, str]:
    """Versions of the libraries that a target has for computing.

    Measurements and comparisons hold for these versions only.
    """
    return {name: version for name, version in target.libraries().items() if version}


def environment_of(target: Target, protocol: Mapping[str, Any]) -> Environment | None:
    """The environment of a machine, now; None where the target is no machine.

    Opens the SoC's device; where that fails, the driver is empty. Raises `DeviceError` where the
    machine does not answer.
    """
    if target.replays is not None:
        return None
    placement, device = require_local(target.soc).placement, identity_of(target)
    seen = target.examine()  # after the device is open: then it has the binding of OpenCL
    now = target.conditions()
    if seen.quota:
        warnings.warn(seen.quota, CodlWarning, stacklevel=2)
    environment = Environment(
        machine=target.describe().cpu.name,
        system=f"{seen.system} {seen.machine}",
        platform=device.get("platform", ""),
        device=device.get("device", ""),
        driver=device.get("driver", ""),
        cpu_cores=placement.cpu_cores,
        gpu_cores=placement.gpu_cores,
        threads=placement.threads,
        clocks=_settings(seen, now),
        libraries=seen.libraries,
        protocol=dict(protocol),
    )
    return under(environment, now)


def library_environment(
    target: Target, protocol: Mapping[str, Any], *, threads: int
) -> Environment:
    """The environment of libraries on a machine, without its OpenCL device."""
    seen = target.examine()
    return Environment(
        machine=target.describe().cpu.name,
        system=f"{seen.system} {seen.machine}",
        cpu_cores=seen.cores,
        threads=threads,
        libraries=seen.libraries,
        protocol=dict(protocol),
    )


def under(environment: Environment, conditions: Conditions) -> Environment:
    """The environment with the clocks of these conditions."""
    clocks = {"cpu": conditions.cpu_mhz, "gpu": conditions.gpu_mhz}
    return replace(environment, clocks_mhz={k: mhz for k, mhz in clocks.items() if mhz is not None})


def _settings(seen: Examination, now: Conditions) -> dict[str, str]:
    """Governors of each cluster of cores, and of the GPU."""
    settings = {}
    for governor in seen.governors:
        limit = f", at most {governor.allowed_mhz:.0f} MHz" if governor.allowed_mhz else ""
        settings[f"cores {', '.join(map(str, governor.cores))}"] = f"{governor.name}{limit}"
    if "gpu" in now.governors:
        settings["gpu"] = now.governors["gpu"]
    return settings
