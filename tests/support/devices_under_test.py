"""Devices as `codl doctor` looks at them, made up: what a check finds on each is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from codl.errors import BASE, PACKAGES, DeviceError
from codl.ir.records.results import Conditions
from codl.jobs.options import SILENT
from codl.machine.examination import Examination, Room
from codl.machine.hardware import CpuFacts
from codl.machine.placement import ProbedDevice, ProbeResult
from codl.targets.checks import Check, DeviceUnderTest, Finding
from codl.targets.requests import TargetInfo

NAMES = [name for own in (BASE, *PACKAGES.values()) for name in own.values()]
GIB = 1 << 30
#: A machine on which every check passes.
HEALTHY = Examination(
    python=(3, 12),
    codl="0",
    system="Linux",
    machine="aarch64",
    is_termux=False,
    packages=dict.fromkeys(NAMES, "1.0"),
    cores=(0, 1, 2, 3),
    physical_cores=(0, 1, 2, 3),
    refused_cores=(),
    governors=(),
    memory_bytes=8 * GIB,
    available_bytes=4 * GIB,
    cache=Room("/cache", 10 * GIB),
    conditions=Conditions(),
)
DEVICE = ProbedDevice(
    icd="some-driver",
    platform="Some platform",
    name="Some GPU",
    type="gpu",
    version="OpenCL 3.0",
    driver="1.2",
    compute_units=8,
    max_work_group_size=256,
    wave_size=32,
    vector_width=4,
    global_mem_cache_size=1 << 16,
    local_mem_bytes=1 << 15,
    unified_memory=True,
    memory_types=("buffer",),
    extensions=(),
)


@dataclass
class MadeUp:
    """A target that answers what it was made with; `broken` packages cannot be imported."""

    examination: Examination = HEALTHY
    drivers: Sequence[ProbeResult] = (ProbeResult("some-driver", (DEVICE,)),)
    broken: Sequence[str] = ()
    lost: str = ""
    serial: str = "made-up"
    closed: list[str] = field(default_factory=list)

    #: A machine's rows are no replay.
    replays: None = None

    def examine(self) -> Examination:
        return self.examination

    def probe(self) -> Sequence[ProbeResult]:
        return self.drivers

    def describe(self) -> TargetInfo:
        if self.lost:
            raise DeviceError(self.lost)
        return TargetInfo(CpuFacts("Some CPU", self.examination.cores, 4, 1 << 19), {})

    def import_package(self, name: str) -> float:
        if name in self.broken:
            raise DeviceError(f"{name} cannot be imported: ImportError: libsomething.so")
        return 0.1

    def fresh(self) -> MadeUp:
        return self

    def close(self) -> None:
        self.closed.append(self.serial)


def under_test(target: Any = None, **changes: Any) -> DeviceUnderTest:
    """A device with this target; `changes` are of the device, or of a healthy machine."""
    own = {name: changes.pop(name) for name in ("is_here", "in_process") if name in changes}
    made = target or MadeUp(examination=replace(HEALTHY, **changes))
    usual = {"is_here": True, "in_process": False, "budget_s": 60.0, "progress": SILENT.progress}
    return DeviceUnderTest("made-up", made, **{**usual, **own})  # type: ignore[arg-type]


def findings(checks: Sequence[Check], of: DeviceUnderTest) -> dict[str, Finding]:
    """What checks find, by name."""
    return {one.name: one for check in checks for one in check.findings(of)}
