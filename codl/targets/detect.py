"""Describes a target as a SoC."""

from __future__ import annotations

from collections.abc import Sequence

from codl.ir.soc import ELEMENT_NAMES, Soc
from codl.runtime.detect import choose, describe
from codl.targets.base import Target


def detect(
    target: Target,
    name: str,
    *,
    device: str | None = None,
    memory_types: Sequence[str] = (),
    element: str = ELEMENT_NAMES[0],
) -> Soc:
    """Describe the machine that a target is.

    `device` picks the OpenCL device by driver or device name; otherwise a real GPU is taken before
    a CPU. `memory_types` and `element` are as in `GpuSide`; by default all that the device is good
    at, and float32. Raises `DeviceError` where there is no OpenCL device or only one core for two
    sides, or where the device has no such memory.
    """
    chosen = choose(target.probe(), device)
    cpu = target.describe().cpu
    return describe(name, chosen, cpu=cpu, memory_types=memory_types, element=element)
