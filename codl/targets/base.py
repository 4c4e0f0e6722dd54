"""What a target is: something that can be asked what it is, to measure, and to run.

A question is one method here. Its body is how a machine answers it itself; its signature is all
that goes over the wire to another one. A bundle runs here: what only measures is imported when
something is measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from threading import Lock
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from codl.boundary import BASE, PACKAGES, MissingPackageError
from codl.errors import CodlError, CodlWarning, DeviceError, ForkError, UnknownNameError
from codl.ir.executable import Executable
from codl.records.soc import Soc
from codl.records.soc_facts import Chip
from codl.runtime import guard, threads
from codl.runtime.handles import StepCallback, no_callback
from codl.runtime.hardware import CpuFacts
from codl.runtime.host_handles import HostSession
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc, at_hand
from codl.runtime.program_cache import Binary, Offer
from codl.runtime.sensors import SensorInfo
from codl.runtime.session import Session
from codl.runtime.system_files import SYSTEM, SystemFiles
from codl.targets.wire import question, questions

if TYPE_CHECKING:
    from codl.ir import Op
    from codl.ir.plan import Plan
    from codl.kernels.tuning import Tuning
    from codl.measure.batch import (
        BatchListener,
        BatchResult,
        BatchRunner,
        MeasureBatch,
        PrecompilePool,
    )
    from codl.measure.budget import Progress
    from codl.measure.check_variants import CheckRun, CheckTask, VariantCheck
    from codl.measure.facts import Fact
    from codl.measure.tasks import Task
    from codl.measure.timing import Effort, TimedTogether
    from codl.measure.tuner import TuneRun, TuneTask
    from codl.measure.ui_frames import Drawn, UiProbe
    from codl.records.results import Conditions
    from codl.records.soc import PowerW
    from codl.records.tuned import BenchRow, Refused, Tuned
    from codl.runtime.clock_settings import ClockSettings, Governed
    from codl.runtime.conditions import ConditionReader
    from codl.runtime.examination import Examination
    from codl.runtime.loaded import Loaded
    from codl.runtime.probe import ProbeResult
    from codl.targets.wire import Arrays

P = ParamSpec("P")
R = TypeVar("R")


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


class Target:
    """A device that is asked with data and answers with data; as it stands here, this machine.

    `soc` is the pair of processors that it is asked about. What needs them raises `CodlError` where
    it was opened without any, and `DeviceError` where the device fails. A target that lost its
    process starts it again at the next call.
    """

    #: The name by which it was reached.
    serial = "local"

    def __init__(self, soc: Soc | None = None, *, files: SystemFiles = SYSTEM) -> None:
        self._soc, self._files = soc, files
        self._device: OpenClDevice | None = None
        self._opening = Lock()
        self._runner: tuple[tuple[Any, ...], BatchRunner] | None = None

    @property
    def soc(self) -> Soc:
        """The SoC that it is, of a machine with its placement; `CodlError` where none was named."""
        return self._local

    @property
    def replays(self) -> Mapping[str, Any] | None:
        """The dataset that its latencies are from, as a manifest names it; None of a machine."""
        return None

    def can_measure(self, task: Task) -> bool:
        """Whether it can measure a task; where a dataset stands for it, of what that has alone."""
        return True

    @question(None)
    def fresh(self) -> Target:
        """The same in a process of its own, which is not started yet."""
        raise NotImplementedError

    @question(None)
    def cold_start(self) -> ColdStart:
        """What a fresh process took so far, for what `load` gave and its first run."""
        raise NotImplementedError

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """What is asked inside is ended after `seconds`, where a driver hangs.

        In this process that ends the command, where it is guarded.
        """
        with guard.within(seconds):
            yield

    def close(self) -> None:
        self._device = self._runner = None
        for name in ("_measured", "_ui_probe"):
            vars(self).pop(name, None)
        if "_clocks" in vars(self):
            self._clocks.put_back()

    # What it is.

    @question()
    def describe(self) -> TargetInfo:
        from codl.runtime.conditions import thermometers
        from codl.runtime.hardware import cpu_facts, read_chip
        from codl.runtime.sensors import find_sensors

        sensors = find_sensors(self._files)
        return TargetInfo(
            cpu=cpu_facts(),
            sensors=tuple(SensorInfo(sensor.name, sensor.part) for sensor in sensors.sensors),
            unreadable_sensors=sensors.unreadable,
            chip=read_chip(self._files),
            thermometers=thermometers(self._files),
        )

    @question(600.0)
    def probe(self) -> Sequence[ProbeResult]:
        """Every OpenCL driver, each in a process of its own; one that crashes has an error."""
        from codl.runtime.driver_search import find_drivers

        found = [(driver, look_at(driver.name)) for driver in find_drivers()]
        return tuple(
            replace(result, file=driver.file or driver.library, is_guess=driver.is_guess)
            for driver, result in found
        )

    @question(1800.0)
    def measure_facts(self, driver: str, device: str, keys: Sequence[str] = ()) -> Sequence[Fact]:
        """What no driver tells of a device, of these keys or all.

        Each in a process of its own; what takes it down or too long has no value, and says so.
        """
        from codl.measure.facts import FACTS, Fact
        from codl.targets.client import ask_apart
        from codl.targets.process import Process

        facts = []
        for key in keys or FACTS:
            try:
                name = "the process that measured"
                facts.append(ask_apart(name, Process.measure_fact, driver, device, key))
            except CodlError as error:
                facts.append(Fact(key, None, str(error)))
        return tuple(facts)

    @question()
    def observe_cores(self) -> dict[str, list[int]]:
        """The cores on which each side's threads were seen at work."""
        from codl.runtime.detect import observe_cores

        return observe_cores(self._open())

    @question()
    def unpinned_ratios(self, cores: Sequence[int]) -> Sequence[float]:
        """Latency of the CPU side's threads on all of `cores` over that on its own, by turns."""
        from codl.runtime.detect import unpinned_ratios

        return unpinned_ratios(self._local, cores)

    @question()
    def clocks_mhz(self) -> dict[str, float]:
        """The current clock of each of the SoC's cores, where the system tells."""
        from codl.runtime.hardware import clocks_mhz

        return clocks_mhz(self._local.placement.cores)

    @question()
    def conditions(self) -> Conditions:
        """Temperature, clocks and battery, as they are now."""
        return self._machine.read()

    @question()
    def set_governor(self, governor: str) -> Governed:
        """Let this governor choose the clocks until the target is closed.

        Former settings are put back then, or after a crash by the next one that measures there.
        Raises `CodlError` for a governor that the machine does not have.
        """
        return self._clocks.hold(governor)

    @question()
    def examine(self) -> Examination:
        """What the machine has for codl; no driver is loaded and no package is imported."""
        from codl.runtime.examination import examine

        return examine(self._files)

    @question()
    def libraries(self) -> dict[str, str]:
        """The versions of the libraries that compute there; "" where one is not installed."""
        from codl.runtime.examination import COMPUTING, version_of

        return {name: version_of(name) for name in COMPUTING}

    @question(120.0)
    def import_package(self, name: str) -> float:
        """Import a package of codl's base or of an extra; the seconds that it took.

        Some abort the process instead. Raises `DeviceError` where it cannot be imported, and
        `UnknownNameError` for any other package.
        """
        from importlib import import_module
        from time import perf_counter

        modules = {package: module for packages in (BASE, *PACKAGES.values())
                   for module, package in packages.items()}  # fmt: skip
        if name not in modules:
            raise UnknownNameError("package", name, modules)
        begin = perf_counter()
        try:
            import_module(modules[name])
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise DeviceError(f"{name} cannot be imported: {what}") from error
        return perf_counter() - begin

    # Measuring.

    @question(None)
    def measure(self, batch: MeasureBatch, watcher: BatchListener | None = None) -> BatchResult:
        """Measure some tasks; a task that takes a process down is told in the result."""
        from codl.measure.batch import BatchListener, BatchRunner
        from codl.measure.runner import Bench

        how = (batch.run, batch.rounds, batch.tuning)
        with self._measuring() as device:
            if self._runner is None or self._runner[0] != how:
                bench = Bench(device, *how)
                self._runner = how, BatchRunner(bench, self._workers, self._machine.read)
            return self._runner[1].measure(batch, watcher or BatchListener())

    @question(None)
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

        `searching` is told of each that begins. One that takes a process down is a failure.
        """
        from codl.measure.budget import Budget
        from codl.measure.tuner import tune

        with self._measuring() as device:
            return tune(
                device,
                tasks,
                tuning,
                keep=keep,
                searching=searching,
                budget=Budget(budget_s),
                progress=progress,
            )

    @question(600.0)
    def compile(self, task: Task, tuning: Tuning) -> None:
        """Build and run once what a task has on the GPU."""
        from codl.measure.runner import Bench

        bench = Bench(self._measured, "", tuning=tuning)
        # No side keeps to its cores: nothing is measured, and drivers compile on any thread.
        threads.pin(threads.thread_ids(), self._local.placement.cores)
        bench.compile(task)

    @question(600.0)
    def bench(
        self, op: Op, tuning: Tuning, *, every: bool = False
    ) -> tuple[list[BenchRow], list[Refused]]:
        """An op in every kernel variant, and those that were not measured."""
        from codl.measure.op_runner import bench

        with self._measuring() as device:
            return bench(device, op, tuning, every=every)

    @question(lambda asked: 60.0 + 4 * asked["seconds"])
    def power(self, seconds: float) -> PowerW:
        """Watts while nothing works, one processor alone, and both, each over `seconds`."""
        from codl.measure.facts import measure_power
        from codl.runtime.sensors import find_sensors

        with self._measuring() as device:
            return measure_power(device, find_sensors(), seconds)

    @question(lambda asked: 60.0 + 2 * asked["seconds"])
    def draw_frames(self, seconds: float) -> Drawn:
        """Draw an interface at 60 Hz on the GPU for `seconds`; see `codl.measure.ui_frames`.

        The first call finds out what a frame takes: nothing else may work then.
        """
        return self._ui_probe.draw(seconds)

    @question(lambda asked: 60.0 + 4 * asked["seconds"])
    def pace(self, seconds: float) -> Sequence[float]:
        """Do the same work on one core for `seconds`; the seconds of every round."""
        from codl.measure.cool_down import pace

        return pace(seconds)

    @question(lambda asked: longest_check_s(asked["budget_s"]))
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

        `checking` is told of each that begins, and `keep` what came of it.
        """
        from codl.measure.budget import Budget
        from codl.measure.check_variants import check_all

        with threads.placed(self._local.placement.cpu_cores):
            return check_all(
                self._open(),
                tasks,
                keep=keep,
                checking=checking,
                budget=Budget(budget_s),
                progress=progress,
            )

    # Running.

    @question()
    def open(self, offer: Offer | None = None) -> Mapping[str, str]:
        """Open the SoC's device, which the other calls do by themselves where they need it.

        What an offer has for this very driver is not compiled. Returns what compiled programs
        depend on but their sources: the device and its driver.
        """
        return self._open(offer).programs.identity

    @question(None)
    def load(
        self, executable: Executable, *, tries: bool = True, on_step: StepCallback = no_callback
    ) -> Loaded:
        """Allocate, build and bind an executable; with `tries` each kernel runs once for a trial.

        Without, a kernel that must be compiled is a warning. `on_step` is told of every step before
        the driver is asked for its kernels. What needs no GPU is loaded also where none can be
        opened, but for a fork, in which ncnn might hang, too. Raises `RefusedError` for kernels
        that the device refuses and others may stand in for.
        """
        try:
            device = self._open()
        except (DeviceError, MissingPackageError) as error:
            if executable.needs_gpu or isinstance(error, ForkError):
                raise
            return self.load_on_cpu(executable)
        before = device.programs.compiled
        limits = self._local.placement.limits
        session = Session(executable, device, tries=tries, on_step=on_step, limits=limits)
        if not tries and device.programs.compiled > before:
            warnings.warn(
                f"{executable.model}: {device.programs.compiled - before} kernels were compiled "
                "from source: the driver did not take those that were offered.",
                CodlWarning,
                stacklevel=2,
            )
        return session

    @question(None)
    def load_on_cpu(self, executable: Executable) -> Loaded:
        """Load an executable that needs no GPU; the device is neither opened nor used."""
        lock = None if self._device is None else self._device.lock
        return HostSession(executable, self._local, lock=lock)

    @question(None)
    def binaries(self, model: Any) -> Sequence[Binary]:
        """The compiled programs of what `load` gave, and those that opening the device takes."""
        device = self._open()
        return (*device.programs.binaries(model.executable), device.busy_binary())

    @question(None)
    def start_peer(
        self, name: str, model: bytes, inputs: Arrays, plan: Plan | None = None
    ) -> Started:
        """Another library on all cores with an ONNX model, in a process of its own, fed and warm.

        `plan` is for peers that run by one.
        """
        from codl.targets.peers import PeerProcess

        peer = PeerProcess(name, model, self._local, plan)
        try:
            peer.feed(inputs)
        except CodlError:
            peer.close()
            raise
        return peer

    @question(None)
    def time(
        self,
        models: Mapping[str, Any],
        effort: Effort,
        *,
        with_energy: bool = False,
        anchors: Tuning | None = None,
        after_round: Callable[[], None] = lambda: None,
    ) -> TimedTogether:
        """Time what `load` and `start_peer` gave, in turns, each on what it is fed with now.

        Energy where there are sensors; with `anchors`, in the choices of that tuning, how fast the
        machine is meanwhile.
        """
        from codl.measure import drift
        from codl.measure.batch import time_together
        from codl.measure.runner import Bench
        from codl.measure.timing import timed
        from codl.runtime.sensors import find_sensors
        from codl.targets.peers import PeerProcess

        runs = {
            name: model.run if isinstance(model, PeerProcess) else timed(model.run)
            for name, model in models.items()
        }
        with self._measuring() as device:
            beside = [] if anchors is None else drift.prepare(Bench(device, "", tuning=anchors))
            return time_together(
                runs,
                effort,
                sensors=find_sensors().sensors if with_energy else (),
                anchors=beside,
                read=self._machine.read,
                # Libraries let idle threads spin: nobody's are there in another one's turn.
                before_turn=threads.wait_until_idle,
                after_round=after_round,
            )

    # What this process has open for that.

    @property
    def _local(self) -> LocalSoc:
        return at_hand(self._facts)

    @property
    def _facts(self) -> Soc:
        if self._soc is None:
            raise CodlError(
                f"The target {self.serial!r} was opened without a SoC; name one by --soc."
            )
        return self._soc

    def _open(self, offer: Offer | None = None) -> OpenClDevice:
        with self._opening:
            if self._device is None:
                self._device = self._make_device(offer)
            elif offer is not None:
                self._device.programs.offer(offer)
            return self._device

    def _make_device(self, offer: Offer | None) -> OpenClDevice:
        return OpenClDevice(self._local, offer)

    @property
    def _workers(self) -> PrecompilePool:
        raise NotImplementedError

    @contextmanager
    def _measuring(self) -> Iterator[OpenClDevice]:
        """What is measured on, and the calling thread on the CPU side."""
        with threads.placed(self._local.placement.cpu_cores):
            yield self._measured

    @cached_property
    def _measured(self) -> OpenClDevice:
        """The device; where none can be opened, its SoC's CPU is measured all the same."""
        try:
            return self._open()
        except (DeviceError, MissingPackageError) as error:
            from codl.runtime.opencl import absent_device

            return absent_device(self._local, error)

    @cached_property
    def _machine(self) -> ConditionReader:
        from codl.runtime.conditions import ConditionReader

        self._clocks.put_back_left()
        return ConditionReader(self._local, self._files)

    @cached_property
    def _clocks(self) -> ClockSettings:
        from codl.runtime.clock_settings import ClockSettings

        return ClockSettings(self._files)

    @cached_property
    def _ui_probe(self) -> UiProbe:
        from codl.measure.ui_frames import UiProbe

        return UiProbe(self._open())


def longest_check_s(budget_s: float | None) -> float:
    """How long a check may take: one that hangs should not outlast the budget by much.

    A driver may compile a kernel for half a minute on a slow device.
    """
    return 120.0 if budget_s is None else min(120.0, max(30.0, budget_s))


def look_at(driver: str) -> ProbeResult:
    """The devices of a driver; a crash or a time-out becomes the result's error."""
    from codl.runtime.probe import ProbeResult
    from codl.targets.client import ask_apart
    from codl.targets.process import Process

    try:
        return ProbeResult(driver, ask_apart("the driver's process", Process.look, driver))
    except CodlError as error:
        return ProbeResult(driver, error=str(error))


class Elsewhere(Target):
    """A target whose questions this process does not answer: each goes to `_ask` instead."""

    def _ask(self, method: Callable[..., R], *arguments: Any, **named: Any) -> R:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def _passed_on(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def ask(self: Elsewhere, *arguments: Any, **named: Any) -> Any:
        return self._ask(method, *arguments, **named)

    return ask


for _question in questions(Target):
    setattr(Elsewhere, _question.method.__name__, _passed_on(_question.method))
