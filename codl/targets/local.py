"""This process as a target: it owns an open OpenCL device and the threads that are pinned.

A bundle runs here: what only measures is loaded when something is measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from codl.errors import CodlError, CodlWarning, DeviceError, ForkError
from codl.ir.executable import Executable
from codl.optional import MissingPackageError
from codl.records.soc import Soc
from codl.runtime.handles import Trying, untold
from codl.runtime.host_handles import HostSession
from codl.runtime.loaded import Loaded
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc, at_hand
from codl.runtime.program_cache import Binary, Offer
from codl.runtime.session import Session
from codl.runtime.system_files import SYSTEM, SystemFiles

if TYPE_CHECKING:
    from codl.ir import Op
    from codl.ir.plan import Plan
    from codl.kernels.tuning import Tuning
    from codl.measure.batch import BatchResult, MeasureBatch, Watcher
    from codl.measure.budget import Progress
    from codl.measure.check_variants import Checked, CheckRun, CheckTask
    from codl.measure.facts import Fact
    from codl.measure.tasks import Task
    from codl.measure.timing import Effort, TimedTogether
    from codl.measure.tuner import TuneRun, TuneTask
    from codl.measure.ui_frames import Drawn
    from codl.measure.ui_probe import UiProbe
    from codl.records.results import Conditions
    from codl.records.soc import PowerW
    from codl.records.tuned import BenchRow, Refused, Tuned
    from codl.runtime.clock_settings import ClockSettings, Governed
    from codl.runtime.conditions import ConditionReader
    from codl.runtime.examination import Examination
    from codl.runtime.probe import ProbeResult
    from codl.targets.arrays import Arrays
    from codl.targets.compile_workers import CompileWorkers
    from codl.targets.info import TargetInfo
    from codl.targets.local_measuring import LocalMeasuring
    from codl.targets.peer_process import PeerProcess
    from codl.targets.remote import RemoteTarget


class LocalTarget:
    """This machine, in this process; `soc` is the pair of processors that it is asked about."""

    serial = "local"

    def __init__(
        self,
        soc: Soc | None = None,
        *,
        workers: CompileWorkers | None = None,
        files: SystemFiles = SYSTEM,
    ) -> None:
        self._soc, self._workers, self._files = soc, workers, files
        self._device: OpenClDevice | None = None
        self._opening = Lock()

    @property
    def replays(self) -> None:
        return None

    @property
    def soc(self) -> LocalSoc:
        if self._soc is None:
            raise CodlError(
                f"The target {self.serial!r} was opened without a SoC; name one by --soc."
            )
        return at_hand(self._soc)

    def describe(self) -> TargetInfo:
        from codl.runtime.conditions import thermometers
        from codl.runtime.hardware import cpu_facts, read_chip
        from codl.runtime.sensors import SensorInfo, find_sensors
        from codl.targets.info import TargetInfo

        sensors = find_sensors(self._files)
        kinds = tuple(SensorInfo(sensor.name, sensor.part) for sensor in sensors.sensors)
        return TargetInfo(
            cpu=cpu_facts(),
            sensors=kinds,
            unreadable_sensors=sensors.unreadable,
            chip=read_chip(self._files),
            thermometers=thermometers(self._files),
        )

    def probe(self) -> list[ProbeResult]:
        """Look at every driver, each in an agent of its own."""
        from codl.runtime import drivers
        from codl.targets.probing import look_at

        return [look_at(driver.name) for driver in drivers.find_drivers()]

    def measure_facts(self, driver: str, device: str, keys: Sequence[str] = ()) -> list[Fact]:
        """Measure each of them in an agent of its own."""
        from codl.targets.facts_apart import measure_apart

        return measure_apart(driver, device, keys)

    def observe_cores(self) -> dict[str, list[int]]:
        from codl.runtime.detect import observe_cores

        return observe_cores(self.device)

    def clocks_mhz(self) -> dict[str, float]:
        from codl.runtime.hardware import clocks_mhz

        return clocks_mhz(self.soc.placement.cores)

    def conditions(self) -> Conditions:
        return self._machine.read()

    @cached_property
    def _machine(self) -> ConditionReader:
        from codl.runtime.conditions import ConditionReader

        self._clocks.put_back_left()
        return ConditionReader(self.soc, self._files)

    def set_governor(self, governor: str) -> Governed:
        return self._clocks.hold(governor)

    @cached_property
    def _clocks(self) -> ClockSettings:
        from codl.runtime.clock_settings import ClockSettings

        return ClockSettings(self._files)

    # Checking.

    def examine(self) -> Examination:
        from codl.runtime.examination import examine

        return examine(self._files)

    def import_package(self, name: str) -> float:
        from codl.targets.importing import import_package

        return import_package(name)

    def pace(self, seconds: float) -> tuple[float, ...]:
        from codl.measure.cool_down import pace

        return pace(seconds)

    def check_kernels(
        self,
        tasks: Sequence[CheckTask],
        *,
        keep: Callable[[Checked], object] = lambda checked: None,
        checking: Callable[[CheckTask], object] = lambda task: None,
        budget_s: float | None = None,
        progress: Progress = lambda done, total, left: None,
    ) -> CheckRun:
        from codl.measure.budget import Budget
        from codl.measure.check_variants import check_all
        from codl.runtime.threads import placed

        with placed(self.soc.placement.cpu_cores):
            return check_all(
                self.device,
                tasks,
                keep=keep,
                checking=checking,
                budget=Budget(budget_s),
                progress=progress,
            )

    # Running.

    def open(self, offer: Offer | None = None) -> Mapping[str, str]:
        """Open the device, with binaries that spare compilations; its identity."""
        return self._open(offer).programs.identity

    @property
    def device(self) -> OpenClDevice:
        """The SoC's OpenCL device, opened at the first call."""
        return self._open()

    def _open(self, offer: Offer | None = None) -> OpenClDevice:
        with self._opening:
            if self._device is None:
                self._device = self._make_device(offer)
            elif offer is not None:
                self._device.programs.offer(offer)
            return self._device

    def _make_device(self, offer: Offer | None) -> OpenClDevice:
        return OpenClDevice(self.soc, offer)

    def load(
        self, executable: Executable, *, tries: bool = True, trying: Trying = untold
    ) -> Session | HostSession:
        """Load an executable; without `tries` a kernel that must be compiled is a warning.

        `trying` is told of every step before the driver is asked for its kernels. What needs no
        GPU is loaded also where none can be opened, but for a fork, in which ncnn might hang, too.
        """
        try:
            device = self.device
        except (DeviceError, MissingPackageError) as error:
            if executable.needs_gpu or isinstance(error, ForkError):
                raise
            return self.load_on_cpu(executable)
        before = device.programs.compiled
        limits = self.soc.placement.limits
        session = Session(executable, device, tries=tries, trying=trying, limits=limits)
        if not tries and device.programs.compiled > before:
            warnings.warn(
                f"{executable.model}: {device.programs.compiled - before} kernels were compiled "
                "from source: the driver did not take those that were offered.",
                CodlWarning,
                stacklevel=2,
            )
        return session

    def load_on_cpu(self, executable: Executable) -> HostSession:
        """Load an executable that needs no GPU; the device is neither opened nor used."""
        lock = None if self._device is None else self._device.lock
        return HostSession(executable, self.soc, lock=lock)

    def binaries(self, model: Session) -> tuple[Binary, ...]:
        """The compiled programs of a loaded model, and those that opening the device takes."""
        device = self.device
        return (*device.programs.binaries(model.executable), device.busy_binary())

    # Measuring.

    @cached_property
    def _measuring(self) -> LocalMeasuring:
        """On the device; where none can be opened, on the CPU of its SoC alone."""
        from codl.targets.local_measuring import LocalMeasuring

        try:
            device, workers = self.device, self._workers
        except (DeviceError, MissingPackageError) as error:
            from codl.runtime.opencl import absent_device
            from codl.targets.compile_workers import CompileWorkers

            device, workers = absent_device(self.soc, error), CompileWorkers(self.soc, 0)
        return LocalMeasuring(device, self._machine, workers)

    def measure(self, batch: MeasureBatch, watcher: Watcher | None = None) -> BatchResult:
        from codl.measure.batch import Unwatched

        return self._measuring.measure(batch, watcher or Unwatched())

    def compile(self, task: Task, tuning: Tuning) -> None:
        """Build and run once what a task has on the GPU."""
        self._measuring.compile(task, tuning)

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
        return self._measuring.tune(
            tasks, tuning, keep=keep, searching=searching, budget_s=budget_s, progress=progress
        )

    def bench(
        self, op: Op, tuning: Tuning, *, every: bool = False
    ) -> tuple[list[BenchRow], list[Refused]]:
        return self._measuring.bench(op, tuning, every=every)

    def power(self, seconds: float) -> PowerW:
        return self._measuring.power(seconds)

    def draw_frames(self, seconds: float) -> Drawn:
        return self._ui_probe.draw(seconds)

    @cached_property
    def _ui_probe(self) -> UiProbe:
        from codl.measure.ui_probe import UiProbe

        return UiProbe(self.device)

    def start_peer(
        self, name: str, model: bytes, inputs: Arrays, plan: Plan | None = None
    ) -> PeerProcess:
        """Another library on all cores, in a process of its own, fed and warm."""
        from codl.targets.peer_process import PeerProcess

        peer = PeerProcess(name, model, self.soc, plan)
        try:
            peer.feed(inputs)
        except CodlError:
            peer.close()
            raise
        return peer

    def time(
        self,
        models: Mapping[str, Loaded | PeerProcess],
        effort: Effort,
        *,
        with_energy: bool = False,
        anchors: Tuning | None = None,
        after_round: Callable[[], None] = lambda: None,
    ) -> TimedTogether:
        return self._measuring.time(
            models, effort, with_energy=with_energy, anchors=anchors, after_round=after_round
        )

    def fresh(self) -> RemoteTarget:
        from codl.targets.process import SERIAL, process_target

        return process_target(SERIAL, self._soc)

    def close(self) -> None:
        if "_measuring" in vars(self):
            self._measuring.close()
            del self._measuring
        self._device = None
        if "_clocks" in vars(self):
            self._clocks.put_back()
