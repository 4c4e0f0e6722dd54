"""Inventory of a machine: system files and installed packages, without loading drivers."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from codl.files import VERSION
from codl.ir.records.results import Conditions
from codl.machine import cache, threads
from codl.machine.conditions import ConditionReader
from codl.machine.driver_search import Search
from codl.machine.hardware import STAND_IN, binding, physical_cores, versions, withheld_cores
from codl.machine.system_files import SYSTEM, SystemFiles, clusters, control_groups

MEMINFO = "proc/meminfo"
#: Files with a control group's limit and use of memory in bytes, by version of control groups.
V1_FILES = "memory.limit_in_bytes", "memory.usage_in_bytes"
V2_FILES = "memory.max", "memory.current"


@dataclass(frozen=True)
class Room:
    """A folder, and the free bytes on its disk; `problem` is why it is not writable, or ""."""

    folder: str
    free_bytes: int
    problem: str = ""


class Memory(NamedTuple):
    """Memory in bytes; 0 if not reported by the system."""

    total: int
    available: int


@dataclass(frozen=True)
class Governor:
    """Clock governor of some cores; clocks in MHz are 0 if not reported."""

    cores: tuple[int, ...]
    name: str
    driver: str
    allowed_mhz: float = 0.0
    highest_mhz: float = 0.0


@dataclass(frozen=True)
class Examination:
    """Inventory of a machine; `packages` maps codl's packages to versions, "" if missing.

    `driver_places` are the places searched for OpenCL drivers, with the result. `withheld_cores`
    are faster cores that this process may not use, because of its `cpuset`. `binding` is the
    OpenCL binding in use, or "".
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
    governors: tuple[Governor, ...]
    memory_bytes: int
    available_bytes: int
    cache: Room
    conditions: Conditions
    is_android: bool = False
    driver_places: tuple[str, ...] = ()
    withheld_cores: tuple[int, ...] = ()
    cpuset: str = ""
    binding: str = ""
    #: CPU quota of a control group in cores; None without a limit.
    quota_cores: float | None = None

    @property
    def quota(self) -> str:
        """Message about a CPU quota below the number of cores, or ""."""
        if self.quota_cores is None or self.quota_cores >= len(self.cores):
            return ""
        return (
            f"A CPU quota allows the time of {self.quota_cores:g} of {len(self.cores)} cores: all "
            "threads stand still when it is used up, which makes most runs several times as long."
        )

    @property
    def libraries(self) -> dict[str, str]:
        """Versions of packages, with pyopencl's stand-in in its place if that is in use."""
        versions = {name: version for name, version in self.packages.items() if version}
        if self.binding != "ctypes":
            return versions
        return {**{k: v for k, v in versions.items() if k != "pyopencl"}, STAND_IN: self.codl}

    @property
    def confinement(self) -> str:
        """Message about fast cores that the system withholds from this process, or ""."""
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
        """Remedy of a confinement."""
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
        governors=governors(cores, files),
        memory_bytes=memory.total,
        available_bytes=memory.available,
        cache=room(cache.folder()),
        conditions=ConditionReader(files=files).read(),
        is_android=search.is_android,
        driver_places=tuple(search.places()),
        withheld_cores=withheld_cores([core for core in cores if core not in refused], files),
        cpuset=files.text("proc/self/cpuset"),
        binding=binding(),
        quota_cores=cpu_quota(files),
    )


def is_termux(environment: Mapping[str, str], prefix: str) -> bool:
    """Whether this is Termux on Android; `run-as` and adb do not set its variables."""
    is_its_python = "com.termux" in prefix or "com.termux" in environment.get("PREFIX", "")
    return is_its_python or "TERMUX_VERSION" in environment


def room(folder: Path) -> Room:
    """Free space of a folder, or of its nearest existing parent."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        free = shutil.disk_usage(nearest).free
    except OSError as error:
        return Room(str(folder), 0, str(error))
    if not nearest.is_dir():
        return Room(str(folder), free, f"{nearest} is no folder")
    may = os.access(nearest, os.W_OK | os.X_OK)
    return Room(str(folder), free, "" if may else f"{nearest} may not be written to")


def governors(cores: Collection[int], files: SystemFiles = SYSTEM) -> tuple[Governor, ...]:
    """Governors of the clusters, with their cores among `cores`."""
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
    """Quota of this process's narrowest control group in cores; None without a limit.

    All threads share it; once it is used up, all of them stop until the next period.
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
