"""Energy sensors of this machine, and measurements of energy.

Three kinds are read, without a library: RAPL's counters of CPU packages (`/sys/class/powercap`);
batteries (`/sys/class/power_supply`), whose power is sampled and summed up; and NVIDIA's GPUs
through the driver's NVML, which also has temperatures and clocks. Virtual machines have none, and
on some machines only root may read them.
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
#: NVML's numbers of the sensor on the chip, and of the clock of the multiprocessors.
_CHIP, _SM = 0, 1
#: NVML's reasons for a clock that heat or the power supply lowers: slowdown by the hardware,
#: thermal slowdown by the driver, thermal slowdown by the hardware, and power brake.
_HELD_DOWN = 0x8 | 0x20 | 0x40 | 0x80
#: Seconds between two readings of a sensor of power.
PERIOD_S = 0.05
#: Part that a sensor measures: a processor with its memory, or the whole device.
Part: TypeAlias = Literal["cpu", "gpu", "device"]


@dataclass(frozen=True)
class NvidiaGpu:
    """A GPU: `read` gives joules since the driver was loaded, or watts where `is_power`.

    `celsius`, `mhz` and `is_held_down` read the present values; all raise `OSError`.
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
    """NVML, initialised; None without the library or a device."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library


def nvidia_gpus() -> list[NvidiaGpu]:
    """The GPUs of this machine; GPUs before Volta report power, later ones energy."""
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
        """A reader of a number by a function of NVML; `which` are its other arguments."""

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
    """An energy sensor: `read` gives joules from any start, or watts where `is_power`.

    It raises `OSError`. A counter of joules starts again at `wraps_j`.
    """

    name: str
    part: Part
    read: Callable[[], float]
    is_power: bool = False
    wraps_j: float | None = None

    def difference(self, before: float, after: float) -> float:
        """Joules between two readings of a counter, which may have started again once."""
        wrapped = self.wraps_j if after < before and self.wraps_j else 0.0
        return after + wrapped - before


@dataclass(frozen=True)
class SensorInfo:
    """Name of a sensor, and the part that it measures."""

    name: str
    part: Part


@dataclass(frozen=True)
class SensorScan:
    """The readable sensors, and the errors of others by name."""

    sensors: tuple[Sensor, ...]
    unreadable: dict[str, str] = field(default_factory=dict)


def find_sensors(
    files: SystemFiles = SYSTEM, *, gpus: Callable[[], list[NvidiaGpu]] = nvidia_gpus
) -> SensorScan:
    """All sensors of the system's files, and of NVIDIA's GPUs."""
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
    """Sensors of CPU packages. Domains are parts of a package, and `psys` is more than the CPU."""

    def joules(path: str) -> float:
        return 1e-6 * int(files.read(path))

    for zone in files.find("sys/class/powercap/intel-rapl:*"):
        name = files.text(f"{zone}/name")
        if name.startswith("package") and zone.count(":") == 1:
            most = files.number(f"{zone}/max_energy_range_uj")
            read = partial(joules, f"{zone}/energy_uj")
            yield Sensor(f"rapl {name}", "cpu", read, wraps_j=most * 1e-6 if most else None)


def _of_battery(battery: Battery) -> Sensor:
    """Sensor of a battery: the power of the whole device, while it is discharging."""

    def read() -> float:
        if battery.status != "Discharging":
            raise OSError(
                f"the battery reports the device's power only while discharging: {battery.status}"
            )
        return battery.watts()

    return Sensor(f"power_supply {battery.name}", "device", read, is_power=True)


def _reading(sensor: Sensor) -> float | None:
    """The reading of a sensor; None where it cannot be read."""
    with suppress(OSError, ValueError):
        return sensor.read()
    return None


class Meter:
    """Joules by sensor from the start to `stop`; use `metered`.

    A sensor has no joules where a reading fails.
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
        """Joules of the whole device where a sensor has them, else the sum of its parts."""
        parts = {s.name: s.part for s in self._sensors}
        whole = [j for name, j in self.joules.items() if parts[name] == "device"]
        return sum(whole or self.joules.values()) if self.joules else None

    def stop(self) -> None:
        """Stop; `seconds` and `joules` are those since the start."""
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
        """Sum up power by trapezoids between readings."""

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
    """Meter the code inside; `joules` are known afterwards."""
    meter = Meter(sensors)
    try:
        yield meter
    finally:
        meter.stop()


def energy_mj(
    work: Callable[[], object], sensors: Sequence[Sensor], *, at_least_s: float = 1.0
) -> float | None:
    """Millijoules of `work`, idle power included; None without a sensor.

    Work is repeated for `at_least_s`: drivers update sensors every millisecond, some every tenth of
    a second.
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
