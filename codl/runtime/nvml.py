"""The energy of NVIDIA's GPUs by the driver's own library, NVML, called as it is."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96


@dataclass(frozen=True)
class Gpu:
    """`read` gives joules since the driver was loaded or, where `is_power`, watts."""

    name: str
    read: Callable[[], float]
    is_power: bool


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
    called = f"{index} {name.value.decode(errors='replace')}"
    energy = _reader(library.nvmlDeviceGetTotalEnergyConsumption, handle, ctypes.c_ulonglong())
    try:
        energy()
    except OSError:
        return Gpu(called, _reader(library.nvmlDeviceGetPowerUsage, handle, ctypes.c_uint()), True)
    return Gpu(called, energy, False)


def _reader(
    function: Callable[..., int],
    handle: ctypes.c_void_p,
    value: ctypes.c_ulonglong | ctypes.c_uint,
) -> Callable[[], float]:
    """NVML counts in millijoules and milliwatts."""

    def read() -> float:
        if code := function(handle, ctypes.byref(value)):
            raise OSError(f"NVML refuses with code {code}")
        return 1e-3 * value.value

    return read
