"""Sensors of this machine: energy, and conditions of a measurement (heat, clocks, battery).

Three kinds of energy sensor are read directly: RAPL's counters of CPU packages
(`/sys/class/powercap`); batteries (`/sys/class/power_supply`), with sampled and integrated power;
and NVIDIA's GPUs through the driver's NVML, also for temperatures and clocks. Virtual machines have
none; some machines let only root read.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Literal, TypeAlias

from codl.ir.records.results import Conditions
from codl.ir.types import PROCESSORS, Processor
from codl.machine.system_files import (
    GOVERNOR,
    SYSTEM,
    Battery,
    SystemFiles,
    clusters,
    control_groups,
    gpu_files,
)

if TYPE_CHECKING:
    from codl.machine.placement import LocalSoc


LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96
#: NVML's numbers of the sensor on the chip, and of the clock of the multiprocessors.
_CHIP, _SM = 0, 1
#: NVML's reasons for a clock reduced by heat or the power supply: slowdown by the hardware, thermal
#: slowdown by the driver, thermal slowdown by the hardware, and power brake.
_HELD_DOWN = 0x8 | 0x20 | 0x40 | 0x80
#: Seconds between two readings of a power sensor.
PERIOD_S = 0.05
#: The measured part: a processor with its memory, or the whole device.
Part: TypeAlias = Literal["cpu", "gpu", "device"]


@dataclass(frozen=True)
class NvidiaGpu:
    """An NVIDIA GPU; `read` returns joules since the driver was loaded, or watts if `is_power`.

    `celsius`, `mhz` and `is_held_down` read present values; all raise `OSError`.
    """

    name: str
    read: Callable[[], float]
    is_power: bool
    #: The name without the number.
    model: str
    celsius: Callable[[], float]
    mhz: Callable[[], float]
    is_held_down: Callable[[], bool]


@cache
def _nvml() -> ctypes.CDLL | None:
    """Initialised NVML; None without the library or a device."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library


def nvidia_gpus() -> list[NvidiaGpu]:
    """NVIDIA's GPUs of this machine; those before Volta report power, later ones energy."""
    library, count = _nvml(), ctypes.c_uint()
    if library is None:
        return []
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return [_nvidia_gpu(library, index) for index in range(count.value)]


def _nvidia_gpu(library: ctypes.CDLL, index: int) -> NvidiaGpu:
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    library.nvmlDeviceGetName(handle, name, _NAME_BYTES)
    model = name.value.decode(errors="replace")

    def reader(
        function: str, kind: type[ctypes.c_uint | ctypes.c_ulonglong], *which: int
    ) -> Callable[[], int]:
        """A reader of a number through an NVML function; `which` are its other arguments."""

        def read() -> int:
            value = kind()
            if code := getattr(library, function)(handle, *which, ctypes.byref(value)):
                raise OSError(f"NVML refuses with code {code}")
            return int(value.value)

        return read

    energy = reader("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
    power = reader("nvmlDeviceGetPowerUsage", ctypes.c_uint)
    reasons = reader("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
    try:
        energy()
        is_power = False
    except OSError:
        is_power = True
    return NvidiaGpu(
        name=f"{index} {model}",
        read=lambda: 1e-3 * (power() if is_power else energy()),  # millijoules and milliwatts
        is_power=is_power,
        model=model,
        celsius=reader("nvmlDeviceGetTemperature", ctypes.c_uint, _CHIP),
        mhz=reader("nvmlDeviceGetClockInfo", ctypes.c_uint, _SM),
        is_held_down=lambda: bool(reasons() & _HELD_DOWN),
    )


@dataclass(frozen=True)
class Sensor:
    """An energy sensor; `read` returns joules from any start, or watts if `is_power`.

    It raises `OSError`. A counter of joules wraps at `wraps_j`.
    """

    name: str
    part: Part
    read: Callable[[], float]
    is_power: bool = False
    wraps_j: float | None = None

    def difference(self, before: float, after: float) -> float:
        """Joules between two readings of a counter, which may have wrapped once."""
        wrapped = self.wraps_j if after < before and self.wraps_j else 0.0
        return after + wrapped - before


def find_sensors(
    files: SystemFiles = SYSTEM, *, gpus: Callable[[], list[NvidiaGpu]] = nvidia_gpus
) -> tuple[tuple[Sensor, ...], dict[str, str]]:
    """Sensors among the system's files and NVIDIA's GPUs, and errors of unreadable ones by name."""
    candidates = [*_rapl(files), *map(_of_battery, files.batteries())]
    candidates += [
        Sensor(f"nvml {gpu.name}", "gpu", gpu.read, is_power=gpu.is_power) for gpu in gpus()
    ]
    sensors, unreadable = [], {}
    for sensor in candidates:
        try:
            sensor.read()
            sensors.append(sensor)
        except (OSError, ValueError) as error:
            unreadable[sensor.name] = str(error)
    return tuple(sensors), unreadable


def _rapl(files: SystemFiles) -> Iterator[Sensor]:
    """Sensors of CPU packages; excludes domains (parts of one) and `psys` (more than the CPU)."""

    def joules(path: str) -> float:
        return 1e-6 * int(files.read(path))

    for zone in files.find("sys/class/powercap/intel-rapl:*"):
        name = files.text(f"{zone}/name")
        if name.startswith("package") and zone.count(":") == 1:
            most = files.number(f"{zone}/max_energy_range_uj")
            read = partial(joules, f"{zone}/energy_uj")
            yield Sensor(f"rapl {name}", "cpu", read, wraps_j=most * 1e-6 if most else None)


def _of_battery(battery: Battery) -> Sensor:
    """Sensor of a battery: power of the whole device while discharging."""

    def read() -> float:
        if battery.status != "Discharging":
            raise OSError(
                f"the battery reports the device's power only while discharging: {battery.status}"
            )
        return battery.watts()

    return Sensor(f"power_supply {battery.name}", "device", read, is_power=True)


def _reading(read: Callable[[], float]) -> float | None:
    """The reading of a sensor; None if unreadable."""
    with suppress(OSError, ValueError):
        return float(read())
    return None


class Meter:
    """Joules by sensor of a `with` block, without failed sensors."""

    def __init__(self, sensors: Sequence[Sensor]) -> None:
        self.joules: dict[str, float] = {}
        self._sensors = tuple(sensors)
        self._counted = {s.name: _reading(s.read) for s in sensors if not s.is_power}
        self._sampled = [s for s in sensors if s.is_power]
        self._summed = dict.fromkeys((s.name for s in self._sampled), 0.0)
        self._done = Event()
        self._sampler = Thread(target=self._sample, daemon=True)
        if self._sampled:
            self._sampler.start()

    @property
    def total_joules(self) -> float | None:
        """Joules of the whole device if a sensor measures it, else the sum of its parts."""
        parts = {s.name: s.part for s in self._sensors}
        whole = [j for name, j in self.joules.items() if parts[name] == "device"]
        return sum(whole or self.joules.values()) if self.joules else None

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        if self._sampled:
            self._sampler.join()
        for sensor in self._sensors:
            if sensor.name in self._summed:
                self.joules[sensor.name] = self._summed[sensor.name]
            elif not sensor.is_power:
                before, after = self._counted[sensor.name], _reading(sensor.read)
                if before is not None and after is not None:
                    self.joules[sensor.name] = sensor.difference(before, after)

    def _sample(self) -> None:
        """Integrate power by trapezoids between readings."""

        def watts() -> dict[str, float | None]:
            return {sensor.name: _reading(sensor.read) for sensor in self._sampled}

        at, last, over = time.perf_counter(), watts(), False
        while not over:
            over = self._done.wait(PERIOD_S)
            now, readings = time.perf_counter(), watts()
            for name, after in readings.items():
                before = last[name]
                if after is None or before is None:
                    self._summed.pop(name, None)
                elif name in self._summed:
                    self._summed[name] += 0.5 * (before + after) * (now - at)
            at, last = now, readings


def energy_mj(
    work: Callable[[], object], sensors: Sequence[Sensor], *, at_least_s: float = 1.0
) -> float | None:
    """Millijoules of one `work`, including idle power; None without a sensor.

    Repeats `work` for `at_least_s`, as drivers update sensors every 1 to 100 milliseconds.
    """
    if not sensors:
        return None
    count, begin = 0, time.perf_counter()
    with Meter(sensors) as meter:
        while time.perf_counter() - begin < at_least_s:
            work()
            count += 1
    total = meter.total_joules
    return None if total is None else 1e3 * total / count


THERMAL = "sys/class/thermal"
#: Types of thermal zones on a processor. Qualcomm's `soc` is the battery's.
ZONES = re.compile(
    r"cpu|gpu|g3d|tsens|cluster|core|pkg|soc.?therm|^tj|^(big|mid|little)$", re.IGNORECASE
)
#: Thermal zone of machines without one on a processor.
BOARD = re.compile(r"acpitz", re.IGNORECASE)
#: Types of cooling devices that reduce a processor's clocks, or stop some of its cores.
COOLING: dict[Processor, re.Pattern[str]] = {
    "cpu": re.compile(r"cpu|cluster|^processor$|powerclamp", re.IGNORECASE),
    "gpu": re.compile(r"gpu|kgsl|mali|g3d|devfreq", re.IGNORECASE),
}


class ConditionReader:
    """Reads the conditions of this machine for a SoC.

    Files are located once, and read every time. The highest limit of a clock read so far counts as
    the limit without heat, so a user's limit is normal.
    """

    def __init__(
        self,
        soc: LocalSoc | None = None,
        files: SystemFiles = SYSTEM,
        *,
        gpus: Callable[[], list[NvidiaGpu]] = nvidia_gpus,
    ) -> None:
        self._files, self._clusters = files, clusters(files)
        self._cpu_cores: Collection[int] = soc.placement.cpu_cores if soc else ()
        self._gpu_cores: Collection[int] = soc.placement.gpu_cores if soc else ()
        self._is_one_cpu = soc is not None and soc.gpu.is_cpu
        self._gpu = None if self._is_one_cpu else gpu_files(files)
        self._card = _card(soc, gpus)
        self._zones = _zones(files)
        if self._gpu and self._gpu.temperature:
            self._zones.append(self._gpu.temperature)
        devices = files.find(f"{THERMAL}/cooling_device*")
        kinds = {device: files.text(f"{device}/type") for device in devices}
        self._cooling = {
            side: [device for device, kind in kinds.items() if pattern.search(kind)]
            for side, pattern in COOLING.items()
        }
        self._limits: dict[str, float] = {}
        self._groups = [folder for folder, _ in control_groups(files, "cpu")]
        self._stopped = self._quota_periods()

    def read(self) -> Conditions:
        """The present conditions."""
        batteries = list(self._files.batteries())
        fullest = max(batteries, key=lambda battery: battery.percent or 0, default=None)
        degrees = [self._files.celsius(path) for path in self._zones]
        degrees.append(_reading(self._card.celsius) if self._card else None)
        throttled = self._throttled()
        return Conditions(
            temperature_c=max((c for c in degrees if c is not None), default=None),
            cpu_mhz=self._cores_mhz(self._cpu_cores),
            gpu_mhz=self._gpu_mhz(),
            battery_percent=fullest.percent if fullest else None,
            is_charging=fullest.is_charging if fullest else None,
            throttled=tuple(side for side in PROCESSORS if side in throttled),
            governors=self._governors(),
            quota_periods=max(0, self._quota_periods() - self._stopped) if self._groups else None,
        )

    def _quota_periods(self) -> int:
        """Number of periods in which a quota stopped this process's control groups."""
        found = []
        for folder in self._groups:
            lines = map(str.split, self._files.text(f"{folder}/cpu.stat").splitlines())
            counts = dict(words for words in lines if len(words) == 2)
            if counts.get("nr_throttled", "").isdigit():
                found.append(int(counts["nr_throttled"]))
        return max(found, default=0)

    def _folders(self, cores: Collection[int]) -> list[str]:
        """Folders of the clusters with some of `cores`; of all clusters if `cores` is empty."""
        clusters = self._clusters
        return [cluster.folder for cluster in clusters if not cores or {*cluster.cores} & {*cores}]

    def _cores_mhz(self, cores: Collection[int]) -> float | None:
        """Highest clock in MHz among the clusters of `cores`, as idle clusters are slow."""
        clocks = [self._files.mhz(f"{folder}/scaling_cur_freq") for folder in self._folders(cores)]
        return max((mhz for mhz in clocks if mhz is not None), default=None)

    def _gpu_mhz(self) -> float | None:
        if self._is_one_cpu:
            return self._cores_mhz(self._gpu_cores)
        if self._card:
            return _reading(self._card.mhz)
        clocks = map(self._files.mhz, self._gpu.clocks if self._gpu else ())
        return next((mhz for mhz in clocks if mhz is not None), None)

    def _throttled(self) -> set[Processor]:
        held: set[Processor] = set()
        for side in PROCESSORS:
            if any((self._files.number(f"{x}/cur_state") or 0) > 0 for x in self._cooling[side]):
                held.add(side)
        folders = self._folders({*self._cpu_cores, *self._gpu_cores})
        # Every limit is read, to update its highest value so far.
        lowered = [self._is_lowered(f"{folder}/scaling_max_freq") for folder in folders]
        if any(lowered):
            held.add("cpu")
        if self._gpu:
            level = self._files.number(self._gpu.level) if self._gpu.level else None
            if self._is_lowered(f"{self._gpu.devfreq}/max_freq") or (level or 0) > 0:
                held.add("gpu")
        if self._card and _reading(self._card.is_held_down):
            held.add("gpu")
        if self._is_one_cpu:
            return {*PROCESSORS} if "cpu" in held else set()
        return held

    def _is_lowered(self, path: str) -> bool:
        """Whether a clock limit is below its highest value so far."""
        limit = self._files.mhz(path)
        if limit is None:
            return False
        most = self._limits[path] = max(limit, self._limits.get(path, 0.0))
        return limit < most

    def _governors(self) -> dict[str, str]:
        paths = {cluster.name: f"{cluster.folder}/scaling_governor" for cluster in self._clusters}
        if self._gpu:
            paths["gpu"] = f"{self._gpu.devfreq}/governor"
        names = {name: self._files.text(path) for name, path in paths.items()}
        return {name: governor for name, governor in names.items() if GOVERNOR.fullmatch(governor)}


def _card(soc: LocalSoc | None, gpus: Callable[[], list[NvidiaGpu]]) -> NvidiaGpu | None:
    """The SoC's GPU if it is NVIDIA's; None if several GPUs have its name."""
    if soc is None or soc.gpu.is_cpu:
        return None
    alike = [gpu for gpu in gpus() if gpu.model == soc.gpu.name]
    return alike[0] if len(alike) == 1 else None


def _zones(files: SystemFiles) -> list[str]:
    """Temperature files of processors, or of the board if there are none."""
    kinds = {zone: files.text(f"{zone}/type") for zone in files.find(f"{THERMAL}/thermal_zone*")}
    for pattern in (ZONES, BOARD):
        zones = [f"{zone}/temp" for zone, kind in kinds.items() if pattern.search(kind)]
        if zones:
            return zones
    return []
