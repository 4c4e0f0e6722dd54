"""What a target is: something that can be asked what it is, to measure, and to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from codl.ir import Op
from codl.ir.soc import PowerW, Soc
from codl.kernels.tuning import Tuned, Tuning
from codl.measure.batch import BatchResult, MeasureBatch
from codl.measure.bench_rows import BenchRow, Refused
from codl.measure.progress import Progress
from codl.measure.tuner import TuneRun, TuneTask
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

    def tune(
        self,
        tasks: Sequence[TuneTask],
        tuning: Tuning,
        *,
        keep: Callable[[Tuned], object],
        budget_s: float | None = None,
        progress: Progress = lambda done, total, left: None,
    ) -> TuneRun:
        """Search the tasks that `tuning` has no complete result for; `keep` gets each result.

        A task that takes a process down is a failure.
        """
        ...

    def bench(
        self, op: Op, tuning: Tuning, *, every: bool = False
    ) -> tuple[list[BenchRow], list[Refused]]:
        """An op in every kernel variant, and those that were not measured."""
        ...

    def power(self, seconds: float) -> PowerW:
        """Watts while nothing works, one processor alone, and both, each over so many seconds."""
        ...

    def close(self) -> None: ...
