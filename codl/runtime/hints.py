"""Hints to a GPU's driver: how fast to work, and how urgent its work is beside that of others.

Qualcomm's drivers take them when a context is made (cl_qcom_perf_hint, cl_qcom_priority_hint),
Khronos's extensions when a queue is (cl_khr_throttle_hints, cl_khr_priority_hints).
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from codl.errors import DeviceError
from codl.ir.gpu_limits import UNLIMITED
from codl.runtime.cl_import import cl_module
from codl.runtime.placement import Placement

if TYPE_CHECKING:
    import pyopencl as cl

CONTEXT_PLATFORM = 0x1084
#: The extension, the property that it defines, and the property's values by hint.
CONTEXT_HINTS = {
    "performance": ("cl_qcom_perf_hint", 0x40C2, {"high": 0x40C3, "normal": 0x40C4, "low": 0x40C5}),
    "priority": (
        "cl_qcom_priority_hint",
        0x40C9,
        {"high": 0x40CA, "normal": 0x40CB, "low": 0x40CC},
    ),
}
QUEUE_HINTS = {
    "performance": ("cl_khr_throttle_hints", 0x1097, {"high": 1, "normal": 2, "low": 4}),
    "priority": ("cl_khr_priority_hints", 0x1096, {"high": 1, "normal": 2, "low": 4}),
}
#: Qualcomm's older drivers take both hints and list only the first extension.
LISTED_AS = {"cl_qcom_priority_hint": "cl_qcom_perf_hint"}


def wanted(placement: Placement) -> dict[str, str]:
    """The hints that are not the default.

    A GPU with limits is asked to go easy on others, where nobody asks for something else.
    """
    hints = {"performance": placement.performance, "priority": placement.priority}
    usual = "low" if placement.limits else "default"
    chosen = {kind: usual if hint == "default" else hint for kind, hint in hints.items()}
    return {kind: hint for kind, hint in chosen.items() if hint != "default"}


def context_properties(placement: Placement, extensions: str) -> list[int]:
    """Properties and values for a context on a device with these extensions."""
    return _properties(CONTEXT_HINTS, placement, extensions)


def queue_properties(placement: Placement, extensions: str) -> list[int]:
    """The same for a queue; what a context has taken is not asked for again."""
    taken = _taken(CONTEXT_HINTS, placement, extensions)
    left = {kind: hint for kind, hint in QUEUE_HINTS.items() if kind not in taken}
    return _properties(left, placement, extensions)


def ignored(device: cl.Device, placement: Placement) -> list[str]:
    """A line for every hint that was asked for and that a device's driver does not take."""
    asked = wanted(replace(placement, limits=UNLIMITED))
    return [
        f"The driver of {device.name} takes no {kind} hint, so {hint!r} has no effect: {reason}."
        for kind, hint in asked.items()
        if (reason := _lack(kind, placement, device.extensions))
    ]


def told(device: cl.Device, placement: Placement) -> dict[str, str]:
    """By hint what the driver is asked for, and why it takes that not, if so."""
    lacks = {kind: _lack(kind, placement, device.extensions) for kind in wanted(placement)}
    return {
        kind: f"{hint}, without effect: {lacks[kind]}" if lacks[kind] else hint
        for kind, hint in wanted(placement).items()
    }


def _lack(kind: str, placement: Placement, extensions: str) -> str:
    """What a driver does not have that takes a hint; "" where it takes it."""
    known = (CONTEXT_HINTS, QUEUE_HINTS)
    if any(kind in _taken(own, placement, extensions) for own in known):
        return ""
    return f"it has neither {CONTEXT_HINTS[kind][0]} nor {QUEUE_HINTS[kind][0]}"


def make_context(device: cl.Device, placement: Placement) -> cl.Context:
    """A context on one device, with what hints it takes there."""
    properties = context_properties(placement, device.extensions)
    if not properties:
        return cl_module().Context([device])
    return context_of(device, properties)


def make_queue(context: cl.Context, placement: Placement) -> cl.CommandQueue:
    """An in-order queue, with what hints it takes."""
    device = context.devices[0]
    properties = queue_properties(placement, device.extensions)
    if not properties:
        return cl_module().CommandQueue(context)
    return cl_module().CommandQueue(context, device, properties=properties)


def context_of(device: cl.Device, properties: list[int]) -> cl.Context:
    """A context with properties that pyopencl does not know, made by the loader itself."""
    values = [CONTEXT_PLATFORM, device.platform.int_ptr, *properties, 0]
    devices = (ctypes.c_void_p * 1)(device.int_ptr)
    error = ctypes.c_int32()
    create = ctypes.CDLL(_loader()).clCreateContext
    create.restype = ctypes.c_void_p
    made = create(
        (ctypes.c_ssize_t * len(values))(*values),
        ctypes.c_uint32(1),
        devices,
        None,
        None,
        ctypes.byref(error),
    )
    if not made:
        asked = ", ".join(hex(value) for value in properties)
        raise DeviceError(
            f"{device.name} makes no context with the hints {asked} (error {error.value}): leave "
            "performance and priority at their defaults."
        )
    return cl_module().Context.from_int_ptr(made, retain=False)


def _loader() -> str:
    """The OpenCL loader that this process has loaded already, with pyopencl."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = [line.split()[-1] for line in maps if "libOpenCL" in line]
    if not found:
        raise DeviceError("This process has loaded no OpenCL loader, which hints go through.")
    return found[0]


def _taken(
    known: dict[str, tuple[str, int, dict[str, int]]], placement: Placement, extensions: str
) -> list[str]:
    listed = extensions.split()
    return [
        kind
        for kind in wanted(placement)
        if kind in known
        and (known[kind][0] in listed or LISTED_AS.get(known[kind][0], "") in listed)
    ]


def _properties(
    known: dict[str, tuple[str, int, dict[str, int]]], placement: Placement, extensions: str
) -> list[int]:
    hints = wanted(placement)
    return [
        value
        for kind in _taken(known, placement, extensions)
        for value in (known[kind][1], known[kind][2][hints[kind]])
    ]
