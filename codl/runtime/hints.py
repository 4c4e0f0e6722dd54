"""Hints that set the speed of a GPU and its priority beside other programs.

Qualcomm's drivers accept hints for a context (cl_qcom_perf_hint, cl_qcom_priority_hint), Khronos's
extensions for a queue (cl_khr_throttle_hints, cl_khr_priority_hints).
"""

from __future__ import annotations

import ctypes
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from codl.errors import CodlWarning, DeviceError
from codl.ir.records.gpu_limits import UNLIMITED
from codl.machine.placement import Placement
from codl.runtime.cl_library import Error
from codl.runtime.drivers import cl_module, is_stand_in, loader

if TYPE_CHECKING:
    import pyopencl as cl

CONTEXT_PLATFORM = 0x1084
#: For each kind of hint: extension name, property number, and values of the levels.
LEVELS = ("high", "normal", "low")
HintTable: TypeAlias = dict[str, tuple[str, int, tuple[int, int, int]]]
CONTEXT_HINTS: HintTable = {
    "performance": ("cl_qcom_perf_hint", 0x40C2, (0x40C3, 0x40C4, 0x40C5)),
    "priority": ("cl_qcom_priority_hint", 0x40C9, (0x40CA, 0x40CB, 0x40CC)),
}
QUEUE_HINTS: HintTable = {
    "performance": ("cl_khr_throttle_hints", 0x1097, (1, 2, 4)),
    "priority": ("cl_khr_priority_hints", 0x1096, (1, 2, 4)),
}
#: Extension whose presence implies another: older Qualcomm drivers list only the first.
LISTED_AS = {"cl_qcom_priority_hint": "cl_qcom_perf_hint"}


@dataclass
class Hints:
    """OpenCL properties for the hints of a placement.

    `requested` are the non-default hints by kind. `context` and `queue` are properties and values
    for either object. `ignored` maps a kind to the reason why the driver ignores it.
    """

    requested: dict[str, str]
    context: list[int] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, placement: Placement, extensions: str) -> Hints:
        """Hints of a placement for a device's extensions; by default `low` on a GPU with limits."""
        usual = "low" if placement.limits else "default"
        chosen = {"performance": placement.performance, "priority": placement.priority}
        hints = {kind: usual if hint == "default" else hint for kind, hint in chosen.items()}
        plan = cls({kind: hint for kind, hint in hints.items() if hint != "default"})
        listed = {*extensions.split()}
        for kind, hint in plan.requested.items():
            for properties, table in ((plan.context, CONTEXT_HINTS), (plan.queue, QUEUE_HINTS)):
                extension, name, values = table[kind]
                if listed & {extension, LISTED_AS.get(extension)}:
                    properties += [name, values[LEVELS.index(hint)]]
                    break
            else:
                names = CONTEXT_HINTS[kind][0], QUEUE_HINTS[kind][0]
                plan.ignored[kind] = f"it has neither {names[0]} nor {names[1]}"
        return plan

    def report(self) -> dict[str, str]:
        """Each requested hint, with the reason if the driver ignores it."""
        return {
            kind: f"{hint}, without effect: {self.ignored[kind]}" if kind in self.ignored else hint
            for kind, hint in self.requested.items()
        }


def ignored(device: cl.Device, placement: Placement) -> list[str]:
    """A message for each hint of the user that a device's driver ignores."""
    hints = Hints.of(replace(placement, limits=UNLIMITED), device.extensions)
    return [
        f"The driver of {device.name} takes no {kind} hint, so {hints.requested[kind]!r} has no "
        f"effect: {reason}."
        for kind, reason in hints.ignored.items()
    ]


def context_of(device: cl.Device, properties: list[int]) -> cl.Context:
    """A context with properties unknown to pyopencl, made through the loader."""
    values = [CONTEXT_PLATFORM, device.platform.int_ptr, *properties]
    try:
        if is_stand_in():
            return cl_module().Context([device], values)
        wanted = (ctypes.c_ssize_t * (len(values) + 1))(*values, 0)
        address = ctypes.byref(ctypes.c_void_p(device.int_ptr))
        made = loader().clCreateContext(wanted, 1, address, None, None)
    except Error as error:
        asked = ", ".join(hex(value) for value in properties)
        raise DeviceError(
            f"{device.name} makes no context with the hints {asked} ({error}): leave performance "
            "and priority at their defaults."
        ) from error
    return cl_module().Context.from_int_ptr(made, retain=False)


def opened(device: cl.Device, place: Placement) -> tuple[cl.Context, cl.CommandQueue]:
    """A context and a queue with hints; warns of hints of the user that have no effect."""
    hints, cl = Hints.of(place, device.extensions), cl_module()
    wanted = hints.context
    context = context_of(device, wanted) if wanted else cl.Context([device])
    queue = cl.CommandQueue(context, device, properties=hints.queue or 0)
    for text in ignored(device, place):
        warnings.warn(text, CodlWarning, stacklevel=4)
    return context, queue
