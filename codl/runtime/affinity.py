"""The cores of the CPU side's threads: as a person names them, or the big or the little ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from codl.errors import CodlError
from codl.runtime.placement import LocalSoc
from codl.runtime.system_files import SYSTEM, SystemFiles
from codl.runtime.threads import available_cores

CPUS = "sys/devices/system/cpu"
#: What tells a core's speed, the first that a machine has.
SPEEDS = ("cpu_capacity", "cpufreq/cpuinfo_max_freq")
KINDS = ("none", "big", "little")


def speeds(cores: Sequence[int], system: SystemFiles = SYSTEM) -> dict[int, float]:
    """A core's capacity or highest clock; 1 for all where the machine does not tell."""
    for name in SPEEDS:
        found = {core: system.number(f"{CPUS}/cpu{core}/{name}") for core in cores}
        known = {core: speed for core, speed in found.items() if speed is not None}
        if len(known) == len(found):
            return known
    return dict.fromkeys(cores, 1.0)


def cores_of(affinity: str, cores: Sequence[int], speed: Mapping[int, float]) -> tuple[int, ...]:
    """The cores that an affinity names; big ones are the fastest, little ones all that are slower.

    Where all cores are alike, they are big and little. Raises `CodlError` for a core that is not
    there, or a text that names none.
    """
    if affinity == "none":
        return tuple(cores)
    if affinity in ("big", "little"):
        fastest = max(speed.values())
        big = tuple(core for core in cores if speed[core] == fastest)
        little = tuple(core for core in cores if speed[core] < fastest)
        return big if affinity == "big" else little or big
    try:
        named = tuple(dict.fromkeys(int(part) for part in affinity.split(",")))
    except ValueError as error:
        raise CodlError(
            f"Cannot read the CPU affinity {affinity!r}: expected {', '.join(KINDS)}, or cores "
            "such as 0,1."
        ) from error
    for core in named:
        if core not in cores:
            known = ", ".join(map(str, cores))
            raise CodlError(f"There is no core {core} for the CPU side, only {known}.")
    return named


def with_cores(soc: LocalSoc, affinity: str | None, threads: int | None) -> LocalSoc:
    """The SoC on other cores, or with another number of threads on them.

    Cores that an OpenCL device works on are never shared. Raises `CodlError` for more threads than
    cores.
    """
    if affinity is None and threads is None:
        return soc
    cores = soc.placement.cpu_cores
    if affinity is not None:
        free = tuple(c for c in available_cores() if c not in soc.placement.gpu_cores)
        cores = cores_of(affinity, free, speeds(free))
    if threads is not None and not 1 <= threads <= len(cores):
        raise CodlError(
            f"{threads} threads need as many cores, the CPU side has {len(cores)} "
            f"({', '.join(map(str, cores))}): give {'1 to ' if len(cores) > 1 else ''}{len(cores)}."
        )
    return replace(soc, placement=replace(soc.placement, cpu_cores=cores, cpu_threads=threads or 0))
