"""What a machine has for codl: Python, packages, cores, memory, room on disks, temperatures.

Only files and tables of the system are read: no driver is loaded and no package is imported.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from codl.ir.results import Conditions
from codl.optional import BASE, PACKAGES
from codl.provenance import VERSION
from codl.runtime import cache, threads
from codl.runtime.conditions import THERMAL, Cluster, ConditionReader, clusters
from codl.runtime.cpu_facts import physical_cores
from codl.runtime.system_files import SYSTEM, SystemFiles

MEMINFO = "proc/meminfo"
WAIT_POLICY = "OMP_WAIT_POLICY"
#: The trips of a thermal zone at which a system slows its processors down, or worse.
HOT = ("passive", "hot", "critical")


@dataclass(frozen=True)
class Room:
    """A folder, and the bytes that are free where it lies or will lie.

    `problem` says why nothing can be written there, "" where it can.
    """

    folder: str
    free_bytes: int
    problem: str = ""


@dataclass(frozen=True)
class ThermalZone:
    """A temperature in degrees Celsius; `slows_at` is where the system begins to slow down."""

    name: str
    celsius: float
    slows_at: float | None = None


@dataclass(frozen=True)
class Governor:
    """How the system chooses the clock of some cores; megahertz are 0 where it does not tell."""

    cores: tuple[int, ...]
    name: str
    driver: str
    allowed_mhz: float = 0.0
    highest_mhz: float = 0.0


@dataclass(frozen=True)
class Examination:
    """A machine; `packages` are the versions of what codl needs, "" where it is not installed.

    `wait_policy` is how OpenMP's threads are told to wait for work, "" where nothing is said.
    """

    python: tuple[int, ...]
    codl: str
    system: str
    machine: str
    is_termux: bool
    packages: dict[str, str]
    cores: tuple[int, ...]
    physical_cores: tuple[int, ...]
    refused_cores: tuple[int, ...]
    wait_policy: str
    governors: tuple[Governor, ...]
    memory_bytes: int
    available_bytes: int
    cache: Room
    zones: tuple[ThermalZone, ...]
    conditions: Conditions


def examine(files: SystemFiles = SYSTEM) -> Examination:
    """Look at this machine."""
    cores = threads.INITIAL_CORES
    memory = memory_of(files)
    return Examination(
        python=tuple(map(int, platform.python_version_tuple()[:2])),
        codl=VERSION,
        system=platform.system(),
        machine=platform.machine(),
        is_termux=is_termux(os.environ),
        packages=versions(),
        cores=cores,
        physical_cores=physical_cores(),
        refused_cores=tuple(threads.refused_cores(cores)),
        wait_policy=os.environ.get(WAIT_POLICY, "").strip().lower(),
        governors=governors(cores, files),
        memory_bytes=memory.get("MemTotal", 0),
        available_bytes=memory.get("MemAvailable", 0),
        cache=room(cache.folder()),
        zones=thermal_zones(files),
        conditions=ConditionReader(files=files).read(),
    )


def is_termux(environment: Mapping[str, str]) -> bool:
    """Whether this is Termux on Android, whose packages have names of their own."""
    return "com.termux" in environment.get("PREFIX", "") or "TERMUX_VERSION" in environment


def versions() -> dict[str, str]:
    """Of every package of the base and of the extras; "" where it is not installed."""
    names = [*BASE.values(), *(name for own in PACKAGES.values() for name in own.values())]
    return {name: version_of(name) for name in dict.fromkeys(names)}


def version_of(name: str) -> str:
    """Of a package; "" where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def room(folder: Path) -> Room:
    """How much is free where a folder lies, or where it would be made."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Room(str(folder), 0, str(error))
    if not there.is_dir():
        return Room(str(folder), free, f"{there} is no folder")
    problem = "" if os.access(there, os.W_OK | os.X_OK) else f"{there} may not be written to"
    return Room(str(folder), free, problem)


def thermal_zones(files: SystemFiles = SYSTEM) -> tuple[ThermalZone, ...]:
    """Every zone that can be read."""
    found = []
    for zone in files.find(f"{THERMAL}/thermal_zone*"):
        celsius = files.celsius(f"{zone}/temp")
        if celsius is not None:
            name = files.text(f"{zone}/type") or zone.rpartition("/")[2]
            found.append(ThermalZone(name, celsius, _slows_at(zone, files)))
    return tuple(found)


def _slows_at(zone: str, files: SystemFiles) -> float | None:
    """The lowest of the trips at which a system slows down; None where it has none."""
    kinds = files.find(f"{zone}/trip_point_*_type")
    trips = (
        files.celsius(f"{kind.removesuffix('_type')}_temp")
        for kind in kinds
        if files.text(kind) in HOT
    )
    return min((trip for trip in trips if trip is not None), default=None)


def governors(cores: Collection[int], files: SystemFiles = SYSTEM) -> tuple[Governor, ...]:
    """Of every cluster that has one, with those of its cores that are among these."""
    found = (_governor(own, cores, files) for own in clusters(files))
    return tuple(own for own in found if own.cores and own.name)


def _governor(cluster: Cluster, cores: Collection[int], files: SystemFiles) -> Governor:
    allowed, highest = (
        files.mhz(f"{cluster.folder}/{name}") or 0.0
        for name in ("scaling_max_freq", "cpuinfo_max_freq")
    )
    name, driver = (
        files.text(f"{cluster.folder}/scaling_{what}") for what in ("governor", "driver")
    )
    own = tuple(core for core in cluster.cores if core in cores)
    return Governor(own, name, driver, allowed, highest)


def memory_of(files: SystemFiles = SYSTEM) -> dict[str, int]:
    """Bytes by the system's names; it tells kibibytes."""
    lines = (line.partition(":") for line in files.text(MEMINFO).splitlines())
    words = ((name, rest.split()) for name, _, rest in lines)
    return {name: int(own[0]) << 10 for name, own in words if own and own[0].isdigit()}
