"""The interface of a device: it describes itself, measures, and runs executables.

Most methods are one request of `codl.targets.requests`, which `ask` answers: in this process
(`codl.targets.local`) or by an agent (`codl.targets.remote`). Bundles run through this module, so
what only measures is imported by its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from codl.errors import CodlError, UnsupportedError
from codl.records.soc import Soc
from codl.runtime import guard
from codl.runtime.connection import FrameError
from codl.runtime.loaded import StepCallback, no_callback
from codl.runtime.placement import LocalSoc, require_local
from codl.targets import requests
from codl.targets.wire import Answer, Arrays, EventHandler, EventKind, Request

if TYPE_CHECKING:
    from codl.ir import Op
    from codl.ir.executable import Executable
    from codl.ir.plan import Plan
    from codl.kernels.tuning import Tuning
    from codl.measure.batch import BatchResult, MeasureBatch
    from codl.measure.budget import Progress
    from codl.measure.check_variants import CheckRun, CheckTask, VariantCheck
    from codl.measure.facts import Fact
    from codl.measure.tasks import Task
    from codl.measure.timing import Effort, TimedTogether
    from codl.measure.tuner import TuneRun, TuneTask
    from codl.measure.ui_frames import Drawn
    from codl.records.results import Conditions
    from codl.records.soc import PowerW
    from codl.records.tuned import BenchRow, Refused, Tuned
    from codl.runtime.clock_settings import Governed
    from codl.runtime.examination import Examination
    from codl.runtime.loaded import Binary, Loaded, Offer
    from codl.runtime.probe import ProbeResult

#: The largest budget that is sent: JSON has no infinity.
LONGEST_S = 1e9


@dataclass(frozen=True)
class ColdStart:
    """Milliseconds from starting a process on a target to the first output of a model.

    `process_ms` is all of them. Of it `import_ms` goes to Python's modules, `load_ms` to the driver
    and the executable, `first_run_ms` to the first inference, and the rest to the interpreter and
    the connection. Sending the executable is not counted.
    """

    process_ms: float
    import_ms: float
    load_ms: float
    first_run_ms: float

    @property
    def without_interpreter_ms(self) -> float:
        return self.import_ms + self.load_ms + self.first_run_ms


class Started(Protocol):
    """A running peer: its version, its threads, their cores in a first run, and its outputs."""

    name: str
    version: str
    observed_cores: tuple[int, ...]
    busy_cores: float

    @property
    def threads(self) -> int: ...
    def outputs(self) -> Arrays: ...
    def close(self) -> None: ...


class Target:
    """A device that measures and runs; `soc` is the pair of processors that it serves.

    A method that needs the SoC raises `CodlError` where the target was opened without one. Methods
    raise `DeviceError` where the device fails, and `UnsupportedError` where the kind of target has
    no such method. A target whose process was lost starts it again at the next call.
    """

    #: The name by which it was connected.
    serial = "local"

    def __init__(self, soc: Soc | None = None) -> None:
        self._soc = soc

    @property
    def soc(self) -> LocalSoc:
        """The SoC with its placement; raises `CodlError` where none was named."""
        return require_local(self._facts)

    @property
    def _facts(self) -> Soc:
        if self._soc is None:
            raise CodlError(
                f"The target {self.serial!r} was opened without a SoC; name one by --soc."
            )
        return self._soc

    @property
    def replays(self) -> Mapping[str, Any] | None:
        """Description of the dataset that a replay answers from; None for a machine."""
        return None

    def can_measure(self, task: Task) -> bool:
        """Whether it can measure a task: a replay has the tasks of its dataset only."""
        return True

    def ask(self, request: Request[Answer], on_event: EventHandler | None = None) -> Answer:
        """Answer a request that takes no handle; `on_event` gets its events."""
        raise self._unsupported(f"answer {type(request).__name__}")

    def _refuse(self, problem: str) -> CodlError:
        """The error of an invalid answer; ends the agent that gave it."""
        return CodlError(f"{self.serial!r}: {problem}.")

    def _unsupported(self, what: str) -> CodlError:
        return UnsupportedError(f"{self.serial!r} cannot {what}.")

    def fresh(self) -> Target:
        """The same target in a process of its own, which starts at the first call."""
        raise self._unsupported("start a process")

    def cold_start(self) -> ColdStart:
        """Times of a fresh process so far, after one `load` and one run."""
        raise self._unsupported("measure a cold start")

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """End whatever runs inside after `seconds`, even in a driver that hangs.

        In this process that ends the command, where it is guarded.
        """
        with guard.within(seconds):
            yield

    def close(self) -> None:
        """Release what is open."""

    # Facts.

    def describe(self) -> requests.TargetInfo:
        """Facts of the machine."""
        return self.ask(requests.Facts("machine"))  # type: ignore[no-any-return]

    def probe(self) -> Sequence[ProbeResult]:
        """Every OpenCL driver, tried in a process of its own; one that crashes has an error."""
        return self.ask(requests.Probe())

    def measure_facts(self, driver: str, device: str, keys: Sequence[str] = ()) -> Sequence[Fact]:
        """Measure facts that drivers do not report, for these keys or all.

        Each is measured in a process of its own; where that crashes or hangs, the fact has no
        value, and a reason.
        """
        from codl.targets.measuring import MeasureFacts

        return self.ask(MeasureFacts(driver, device, tuple(keys)))

    def observe_cores(self) -> dict[str, list[int]]:
        """The cores on which each side's threads were seen working."""
        return self.ask(requests.Facts("busy_cores"))

    def unpinned_ratios(self, cores: Sequence[int]) -> Sequence[float]:
        """Latency with the CPU side's threads on all of `cores`, over that on its own, in turns."""
        return self.ask(requests.UnpinnedRatios(tuple(cores)))

    def clocks_mhz(self) -> dict[str, float]:
        """The current clock of each core of the SoC, where the system reports it."""
        return self.ask(requests.Facts("clocks_mhz"))

    def conditions(self) -> Conditions:
        """Temperature, clocks and battery, now."""
        return self.ask(requests.Facts("conditions"))  # type: ignore[no-any-return]

    def set_governor(self, governor: str) -> Governed:
        """Let this governor choose the clocks until the target is closed.

        The former settings are restored then; after a crash, by the next process that measures
        there. Raises `CodlError` for a governor that the machine does not have.
        """
        return self.ask(requests.SetGovernor(governor))

    def examine(self) -> Examination:
        """What the machine has installed and set; loads no driver and imports no package."""
        return self.ask(requests.Facts("examination"))  # type: ignore[no-any-return]

    def libraries(self) -> dict[str, str]:
        """Versions of the libraries that compute; "" for one that is not installed."""
        return self.ask(requests.Facts("libraries"))

    def import_package(self, name: str) -> float:
        """Import a package that codl depends on; the seconds that it took.

        Some packages abort the process instead. Raises `DeviceError` where the import fails, and
        `UnknownNameError` for any other package.
        """
        return self.ask(requests.ImportPackage(name))

    # Measuring.

    def measure(self, batch: MeasureBatch) -> BatchResult:
        """Measure tasks; the result says where one of them crashed the process."""
        from codl.measure.batch import BatchResult
        from codl.targets.client import AgentLostError
        from codl.targets.measuring import Arriving, Measure, check_anchors

        arriving = Arriving(batch)
        sent = replace(batch, left_s=min(batch.left_s, LONGEST_S))
        try:
            anchors, conditions = self.ask(Measure(sent), arriving.on_event)
            try:
                check_anchors(anchors, batch.run)
            except FrameError as error:
                raise self._refuse(str(error)) from error
        except AgentLostError as error:
            return BatchResult(
                arriving.measurements,
                (),
                lost=str(error),
                suspects=() if error.is_blameless else arriving.suspects,
                has_hung=error.has_hung,
            )
        return BatchResult(arriving.measurements, anchors, conditions=conditions)

    def tune(
        self,
        tasks: Sequence[TuneTask],
        tuning: Tuning,
        *,
        keep: Callable[[Tuned], object],
        searching: Callable[[TuneTask], object] = lambda task: None,
        budget_s: float | None = None,
        progress: Progress = lambda done, total, left: None,
    ) -> TuneRun:
        """Search the tasks that `tuning` has no complete result for; `keep` gets each result.

        `searching` gets each task that begins. A task that crashes the process is a failure.
        """
        from codl.measure.budget import GRACE_S, Budget
        from codl.measure.tuner import Failure, TuneRun, done_before
        from codl.targets.client import AgentLostError
        from codl.targets.measuring import Remaining, Tune

        finished, budget = done_before(tasks, tuning, self.soc), Budget(budget_s)
        keys = {result.key for result in finished}
        left = Remaining([task for task in tasks if task.key not in keys])
        total = len(left.tasks)
        tuned = [tuning.find(task.variant, task.op, self.soc) for task in left.tasks]
        begun = {result.key: result for result in tuned if result is not None}
        results: list[Tuned] = []
        failures: list[Failure] = []

        def ask(missing: tuple[TuneTask, ...]) -> None:
            def on_event(kind: EventKind, index: int, result: Tuned | None) -> None:
                if kind == "progress":
                    done = total - len(missing) + index
                    progress(done, total, budget.to_go_s(done, total))
                    return
                task = left.event(kind, missing, index)
                if result is None:
                    searching(task)
                elif result.key != task.key:
                    raise FrameError(f"it sent a result of {result.key} for {task.key}")
                else:
                    results.append(result)
                    keep(result)

            before = tuple(begun[task.key] for task in missing if task.key in begun)
            share_s = budget.share().seconds
            with self.within(budget.left_s + GRACE_S):
                failed = self.ask(Tune(missing, before, share_s), on_event)
            try:
                for failure in failed:
                    task = left.event("done", missing, failure.index)
                    failures.append(Failure(task, failure.reason, failure.trials))
            except FrameError as error:
                raise self._refuse(str(error)) from error

        try:
            left.work(ask, lambda task, why: failures.append(Failure(task, why, ())))
        except AgentLostError:
            if not budget.is_over():
                raise
        return TuneRun(tuple(results), finished, tuple(failures), len(left.tasks), budget.spent_s)

    def compile(self, task: Task, tuning: Tuning) -> None:
        """Build and run the kernels of a task once."""
        from codl.targets.measuring import Compile

        self.ask(Compile(task, tuning))

    def bench(
        self, op: Op, tuning: Tuning, *, every: bool = False
    ) -> tuple[list[BenchRow], list[Refused]]:
        """Measure an op in every kernel variant; the second list is what was not measured."""
        from codl.targets.measuring import Bench

        return self.ask(Bench(op, tuning, every))

    def power(self, seconds: float) -> PowerW:
        """Watts of no load, of each processor alone and of both, each over `seconds`."""
        return self.ask(requests.Power(seconds))

    def draw_frames(self, seconds: float) -> Drawn:
        """Draw an interface at 60 Hz on the GPU for `seconds`; see `codl.measure.ui_frames`.

        The first call measures how long a frame takes, so nothing else may run then.
        """
        from codl.measure.ui_frames import is_sound
        from codl.targets.measuring import DrawFrames

        drawn = self.ask(DrawFrames(seconds))
        if not is_sound(drawn):
            raise self._refuse("it sent frames with times that are not possible")
        return drawn

    def pace(self, seconds: float) -> Sequence[float]:
        """Repeat the same work on one core for `seconds`; the seconds of each round."""
        return self.ask(requests.Pace(seconds))

    def check_kernels(
        self,
        tasks: Sequence[CheckTask],
        *,
        keep: Callable[[VariantCheck], object] = lambda checked: None,
        checking: Callable[[CheckTask], object] = lambda task: None,
        budget_s: float | None = None,
        progress: Progress = lambda done, total, left: None,
    ) -> CheckRun:
        """Check kernel variants against the NumPy interpreter; a crash is the task's problem.

        `checking` gets each task that begins, and `keep` its result.
        """
        from codl.measure.budget import Budget
        from codl.measure.check_variants import CheckRun, VariantCheck
        from codl.targets.measuring import Check, Remaining

        left, budget, run = Remaining(tasks), Budget(budget_s), CheckRun()

        def kept(checked: VariantCheck) -> None:
            run.checked.append(checked)
            keep(checked)
            done = len(run.checked)
            progress(done, len(tasks), budget.to_go_s(done, len(tasks)))

        def ask(missing: tuple[CheckTask, ...]) -> None:
            def on_event(kind: EventKind, index: int, problem: str | None) -> None:
                task = left.event(kind, missing, index)
                if problem is None:
                    checking(task)
                else:
                    kept(VariantCheck(task, problem))

            self.ask(Check(missing, budget.share().seconds), on_event)

        left.work(ask, lambda task, why: kept(VariantCheck(task, why, is_lost=True)))
        run.left = len(left.tasks)
        return run

    # Running.

    def open(self, offer: Offer | None = None) -> Mapping[str, str]:
        """Open the OpenCL device; the other methods do so where they need it.

        Kernels that the offer has for this driver are not compiled. Returns the identity that
        compiled programs depend on: the device and its driver.
        """
        return self.ask(requests.Open(offer))

    def load(
        self, executable: Executable, *, tries: bool = True, on_step: StepCallback = no_callback
    ) -> Loaded:
        """Allocate, build and bind an executable; with `tries` each kernel runs once for a trial.

        Without `tries`, a kernel that must be compiled is a warning. `on_step` gets the number of
        each step before its kernels are built. An executable that needs no GPU is also loaded
        where no device can be opened, except in a fork, where ncnn may hang. Raises `RefusedError`
        for kernels that the device refuses and others can replace.
        """
        raise self._unsupported("load")

    def load_on_cpu(self, executable: Executable) -> Loaded:
        """Load an executable that needs no GPU; the device is not opened."""
        raise self._unsupported("load")

    def binaries(self, model: Any) -> Sequence[Binary]:
        """The compiled programs of a loaded model, and those that opening the device takes."""
        raise self._unsupported("list binaries")

    def start_peer(
        self, name: str, model: bytes, inputs: Arrays, plan: Plan | None = None
    ) -> Started:
        """Run another library on all cores, with an ONNX model, in a process of its own.

        It is fed and has run once. `plan` is for peers that run by one.
        """
        raise self._unsupported("start a peer")

    def time(
        self,
        models: Mapping[str, Any],
        effort: Effort,
        *,
        with_energy: bool = False,
        anchors: Tuning | None = None,
        after_round: Callable[[], None] = lambda: None,
    ) -> TimedTogether:
        """Time loaded models and started peers in turns, each on its present inputs.

        Energy is measured where there are sensors. With `anchors`, anchor ops run in that tuning,
        and show how fast the machine is meanwhile.
        """
        raise self._unsupported("time")
