"""What a machine says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from codl.records.soc_facts import Chip
from codl.runtime.hardware import CpuFacts
from codl.runtime.sensors import SensorInfo


@dataclass(frozen=True)
class ColdStart:
    """Milliseconds of a new process on a target to the first output of the model that it was given.

    `process_ms` is all of them, from before the process is started; of it `import_ms` goes to
    Python's modules, `load_ms` to the driver and the executable, `first_run_ms` to the first
    inference, and the rest to the interpreter, and to the way to a device that is elsewhere.
    What is sent is there before it is timed.
    """

    process_ms: float
    import_ms: float
    load_ms: float
    first_run_ms: float

    @property
    def without_interpreter_ms(self) -> float:
        return self.import_ms + self.load_ms + self.first_run_ms


@dataclass(frozen=True)
class TargetInfo:
    """A machine without its OpenCL devices, which `Target.probe` looks at."""

    cpu: CpuFacts
    sensors: tuple[SensorInfo, ...]
    unreadable_sensors: dict[str, str] = field(default_factory=dict)
    chip: Chip = field(default_factory=Chip)
    #: Sensors of the temperature of processors, as the system calls them.
    thermometers: tuple[str, ...] = ()
