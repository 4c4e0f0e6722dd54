"""What a machine says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from codl.runtime.cpu_facts import CpuFacts
from codl.runtime.energy import SensorInfo


@dataclass(frozen=True)
class TargetInfo:
    """A machine without its OpenCL devices, which `Target.probe` looks at."""

    cpu: CpuFacts
    sensors: tuple[SensorInfo, ...]
    unreadable_sensors: dict[str, str] = field(default_factory=dict)
