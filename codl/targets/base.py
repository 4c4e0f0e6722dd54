"""What a target is: something that can be asked what it is, to measure, and to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from codl.ir.soc import Soc
from codl.measure.batch import BatchResult, MeasureBatch
from codl.runtime.probe import ProbeResult
from codl.targets.info import TargetInfo


class Target(Protocol):
    """A device that is asked with data and answers with data.

    What needs the SoC's processors raises `CodlError` where the target was opened without one, and
    `DeviceError` where the device fails. A target that lost its process starts it again at the next
    call.
    """

    @property
    def serial(self) -> str:
        """The name by which it was reached."""
        ...

    @property
    def soc(self) -> Soc:
        """The SoC that it is; raises `CodlError` where none was named."""
        ...

    def describe(self) -> TargetInfo: ...

    def probe(self) -> Sequence[ProbeResult]:
        """Every OpenCL driver; one that crashes is a result with an error."""
        ...

    def observe_cores(self) -> dict[str, list[int]]:
        """The cores on which each side's threads were seen at work."""
        ...

    def clocks_mhz(self) -> dict[str, float]:
        """The current clock of each of the SoC's cores, where the system tells."""
        ...

    def measure(self, batch: MeasureBatch) -> BatchResult:
        """Measure some tasks; a task that takes a process down is told in the result."""
        ...

    def close(self) -> None: ...
