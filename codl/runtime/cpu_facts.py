"""What the CPU of this machine is, as a SoC file describes it."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from codl.ir.soc_facts import CoreCluster, CpuCache
from codl.runtime import threads
from codl.runtime.core_facts import big_cores, core_clusters, cpu_caches
from codl.runtime.system_files import SYSTEM

SYSTEM_CPU = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class CpuFacts:
    """A CPU: `cores` are those that may be used, one of each group that shares a physical core;
    `simd_floats` is how many floats ncnn's vectors have.
    """

    name: str
    cores: tuple[int, ...]
    simd_floats: int
    l2_cache_bytes: int
    clusters: tuple[CoreCluster, ...] = ()
    big_cores: tuple[int, ...] = ()
    caches: tuple[CpuCache, ...] = ()


def cpu_facts() -> CpuFacts:
    """Those of this machine."""
    clusters = core_clusters()
    return CpuFacts(
        name=cpu_name(),
        cores=physical_cores(),
        simd_floats=simd_floats(),
        l2_cache_bytes=l2_cache_bytes(),
        clusters=clusters,
        big_cores=big_cores(clusters),
        caches=cpu_caches(),
    )


def physical_cores() -> tuple[int, ...]:
    """The cores that this process may use, one of each group that shares a physical core."""
    firsts: dict[str, int] = {}
    for core in threads.available_cores():
        path = SYSTEM_CPU / f"cpu{core}/topology/thread_siblings_list"
        siblings = path.read_text().strip() if path.exists() else str(core)
        firsts.setdefault(siblings, core)
    return tuple(firsts.values())


def cpu_name() -> str:
    """As the system calls it, else the architecture."""
    for line in _cpuinfo():
        if line.lower().startswith(("model name", "hardware")):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def simd_floats() -> int:
    """Floats in the widest vector that ncnn uses here."""
    flags = next((line for line in _cpuinfo() if line.startswith("flags")), "")
    if " avx512f " in flags:
        return 16
    return 8 if " avx " in flags else 4


def l2_cache_bytes() -> int:
    """Of one core; 512 KiB where the system does not tell."""
    path = SYSTEM_CPU / "cpu0/cache/index2/size"
    if not path.exists():
        return 1 << 19
    text = path.read_text().strip()
    return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def clocks_mhz(cores: Iterable[int]) -> dict[str, float]:
    """The current clock of each of these cores, where the system tells."""
    folder = "sys/devices/system/cpu"
    clocks = {core: SYSTEM.mhz(f"{folder}/cpu{core}/cpufreq/scaling_cur_freq") for core in cores}
    return {str(core): mhz for core, mhz in clocks.items() if mhz is not None}
