"""What a target is: something that can be asked what it is, to measure, and to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from codl.ir import Op
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.kernels.tuning import Tuning
from codl.measure.batch import BatchResult, MeasureBatch
from codl.measure.budget import Progress
from codl.measure.check_variants import CheckRun, CheckTask
from codl.measure.facts import Fact
from codl.measure.timing import Effort, TimedTogether
from codl.measure.tuner import TuneRun, TuneTask
from codl.measure.ui_frames import Drawn
from codl.records.results import Conditions
from codl.records.soc import PowerW, Soc
from codl.records.tuned import BenchRow, Refused, Tuned
from codl.runtime.clock_settings import Governed
from codl.runtime.examination import Examination
from codl.runtime.loaded import Loaded
from codl.runtime.probe import ProbeResult
from codl.runtime.program_cache import Binary, Offer
from codl.targets.arrays import Arrays
from codl.targets.info import ColdStart, TargetInfo


class Started(Protocol):
    """A peer that runs: its version, its threads, where they were seen, and its last outputs."""

    name: str
    version: str
    observed_cores: tuple[int, ...]
    busy_cores: float

    @property
    def threads(self) -> int: ...
    def outputs(self) -> Arrays: ...
    def close(self) -> None: ...


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
        """The SoC that it is, of a machine with its placement; `CodlError` where none was named."""
        ...

    @property
    def replays(self) -> Mapping[str, Any] | None:
        """The dataset that its latencies are from, as a manifest names it; None of a machine."""
        ...

    def describe(self) -> TargetInfo: ...

    def probe(self) -> Sequence[ProbeResult]:
        """Every OpenCL driver; one that crashes is a result with an error."""
        ...

    def measure_facts(self, driver: str, device: str, keys: Sequence[str] = ()) -> Sequence[Fact]:
        """What no driver tells of a device, of these keys or all; what fails has no value."""
        ...

    def observe_cores(self) -> dict[str, list[int]]:
        """The cores on which each side's threads were seen at work."""
        ...

    def clocks_mhz(self) -> dict[str, float]:
        """The current clock of each of the SoC's cores, where the system tells."""
        ...

    def conditions(self) -> Conditions:
        """Temperature, clocks and battery, as they are now."""
        ...

    def set_governor(self, governor: str) -> Governed:
        """Let this governor choose the clocks until the target is closed.

        Former settings are put back then, or after a crash by the next one that measures there.
        Raises `CodlError` for a governor that the machine does not have.
        """
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

    def draw_frames(self, seconds: float) -> Drawn:
        """Draw an interface at 60 Hz on the GPU for so long; see `codl.measure.ui_frames`.

        The first call finds out what a frame takes: nothing else may work then.
        """
        ...

    def examine(self) -> Examination:
        """What the machine has for codl; no driver is loaded and no package is imported."""
        ...

    def import_package(self, name: str) -> float:
        """Import a package that codl needs; the seconds that it took.

        Raises `CodlError` where it cannot be imported.
        """
        ...

    def pace(self, seconds: float) -> Sequence[float]:
        """Do the same work on one core for so long; the seconds of every round."""
        ...

    def check_kernels(
        self,
        tasks: Sequence[CheckTask],
        *,
        budget_s: float | None = None,
        progress: Progress = lambda done, total, left: None,
    ) -> CheckRun:
        """Check kernel variants against the NumPy interpreter; a crash is the task's problem."""
        ...

    def open(self, offer: Offer | None = None) -> Mapping[str, str]:
        """Open the SoC's device, which the other calls do by themselves where they need it.

        What an offer has for this very driver is not compiled. Returns what compiled programs
        depend on but their sources: the device and its driver.
        """
        ...

    def load(self, executable: Executable, *, tries: bool = True) -> Loaded:
        """Allocate, build and bind an executable; with `tries` each kernel runs once for a trial.

        Raises `RefusedError` for kernels that the device refuses and others may stand in for.
        """
        ...

    def load_on_cpu(self, executable: Executable) -> Loaded:
        """Load an executable that needs no GPU; nothing is asked of one."""
        ...

    def binaries(self, model: Any) -> Sequence[Binary]:
        """The compiled programs of what `load` gave, and those that opening the device takes."""
        ...

    def start_peer(
        self, name: str, model: bytes, inputs: Arrays, plan: Plan | None = None
    ) -> Started:
        """Another library on all cores with an ONNX model, in a process of its own, fed and warm.

        `plan` is for peers that run by one.
        """
        ...

    def time(
        self,
        models: Mapping[str, Any],
        effort: Effort,
        *,
        with_energy: bool = False,
        anchors: Tuning | None = None,
    ) -> TimedTogether:
        """Time what `load` and `start_peer` gave, in turns, each on what it is fed with now.

        Energy where there are sensors; with `anchors`, in the choices of that tuning, how fast the
        machine is meanwhile.
        """
        ...

    def fresh(self) -> FreshTarget:
        """The same in a process of its own, which is not started yet."""
        ...

    def close(self) -> None: ...


class FreshTarget(Target, Protocol):
    """A target in a process that was started for it."""

    def cold_start(self) -> ColdStart:
        """What the process took so far, for what `load` gave and its first run."""
        ...
