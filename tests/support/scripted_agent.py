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
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import msgspec

from codl.ir.records.soc import Soc
from codl.machine.hardware import CpuFacts
from codl.measure.tasks import Emit, Measurement
from codl.targets import agent, child, local
from codl.targets.install import build
from codl.targets.measuring import Measure, MeasuredRow
from codl.targets.requests import EventHandler, Facts, Request, TargetInfo
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

    def ask(self, request: Request[Any], on_event: EventHandler) -> Any:
        match request:
            case Facts("machine"):
                return TargetInfo(CpuFacts(self.soc.cpu.name, (0,), 4, 1 << 19), {})
            case Facts("conditions"):
                return self.conditions()
            case Measure(batch):
                result = measured(batch, self.latency_ms, self.each, _faulty(on_event))
                return result.anchors, result.conditions
        return self.open()

    def close(self) -> None:
        """It holds nothing."""


def _faulty(on_event: EventHandler) -> Emit:
    """Sends events until the fault comes."""
    rows = count(1)

    def emit(kind: Any, index: int, one: Measurement | None) -> None:
        row = one and MeasuredRow(msgspec.to_builtins(one.row), one.is_disturbed)
        on_event(kind, index, row)
        if one and next(rows) == ROWS and not MARK.exists():
            MARK.write_text(str(os.getpid()))
            FAULTS[FAULT]()

    return emit


if __name__ == "__main__":
    FOLDER, FAULT = sys.argv[1:]
    MARK = Path(FOLDER) / FAULT
    child.GRACE_S = 0.1
    local.LocalTarget = Scripted  # type: ignore[assignment, misc]
    sys.exit(agent.main(time.perf_counter(), build()))
