"""A real agent over a device that is none, with something that goes wrong in its first batch.

`python -m support.scripted_agent FOLDER FAULT`: the fault comes once, after some rows; a file of
its name in the folder says that it has come, and holds the agent's process id.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event
from typing import Any

from codl.measure.batch import BatchListener, BatchResult, MeasureBatch, Measurement
from codl.records.soc import Soc
from codl.runtime import child
from codl.runtime.hardware import CpuFacts
from codl.targets import agent, local
from codl.targets.base import TargetInfo
from codl.targets.install import build
from support.device_doubles import DeviceDouble, measured

#: After so many rows.
ROWS = 2


def say_garbage() -> None:
    os.write(OUTPUT, b"\0" * 4096)
    Event().wait()


def say_too_much() -> None:
    """The head of a frame with more JSON than memory."""
    os.write(OUTPUT, b"CDL1" + b"\x05\0\0\0" + b"\xff" * 8)
    Event().wait()


def hang() -> None:
    """As a kernel that never ends: nothing that Python does can interrupt it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Event().wait()


FAULTS: Mapping[str, Callable[[], object]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "garbage": say_garbage,
    "too much": say_too_much,
    "hangs": hang,
    "none": lambda: None,
}
OUTPUT = os.dup(1)


class Scripted(DeviceDouble):
    """What the agent takes for this machine."""

    def __init__(self, soc: Soc | None = None) -> None:
        super().__init__("scripted", each=4)

    def open(self, offer: object = None) -> Mapping[str, str]:
        return super().open()

    def describe(self) -> TargetInfo:
        return TargetInfo(CpuFacts(self.soc.cpu.name, (0,), 4, 1 << 19), ())

    def measure(self, batch: MeasureBatch, watcher: BatchListener | None = None) -> BatchResult:
        return measured(batch, self.latency_ms, self.each, _Faulty(watcher))

    def close(self) -> None:
        """It holds nothing."""


class _Faulty:
    """Passes on what it is told until the fault comes."""

    def __init__(self, watcher: Any) -> None:
        self._watcher, self._rows = watcher, 0

    def building(self, index: int) -> None:
        self._watcher.building(index)

    def timing(self) -> None:
        self._watcher.timing()

    def measured(self, one: Measurement) -> None:
        self._watcher.measured(one)
        self._rows += 1
        if self._rows == ROWS and not MARK.exists():
            MARK.write_text(str(os.getpid()))
            FAULTS[FAULT]()


if __name__ == "__main__":
    FOLDER, FAULT = sys.argv[1:]
    MARK = Path(FOLDER) / FAULT
    child.GRACE_S = 0.1
    local.LocalTarget = Scripted  # type: ignore[assignment, misc]
    sys.exit(agent.main(time.perf_counter(), build()))
