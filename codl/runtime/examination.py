"""Inventory of a machine: packages, cores, memory, disks, temperatures.

Only files of the system are read: no driver is loaded and no package is imported.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from codl.boundary import BASE, PACKAGES
from codl.provenance import VERSION
from codl.records.results import Conditions
from codl.runtime import cache, threads
from codl.runtime.conditions import THERMAL, ConditionReader
from codl.runtime.driver_search import Search
from codl.runtime.drivers import binding
from codl.runtime.hardware import physical_cores, withheld_cores
from codl.runtime.system_files import SYSTEM, SystemFiles, clusters, control_groups

MEMINFO = "proc/meminfo"
#: Files with a control group's limit and use of memory in bytes, by version of control groups.
V1_FILES = "memory.limit_in_bytes", "memory.usage_in_bytes"
V2_FILES = "memory.max", "memory.current"
WAIT_POLICY = "OMP_WAIT_POLICY"
#: Kinds of trip points of a thermal zone at which a system slows its processors down, or worse.
HOT = ("passive", "hot", "critical")

#: Packages that compute ops, each in some kernel variant.
COMPUTING = ("ncnn", "numpy", "onnxruntime", "openvino")
#: Name of the stand-in for pyopencl, which has codl's version.
STAND_IN = "codl.runtime.cl_ctypes"


@dataclass(frozen=True)
class Room:
    """A folder, and the free bytes on its disk; `problem` is why it cannot be written, or ""."""

    folder: str
    free_bytes: int
    problem: str = ""


class Memory(NamedTuple):
    """Memory in bytes; 0 where the system does not report it."""

    total: int
    available: int


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
    """A machine; `packages` are versions of packages that codl uses, "" for one that is missing.

    `wait_policy` is OpenMP's variable of how threads wait, or "". `driver_places` are the places
    where OpenCL drivers were looked for, with the result. `withheld_cores` are faster cores that
    this process may not use, by its `cpuset`. `binding` is the binding of OpenCL in use, or "".
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
    is_android: bool = False
    driver_places: tuple[str, ...] = ()
    withheld_cores: tuple[int, ...] = ()
    cpuset: str = ""
    binding: str = ""
    #: CPU quota of a control group as a number of cores; None without a limit.
    quota_cores: float | None = None

    @property
    def quota(self) -> str:
        """Problem of a CPU quota below the number of cores, or ""."""
        if self.quota_cores is None or self.quota_cores >= len(self.cores):
            return ""
        return (
            f"A CPU quota allows the time of {self.quota_cores:g} of {len(self.cores)} cores: all "
            "threads stand still when it is used up, which makes most runs several times as long."
        )

    @property
    def libraries(self) -> dict[str, str]:
        """Versions of packages and, in place of an unused pyopencl, of its stand-in."""
        versions = {name: version for name, version in self.packages.items() if version}
        if self.binding != "ctypes":
            return versions
        return {**{k: v for k, v in versions.items() if k != "pyopencl"}, STAND_IN: self.codl}

    @property
    def confinement(self) -> str:
        """Problem of fast cores that the system keeps from this process, or ""."""
        if not self.withheld_cores:
            return ""
        used = [core for core in self.cores if core not in self.refused_cores]
        by = f" (its cpuset is {self.cpuset})" if self.cpuset.strip("/") else ""
        return (
            f"Only cores {_numbered(used)} may be used{by}, and the faster cores "
            f"{_numbered(self.withheld_cores)} not: measurements do not represent this machine."
        )

    @property
    def release(self) -> str:
        """What to do about a confinement."""
        if self.is_android:
            return (
                "Keep Termux on the screen after `termux-wake-lock`, or measure by `adb shell`: "
                "Android takes the fast cores from what is in the background."
            )
        every = _numbered(sorted({*self.cores, *self.withheld_cores}))
        return f"Start it by `taskset -c {every}`, or widen its cpuset or its container's limits."


def _numbered(cores: Iterable[int]) -> str:
    return ",".join(map(str, cores))


def examine(files: SystemFiles = SYSTEM) -> Examination:
    """Examine this machine."""
    cores = threads.INITIAL_CORES
    memory, search, refused = memory_of(files), Search(files.root), threads.refused_cores(cores)
    return Examination(
        python=tuple(map(int, platform.python_version_tuple()[:2])),
        codl=VERSION,
        system=platform.system(),
        machine=platform.machine(),
        is_termux=is_termux(os.environ, sys.base_prefix),
        packages=versions(),
        cores=cores,
        physical_cores=physical_cores(),
        refused_cores=tuple(refused),
        wait_policy=os.environ.get(WAIT_POLICY, "").strip().lower(),
        governors=governors(cores, files),
        memory_bytes=memory.total,
        available_bytes=memory.available,
        cache=room(cache.folder()),
        zones=thermal_zones(files),
        conditions=ConditionReader(files=files).read(),
        is_android=search.is_android,
        driver_places=tuple(search.places()),
        withheld_cores=withheld_cores([core for core in cores if core not in refused], files),
        cpuset=files.text("proc/self/cpuset"),
        binding=binding(),
        quota_cores=cpu_quota(files),
    )


def is_termux(environment: Mapping[str, str], prefix: str) -> bool:
    """Whether this is Termux on Android, whose variables `run-as` and adb do not set."""
    is_its_python = "com.termux" in prefix or "com.termux" in environment.get("PREFIX", "")
    return is_its_python or "TERMUX_VERSION" in environment


def versions() -> dict[str, str]:
    """Versions of all packages of the base and the extras; "" for a missing one."""
    names = [*BASE.values(), *(name for extra in PACKAGES.values() for name in extra.values())]
    return {name: version_of(name) for name in dict.fromkeys(names)}


def version_of(name: str) -> str:
    """Version of a package; "" where it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def room(folder: Path) -> Room:
    """Free space of a folder, or of where it would be made."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        free = shutil.disk_usage(nearest).free
    except OSError as error:
        return Room(str(folder), 0, str(error))
    if not nearest.is_dir():
        return Room(str(folder), free, f"{nearest} is no folder")
    may = os.access(nearest, os.W_OK | os.X_OK)
    return Room(str(folder), free, "" if may else f"{nearest} may not be written to")


def thermal_zones(files: SystemFiles = SYSTEM) -> tuple[ThermalZone, ...]:
    """All readable thermal zones."""
    zones = []
    for zone in files.find(f"{THERMAL}/thermal_zone*"):
        celsius = files.celsius(f"{zone}/temp")
        if celsius is None:
            continue
        name = files.text(f"{zone}/type") or zone.rpartition("/")[2]
        trips = [
            files.celsius(f"{kind.removesuffix('_type')}_temp")
            for kind in files.find(f"{zone}/trip_point_*_type")
            if files.text(kind) in HOT
        ]
        slows_at = min((trip for trip in trips if trip is not None), default=None)
        zones.append(ThermalZone(name, celsius, slows_at))
    return tuple(zones)


def governors(cores: Collection[int], files: SystemFiles = SYSTEM) -> tuple[Governor, ...]:
    """Governors of the clusters, with their cores among these."""
    every = (
        Governor(
            tuple(core for core in cluster.cores if core in cores),
            files.text(f"{cluster.folder}/scaling_governor"),
            files.text(f"{cluster.folder}/scaling_driver"),
            files.mhz(f"{cluster.folder}/scaling_max_freq") or 0.0,
            files.mhz(f"{cluster.folder}/cpuinfo_max_freq") or 0.0,
        )
        for cluster in clusters(files)
    )
    return tuple(governor for governor in every if governor.cores and governor.name)


def memory_of(files: SystemFiles = SYSTEM) -> Memory:
    """Memory of the system, or of this process's narrowest control group."""
    system = _numbers(files.text(MEMINFO))
    total, available = system.get("MemTotal", 0) << 10, system.get("MemAvailable", 0) << 10
    for folder, is_first in control_groups(files, "memory"):
        limit, used = V1_FILES if is_first else V2_FILES
        most, now = files.text(f"{folder}/{limit}"), files.text(f"{folder}/{used}")
        if most.isdigit() and now.isdigit() and int(most) < total:
            taken = int(now) - _numbers(files.text(f"{folder}/memory.stat")).get("inactive_file", 0)
            total, available = int(most), min(available, max(0, int(most) - taken))
    return Memory(total, available)


def _numbers(text: str) -> dict[str, int]:
    """Numbers by name, from lines of a name and a number."""
    words = (line.replace(":", " ").split() for line in text.splitlines())
    return {name: int(rest[0]) for name, *rest in words if rest and rest[0].isdigit()}


def cpu_quota(files: SystemFiles = SYSTEM) -> float | None:
    """Quota of this process's narrowest control group, as a number of cores; None without a limit.

    All threads use it up together; then all of them stand still until the next period.
    """
    quotas = []
    for folder, is_first in control_groups(files, "cpu"):
        if is_first:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [files.text(f"{folder}/{name}") for name in names]
        else:
            words = files.text(f"{folder}/cpu.max").split()
        if len(words) == 2 and all(word.isdigit() and int(word) > 0 for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)
