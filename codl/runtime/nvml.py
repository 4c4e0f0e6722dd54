"""Energy, heat and clocks of NVIDIA's GPUs by the driver's own library, NVML, called as it is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96
_Unsigned: TypeAlias = ctypes.c_uint | ctypes.c_ulonglong
#: NVML's numbers: the sensor on the chip, and the clock of what computes.
_CHIP, _SM = 0, 1
#: Its reasons for a lower clock that are heat, or a supply that gives no more: slowdowns by the
#: hardware, by the driver for heat, by the hardware for heat, and power brakes.
_HELD_DOWN = 0x8 | 0x20 | 0x40 | 0x80


@dataclass(frozen=True)
class Gpu:
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
def _library() -> ctypes.CDLL | None:
    """NVML, initialised; None where there is none, or no device behind it."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library


def gpus() -> list[Gpu]:
    """All GPUs of this machine; those before Volta tell their power, later ones their energy."""
    library = _library()
    if library is None:
        return []
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    return [_gpu(library, index) for index in range(count.value)]


def _gpu(library: ctypes.CDLL, index: int) -> Gpu:
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    library.nvmlDeviceGetName(handle, name, _NAME_BYTES)
    model = name.value.decode(errors="replace")

    def reader(function: str, kind: type[_Unsigned], *which: int) -> Callable[[], int]:
        return _reader(getattr(library, function), handle, kind, *which)

    energy = reader("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong)
    power = reader("nvmlDeviceGetPowerUsage", ctypes.c_uint)
    reasons = reader("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
    try:
        energy()
        is_power = False
    except OSError:
        is_power = True
    return Gpu(
        name=f"{index} {model}",
        read=lambda: 1e-3 * (power() if is_power else energy()),  # millijoules and milliwatts
        is_power=is_power,
        model=model,
        celsius=reader("nvmlDeviceGetTemperature", ctypes.c_uint, _CHIP),
        mhz=reader("nvmlDeviceGetClockInfo", ctypes.c_uint, _SM),
        is_held_down=lambda: bool(reasons() & _HELD_DOWN),
    )


def _reader(
    function: Callable[..., int], handle: ctypes.c_void_p, kind: type[_Unsigned], *which: int
) -> Callable[[], int]:
    """Calls a function that puts a number where it is told to; `which` is what it asks about."""

    def read() -> int:
        value = kind()
        if code := function(handle, *which, ctypes.byref(value)):
            raise OSError(f"NVML refuses with code {code}")
        return int(value.value)

    return read
