"""Energy sensors of this machine, and the joules between two instants by them.

Three kinds are known, all read without any library: RAPL's counters of CPU packages
(`/sys/class/powercap`), batteries (`/sys/class/power_supply`), whose power is sampled and summed
up, and NVIDIA's GPUs through the driver's own NVML, which also tells their heat and clocks. Many
machines have none: virtual ones, and those where only root may read.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from threading import Event, Thread
from typing import Literal, TypeAlias

from codl.runtime.system_files import SYSTEM, Battery, SystemFiles

LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96
#: NVML's numbers: the sensor on the chip, and the clock of what computes.
_CHIP, _SM = 0, 1
#: Its reasons for a lower clock that are heat, or a supply that gives no more: slowdowns by the
#: hardware, by the driver for heat, by the hardware for heat, and power brakes.
_HELD_DOWN = 0x8 | 0x20 | 0x40 | 0x80
#: How often a sensor that tells power, not energy, is read.
PERIOD_S = 0.05
#: What a sensor counts: a processor with its memory, or everything.
Part: TypeAlias = Literal["cpu", "gpu", "device"]


@dataclass(frozen=True)
class NvidiaGpu:
    """`read` gives joules since the driver was loaded or, where `is_power`, watts.

    `celsius`, `mhz` and `is_held_down` are of now; all raise `OSError` where NVML refuses.
    """

    name: str
    read: Callable[[], float]
    is_power: bool
    #: As the device is called, without its number.
    model: str
    celsius: Callable[[], float]
    mhz: Callable[[], float]
    is_held_down: Callable[[], bool]


@cache
def _nvml() -> ctypes.CDLL | None:
    """NVML, initialised; None where there is none, or no device behind it."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library


def nvidia_gpus() -> list[NvidiaGpu]:
    """All of this machine; those before Volta tell their power, later ones their energy."""
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
        """Calls what puts a number where it is told to; `which` is what it asks about."""

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
    """`read` gives joules since some instant, or watts where `is_power`; raises `OSError`.

    A counter of joules begins anew at `wraps_j`.
    """

    name: str
    part: Part
    read: Callable[[], float]
    is_power: bool = False
    wraps_j: float | None = None

    def difference(self, before: float, after: float) -> float:
        """Joules between two readings of a counter, which may have begun anew once."""
        wrapped = self.wraps_j if after < before and self.wraps_j else 0.0
        return after + wrapped - before


@dataclass(frozen=True)
class SensorInfo:
    """A sensor by name, and what it counts."""

    name: str
    part: Part


@dataclass(frozen=True)
class SensorScan:
    """The sensors that can be read, and why others cannot, by name."""

    sensors: tuple[Sensor, ...]
    unreadable: dict[str, str] = field(default_factory=dict)


def find_sensors(
    files: SystemFiles = SYSTEM, *, gpus: Callable[[], list[NvidiaGpu]] = nvidia_gpus
) -> SensorScan:
    """Every sensor that the system has files of, and those of NVIDIA's GPUs."""
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
    return SensorScan(tuple(sensors), unreadable)


def _rapl(files: SystemFiles) -> Iterator[Sensor]:
    """CPU packages; the domains inside one are part of it, and `psys` is more than the CPU."""

    def joules(path: str) -> float:
        return 1e-6 * int(files.read(path))

    for zone in files.find("sys/class/powercap/intel-rapl:*"):
        name = files.text(f"{zone}/name")
        if name.startswith("package") and zone.count(":") == 1:
            most = files.number(f"{zone}/max_energy_range_uj")
            read = partial(joules, f"{zone}/energy_uj")
            yield Sensor(f"rapl {name}", "cpu", read, wraps_j=most * 1e-6 if most else None)


def _of_battery(battery: Battery) -> Sensor:
    """Batteries tell the power of the whole device, while nothing charges them."""

    def read() -> float:
        if battery.status != "Discharging":
            raise OSError(
                f"the battery tells the device's power only while discharging: {battery.status}"
            )
        return battery.watts()

    return Sensor(f"power_supply {battery.name}", "device", read, is_power=True)


def _reading(sensor: Sensor) -> float | None:
    """What a sensor tells now; None where it cannot be read."""
    with suppress(OSError, ValueError):
        return sensor.read()
    return None


class Meter:
    """Joules by sensor since it was started; `stop` ends it. Use `metered`.

    A sensor that cannot be read on the way has no joules.
    """

    def __init__(self, sensors: Sequence[Sensor]) -> None:
        self.joules: dict[str, float] = {}
        self._sensors = tuple(sensors)
        self._counted = {s.name: _reading(s) for s in sensors if not s.is_power}
        self._sampled = [s for s in sensors if s.is_power]
        self._summed = dict.fromkeys((s.name for s in self._sampled), 0.0)
        self._done, self._begin = Event(), time.perf_counter()
        self._sampler = Thread(target=self._sample, daemon=True)
        if self._sampled:
            self._sampler.start()

    @property
    def total_joules(self) -> float | None:
        """Of the whole device where a sensor counts that, else of the parts that have one."""
        parts = {s.name: s.part for s in self._sensors}
        whole = [j for name, j in self.joules.items() if parts[name] == "device"]
        return sum(whole or self.joules.values()) if self.joules else None

    def stop(self) -> None:
        """End; `seconds` and `joules` are of the time since the start."""
        self.seconds = time.perf_counter() - self._begin
        self._done.set()
        if self._sampled:
            self._sampler.join()
        for sensor in self._sensors:
            if sensor.name in self._summed:
                self.joules[sensor.name] = self._summed[sensor.name]
            elif not sensor.is_power:
                before, after = self._counted[sensor.name], _reading(sensor)
                if before is not None and after is not None:
                    self.joules[sensor.name] = sensor.difference(before, after)

    def _sample(self) -> None:
        """Trapezoids between readings."""

        def watts() -> dict[str, float | None]:
            return {sensor.name: _reading(sensor) for sensor in self._sampled}

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


@contextmanager
def metered(sensors: Sequence[Sensor]) -> Iterator[Meter]:
    """A meter around what is done inside; its `joules` are known behind it."""
    meter = Meter(sensors)
    try:
        yield meter
    finally:
        meter.stop()


def energy_mj(
    work: Callable[[], object], sensors: Sequence[Sensor], *, at_least_s: float = 1.0
) -> float | None:
    """Millijoules of doing `work` once, idle power included; None without a sensor.

    It is done over and over for `at_least_s`: sensors are read by their drivers only every
    millisecond, some every tenth of a second.
    """
    if not sensors:
        return None
    count, begin = 0, time.perf_counter()
    with metered(sensors) as meter:
        while time.perf_counter() - begin < at_least_s:
            work()
            count += 1
    total = meter.total_joules
    return None if total is None else 1e3 * total / count
