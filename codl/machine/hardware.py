"""Facts of this machine: chip and board, clusters of equal cores, caches, Python packages.

Names come from the device tree, Android's properties or the firmware; the rest from Linux's files.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from codl.errors import BASE, PACKAGES
from codl.ir.environment import Environment
from codl.ir.records.soc import CacheKind, Chip, CoreCluster, CpuCache
from codl.ir.yaml_file import NotNegative
from codl.machine import threads
from codl.machine.system_files import CPU, SYSTEM, SystemFiles
from codl.machine.threads import INITIAL_CORES

#: Names of Arm cores by implementer and part of the register MIDR_EL1 (see the cores' manuals).
ARM_PARTS = {
    (0x41, 0xD03): "Cortex-A53", (0x41, 0xD04): "Cortex-A35", (0x41, 0xD05): "Cortex-A55",
    (0x41, 0xD07): "Cortex-A57", (0x41, 0xD08): "Cortex-A72", (0x41, 0xD09): "Cortex-A73",
    (0x41, 0xD0A): "Cortex-A75", (0x41, 0xD0B): "Cortex-A76", (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD0D): "Cortex-A77", (0x41, 0xD41): "Cortex-A78", (0x41, 0xD42): "Cortex-A78AE",
    (0x41, 0xD44): "Cortex-X1", (0x41, 0xD46): "Cortex-A510", (0x41, 0xD47): "Cortex-A710",
    (0x41, 0xD48): "Cortex-X2", (0x41, 0xD4D): "Cortex-A715", (0x41, 0xD4E): "Cortex-X3",
}  # fmt: skip
#: Files with a core's speed, in order of preference. A core is little if its value is below this
#: share of the fastest core's; clocks differ less than speeds.
SPEEDS = {"cpu_capacity": 0.5, "cpufreq/cpuinfo_max_freq": 0.8}
#: Upper bound of clocks in MHz and of capacities.
MOST = 1e5
#: Least ratio of speeds of equal cores: some PCs give one or two of equal cores a higher clock.
ALIKE = 0.9
#: Folders of the device tree, of the kernel's SoC facts, and of a PC's firmware facts.
TREE, SOC, FIRMWARE = "proc/device-tree", "sys/devices/soc0", "sys/class/dmi/id"
#: Most characters of a name, and most names of the device tree.
MOST_CHARACTERS, MOST_ENTRIES = 100, 16
GETPROP_S = 2.0
_CORE = re.compile(r"cpu(\d{1,4})")
_SIZE = re.compile(r"(\d{1,9})([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_KINDS: tuple[str, ...] = get_args(CacheKind)


@dataclass(frozen=True)
class CpuFacts:
    """A CPU; `cores` are usable cores, one per physical core, in the order of `by_nearness`.

    The first `near` cores are of one kind and NUMA node; 0 means all. `simd_floats` is the number
    of floats in ncnn's vectors.
    """

    name: str
    cores: tuple[int, ...]
    simd_floats: int
    l2_cache_bytes: int
    clusters: tuple[CoreCluster, ...] = ()
    caches: tuple[CpuCache, ...] = ()
    near: NotNegative = 0


def cpu_facts() -> CpuFacts:
    """Facts about this machine's CPU."""
    path, clusters = Path("/proc/cpuinfo"), core_clusters()
    lines = path.read_text().splitlines() if path.exists() else []
    named = (x.split(":", 1)[1] for x in lines if x.lower().startswith(("model name", "hardware")))
    flags = next((line for line in lines if line.startswith("flags")), "")
    l2_bytes = _bytes(SYSTEM.text(f"{CPU}/cpu0/cache/index2/size"))
    cores = by_nearness(physical_cores())
    return CpuFacts(
        name=next(named, platform.machine()).strip(),
        cores=cores,
        simd_floats=16 if " avx512f " in flags else 8 if " avx " in flags else 4,
        l2_cache_bytes=l2_bytes or 1 << 19,  # default if the system does not report it
        clusters=clusters,
        caches=cpu_caches(),
        near=near_cores(cores),
    )


def physical_cores(
    cores: Iterable[int] | None = None, files: SystemFiles = SYSTEM
) -> tuple[int, ...]:
    """The first core of each physical core, by default among this process's available cores."""
    firsts: dict[str, int] = {}
    for core in threads.available_cores() if cores is None else cores:
        siblings = files.text(f"{CPU}/cpu{core}/topology/thread_siblings_list")
        firsts.setdefault(siblings or str(core), core)
    return tuple(firsts.values())


def by_nearness(cores: Sequence[int], files: SystemFiles = SYSTEM) -> tuple[int, ...]:
    """The cores in the order of preference for threads, so that the first few are neighbours.

    One core of each physical core precedes its siblings, and fast cores precede little ones. The
    largest NUMA node comes first, and in it the largest group of cores with a common cache.
    """
    homes, physical = _homes(cores, files), {*physical_cores(cores, files)}
    nodes, groups = defaultdict[Hashable, list[int]](list), defaultdict[Home, list[int]](list)
    for core, home in sorted(homes.items()):
        nodes[home[:2]].append(core)
        groups[home].append(core)

    def rank(core: int) -> tuple[int, ...]:
        home = homes[core]
        node, group = nodes[home[:2]], groups[home]
        order = core not in physical, home.is_little, -len(node), node[0], -len(group), group[0]
        return *order, core

    return tuple(sorted(cores, key=rank))


def near_cores(cores: Sequence[int], files: SystemFiles = SYSTEM) -> int:
    """Number of cores of the first one's kind and NUMA node, in the order of `by_nearness`."""
    homes = _homes(cores, files)
    return sum(homes[core][:2] == homes[cores[0]][:2] for core in cores)


class Home(NamedTuple):
    """Location of a core: whether it is little, its NUMA node, and the sharers of its last cache.

    Texts are empty if not reported by the system.
    """

    is_little: bool
    node: str
    sharers: str


def _homes(cores: Sequence[int], files: SystemFiles) -> dict[int, Home]:
    name, speed = _speeds(cores, files)
    least = SPEEDS.get(name, 0.0) * max(speed.values(), default=0.0)

    def sharers(folder: str) -> str:
        """Cores that share the highest cache, or the package if no cache is known."""
        caches = files.find(f"{folder}/cache/index*")
        caches.sort(key=lambda cache: files.number(f"{cache}/level") or 0.0, reverse=True)
        shared = [files.text(f"{cache}/shared_cpu_list") for cache in caches[:1]]
        return "".join(shared) or files.text(f"{folder}/topology/core_siblings_list")

    homes = {}
    for core in cores:
        folder = f"{CPU}/cpu{core}"
        node = next(iter(files.find(f"{folder}/node[0-9]*")), "").rsplit("/", 1)[-1]
        homes[core] = Home(speed[core] < least, node, sharers(folder))
    return homes


def _speeds(cores: Sequence[int], files: SystemFiles) -> tuple[str, dict[int, float]]:
    """The file in `SPEEDS` with the cores' speeds, and these; "" and 1 if there is none."""
    for name in SPEEDS:
        numbers = {core: files.number(f"{CPU}/cpu{core}/{name}") for core in cores}
        known = {core: speed for core, speed in numbers.items() if speed is not None}
        if len(known) == len(numbers):
            return name, known
    return "", dict.fromkeys(cores, 1.0)


def core_clusters(files: SystemFiles = SYSTEM) -> tuple[CoreCluster, ...]:
    """All cores, grouped by kind, capacity and highest clock, the slowest group first."""
    matches = (_CORE.fullmatch(path.rsplit("/", 1)[-1]) for path in files.find(f"{CPU}/cpu[0-9]*"))
    alike: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for core in sorted(int(match[1]) for match in matches if match):
        folder = f"{CPU}/cpu{core}"
        most_mhz = _whole(files.mhz(f"{folder}/cpufreq/cpuinfo_max_freq"))
        capacity = _whole(files.number(f"{folder}/cpu_capacity"))
        alike[capacity, most_mhz, _arm_part(files, core)].append(core)
    return tuple(
        CoreCluster(part or "core", len(cores), most_mhz, capacity, tuple(cores))
        for (capacity, most_mhz, part), cores in sorted(alike.items())
    )


def _whole(value: float | None) -> int:
    """A clock in MHz or a capacity as an integer; 0 if unknown or impossible."""
    return round(value) if value is not None and 0 < value < MOST else 0


def _arm_part(files: SystemFiles, core: int) -> str:
    """Name of an Arm core; empty for other and for unknown cores."""
    try:
        register = int(files.text(f"{CPU}/cpu{core}/regs/identification/midr_el1"), 16)
    except ValueError:
        return ""
    return ARM_PARTS.get((register >> 24 & 0xFF, register >> 4 & 0xFFF), "")


def withheld_cores(allowed: Collection[int], files: SystemFiles = SYSTEM) -> tuple[int, ...]:
    """Cores that a process may not use, and that are faster than one that it may use."""
    online = _listed_cores(files.text(f"{CPU}/online"))
    _, speed = _speeds(sorted({*online, *allowed}), files)
    slowest = min((speed[core] for core in allowed), default=0.0)
    others = online.difference(allowed)
    return tuple(sorted(core for core in others if ALIKE * speed[core] > slowest))


def _listed_cores(text: str) -> set[int]:
    """Cores of a list such as 0-3,8."""
    ranges = re.findall(r"(\d{1,4})(?:-(\d{1,4}))?", text)
    return {core for first, last in ranges for core in range(int(first), int(last or first) + 1)}


def cpu_caches(files: SystemFiles = SYSTEM) -> tuple[CpuCache, ...]:
    """Caches of all cores by level; equal caches are one entry."""
    each: dict[tuple[int, str, int, int], set[str]] = defaultdict(set)
    for path in files.find(f"{CPU}/cpu[0-9]*/cache/index*"):
        level, size = files.number(f"{path}/level"), _bytes(files.text(f"{path}/size"))
        kind, sharing = files.text(f"{path}/type").lower(), files.text(f"{path}/shared_cpu_list")
        if level and 1 <= level < 10 and size and kind in _KINDS:
            sharers = max(1, len(_listed_cores(sharing)))
            each[int(level), kind, size, sharers].add(sharing or path)
    return tuple(
        CpuCache(level, kind, size, shared_by, len(places))  # type: ignore[arg-type]
        for (level, kind, size, shared_by), places in sorted(each.items())
    )


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    return int(match[1]) * _UNITS[match[2]] if match else 0


def read_chip(files: SystemFiles = SYSTEM, property_of: Callable[[str], str] | None = None) -> Chip:
    """Chip and board of this machine, as far as the system reports them.

    `property_of` reads an Android property by name, and returns "" for a missing one.
    """
    android = property_of or read_property
    # Entries of the device tree are separated by zero bytes.
    entries = files.text(f"{TREE}/compatible").split("\0")[:MOST_ENTRIES]
    compatible = tuple(filter(None, map(_name, entries)))
    soc_id = files.text(f"{SOC}/soc_id")
    chips = (
        android("ro.soc.model"),
        files.text(f"{SOC}/machine"),
        "" if soc_id.isdigit() else soc_id,
        compatible[-1] if compatible else "",
        android("ro.board.platform"),
    )
    maker, product = (_name(files.text(f"{FIRMWARE}/{x}")) for x in ("sys_vendor", "product_name"))
    model = files.text(f"{TREE}/model")
    boards = (android("ro.product.model"), model, f"{maker} {product}".strip())
    chip, board = (next(filter(None, map(_name, names)), "") for names in (chips, boards))
    return Chip(chip, board, compatible)


def read_property(name: str) -> str:
    """An Android property; empty on other systems, or if `getprop` fails."""
    program = shutil.which("getprop")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GETPROP_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace") if done.returncode == 0 else ""


def _name(text: str) -> str:
    """A text as a name: one printable line of at most `MOST_CHARACTERS`."""
    line = text.strip().splitlines()[0].strip() if text.strip() else ""
    return "".join(character for character in line if character.isprintable())[:MOST_CHARACTERS]


# Installed Python packages, and the environment of the libraries' computations.

#: Packages that compute ops in some kernel variant.
COMPUTING = ("ncnn", "numpy", "onnxruntime", "openvino")
#: Name of pyopencl's stand-in, which has codl's version.
STAND_IN = "codl.runtime.cl_ctypes"
#: Modules of the OpenCL bindings by name. A process loads one binding.
BINDINGS = {"pyopencl": "pyopencl", "ctypes": STAND_IN}


def binding() -> str:
    """The OpenCL binding loaded by this process, or ""."""
    return next((name for name, module in BINDINGS.items() if module in sys.modules), "")


def versions() -> dict[str, str]:
    """Versions of all base packages and packages of extras; "" if missing."""
    names = [*BASE.values(), *(name for extra in PACKAGES.values() for name in extra.values())]
    return {name: version_of(name) for name in dict.fromkeys(names)}


def version_of(name: str) -> str:
    """Version of a package; "" if not installed."""
    from importlib import metadata  # engines import this module for its cores

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def library_environment(protocol: Mapping[str, Any], *, threads: int) -> Environment:
    """The environment of the libraries' computations on this machine, without an OpenCL device."""
    return Environment(
        machine=cpu_facts().name,
        system=f"{platform.system()} {platform.machine()}",
        cpu_cores=INITIAL_CORES,
        threads=threads,
        libraries={name: version for name, version in versions().items() if version},
        protocol=dict(protocol),
    )
