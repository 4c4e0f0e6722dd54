"""Reading of system files (Linux's /sys and /proc).

Files may vanish during a read, be readable for root only, be empty, or hold text instead of a
number; each case gives no value and no error. Drivers use different units: the magnitude of a
number decides on its unit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

#: Most bytes to read of a file.
MOST_BYTES = 1 << 16
#: Bounds of a working processor's temperature in degrees Celsius; a disabled sensor reads 0.
COLDEST_C, HOTTEST_C = 0.0, 150.0
#: Largest temperature in degrees, and in tenths of a degree; larger numbers are thousandths.
MOST_DEGREES, MOST_TENTHS = 200.0, 2000.0
#: Smallest clock in Hz, and in kHz; smaller numbers are MHz. Clocks are 10 MHz to 10 GHz.
LEAST_HZ, LEAST_KHZ = 1e7, 1e4
#: Smallest voltage of a battery in microvolts, and in millivolts; smaller numbers are volts.
LEAST_UV, LEAST_MV = 1e6, 1e3
#: Smallest current in microamperes; smaller numbers are milliamperes.
LEAST_UA = 1e4
SUPPLIES = "sys/class/power_supply"
CPU = "sys/devices/system/cpu"
KGSL = "sys/class/kgsl/kgsl-3d0"
#: Folder names of GPUs below `sys/class/devfreq`.
DEVFREQ = re.compile(r"gpu|mali|kgsl|g3d|gv11b|ga10b|gp10b", re.IGNORECASE)
#: Valid names of governors.
GOVERNOR = re.compile(r"[\w-]{1,32}", re.ASCII)


class SystemFiles:
    """Files below a root (`/`, or a similar tree); paths and patterns are relative to it."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def find(self, pattern: str) -> list[str]:
        """Sorted paths that match a pattern; empty if a folder cannot be listed."""
        try:
            return [str(path.relative_to(self.root)) for path in sorted(self.root.glob(pattern))]
        except OSError:
            return []

    def read(self, path: str) -> str:
        """The stripped text of a file; raises `OSError`. Never blocks."""
        descriptor = os.open(self.root / path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            content = os.read(descriptor, MOST_BYTES)
        finally:
            os.close(descriptor)
        return content.decode(errors="replace").strip("\0 \t\r\n")

    def text(self, path: str) -> str:
        """The stripped text of a file; empty if unreadable."""
        try:
            return self.read(path)
        except OSError:
            return ""

    def number(self, path: str) -> float | None:
        """The number at the start of a file; None without one."""
        return _number(self.text(path))

    def celsius(self, path: str) -> float | None:
        """A processor's temperature in degrees Celsius; None if missing or impossible."""
        value = self.number(path)
        if value is None:
            return None
        scale = 1.0 if value <= MOST_DEGREES else 0.1 if value <= MOST_TENTHS else 1e-3
        return scale * value if COLDEST_C < scale * value < HOTTEST_C else None

    def mhz(self, path: str) -> float | None:
        """A clock in MHz; None if missing or 0."""
        value = self.number(path)
        if value is None or value <= 0:
            return None
        return value * (1e-6 if value >= LEAST_HZ else 1e-3 if value >= LEAST_KHZ else 1.0)

    def batteries(self) -> Iterator[Battery]:
        """Batteries of the device itself, without those of mice or pens."""
        for folder in self.find(f"{SUPPLIES}/*"):
            kind, scope = self.text(f"{folder}/type"), self.text(f"{folder}/scope")
            if kind == "Battery" and scope != "Device":
                yield Battery(self, folder)

    @property
    def is_plugged_in(self) -> bool:
        """Whether a supply other than a battery is online."""
        supplies = self.find(f"{SUPPLIES}/*")
        others = [folder for folder in supplies if self.text(f"{folder}/type") != "Battery"]
        return any(self.number(f"{folder}/online") == 1 for folder in others)


#: The files of this machine.
SYSTEM = SystemFiles()


@dataclass(frozen=True)
class Battery:
    """A battery, by its folder."""

    files: SystemFiles
    folder: str

    @property
    def name(self) -> str:
        return self.folder.rsplit("/", 1)[-1]

    @property
    def status(self) -> str:
        """Charging, Discharging, Full, Not charging, Unknown, or empty."""
        return self.files.text(f"{self.folder}/status")

    @property
    def percent(self) -> float | None:
        value = self.files.number(f"{self.folder}/capacity")
        return value if value is not None and 0 <= value <= 100 else None

    @property
    def is_charging(self) -> bool:
        """Whether it is charging or full; without a status, whether the device is plugged in."""
        if self.status in ("Charging", "Full"):
            return True
        return self.status not in ("Discharging", "Not charging") and self.files.is_plugged_in

    def watts(self) -> float:
        """Power of the battery in watts, without sign; raises `OSError`."""
        power = self.files.number(f"{self.folder}/power_now")
        if power is not None:
            return abs(1e-6 * power)
        current, voltage = (self._number(name) for name in ("current_now", "voltage_now"))
        amperes = current * (1e-6 if current >= LEAST_UA else 1e-3)
        return (
            amperes
            * voltage
            * (1e-6 if voltage >= LEAST_UV else 1e-3 if voltage >= LEAST_MV else 1.0)
        )

    def _number(self, name: str) -> float:
        value = _number(self.files.read(f"{self.folder}/{name}"))
        if value is None:
            raise OSError(f"{self.folder}/{name} holds no number")
        return abs(value)


def _number(text: str) -> float | None:
    """The number at the start of a text, such as 45 of "45 C"; None without one."""
    words = text.split()
    try:
        value = float(words[0]) if words else float("inf")
    except ValueError:
        return None
    return value if isfinite(value) else None


@dataclass(frozen=True)
class Cluster:
    """Cores that share a clock; `folder` has the files of their `cpufreq` policy."""

    folder: str
    cores: tuple[int, ...]

    @property
    def name(self) -> str:
        """The kernel's name, such as policy4, or cpu4 without policies."""
        return next(part for part in reversed(self.folder.split("/")) if part[-1].isdigit())


@dataclass(frozen=True)
class GpuFiles:
    """Files of a GPU's clock; `devfreq` is the folder of its governor.

    `level` is a file with a number above 0 while heat reduces the clock, or "".
    """

    devfreq: str
    clocks: tuple[str, ...]
    temperature: str = ""
    level: str = ""


def clusters(files: SystemFiles = SYSTEM) -> list[Cluster]:
    """Clusters of cores; empty if the machine does not report clocks."""

    def cores(text: str) -> tuple[int, ...]:
        return tuple(int(digits) for digits in re.findall(r"\d{1,4}", text))

    folders = files.find(f"{CPU}/cpufreq/policy[0-9]*") or files.find(f"{CPU}/cpu[0-9]*/cpufreq")
    some = [Cluster(folder, cores(files.text(f"{folder}/related_cpus"))) for folder in folders]
    return [
        cluster if cluster.cores else Cluster(cluster.folder, cores(cluster.name))
        for cluster in some
    ]


def gpu_files(files: SystemFiles = SYSTEM) -> GpuFiles | None:
    """Files of an Adreno GPU, or of another GPU with a clock set by the kernel's `devfreq`."""
    if files.find(KGSL):
        clocks = tuple(f"{KGSL}/{x}" for x in ("gpuclk", "clock_mhz", "devfreq/cur_freq"))
        return GpuFiles(f"{KGSL}/devfreq", clocks, f"{KGSL}/temp", f"{KGSL}/thermal_pwrlevel")
    for folder in files.find("sys/class/devfreq/*"):
        if DEVFREQ.search(folder.rsplit("/", 1)[-1]):
            return GpuFiles(devfreq=folder, clocks=(f"{folder}/cur_freq",))
    return None


def control_groups(files: SystemFiles, controller: str) -> Iterator[tuple[str, bool]]:
    """Folders of this process's control groups for a controller, from the innermost outwards.

    Each comes with whether it is of version 1. In a container a path may be the host's; the last
    folder is then the container's own.
    """
    for line in files.text("proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = f"sys/fs/cgroup/{controller}" if controllers else "sys/fs/cgroup"
        for folder in (Path(path), *Path(path).parents):
            yield f"{root}{folder}", bool(controllers)
