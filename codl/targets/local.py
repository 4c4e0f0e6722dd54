"""A target in this process, which opens the OpenCL device and pins threads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from codl.errors import (
    BASE,
    PACKAGES,
    CodlError,
    CodlWarning,
    DeviceError,
    ForkError,
    MissingPackageError,
    UnknownNameError,
)
from codl.ir.executable import Executable
from codl.ir.records.soc import Soc
from codl.machine import threads
from codl.machine.conditions import find_sensors
from codl.machine.placement import ProbeResult
from codl.machine.system_files import SYSTEM, SystemFiles
from codl.runtime.drivers import as_device_error
from codl.runtime.loaded import Binary, Offer, StepCallback, no_callback
from codl.runtime.opencl import BUSY, OpenClDevice, host_device
from codl.runtime.session import Session, host_session
from codl.targets import requests
from codl.targets.base import Target
from codl.targets.requests import Answer, Arrays, EventHandler, EventKind, Request

if TYPE_CHECKING:
    from codl.ir.plan import Plan
    from codl.ir.types import Processor
    from codl.kernels.tuning import Tuning
    from codl.machine.conditions import ConditionReader
    from codl.measure.runner import BatchRunner
    from codl.measure.tasks import MeasureBatch, Measurement
    from codl.measure.timing import Effort, Timed, TimedTogether
    from codl.measure.ui_frames import UiProbe
    from codl.runtime.loaded import Loaded
    from codl.targets.compile_workers import CompileWorkers
    from codl.targets.peers import PeerProcess
    from codl.targets.remote import RemoteTarget


class LocalTarget(Target):
    """A target for this machine, in this process."""

    def __init__(
        self,
        soc: Soc | None = None,
        *,
        workers: CompileWorkers | None = None,
        files: SystemFiles = SYSTEM,
    ) -> None:
        super().__init__(soc)
        self._files, self._given_workers = files, workers
        self._device: OpenClDevice | None = None
        self._opening = Lock()
        self._runner: tuple[tuple[Any, ...], BatchRunner] | None = None

    @property
    def device(self) -> OpenClDevice:
        """The SoC's OpenCL device, opened on demand."""
        return self._open()

    def fresh(self) -> RemoteTarget:
        from codl.targets.remote import process_target

        return process_target(self._soc)

    def close(self) -> None:
        self._device = self._runner = None
        if "_workers" in vars(self):
            self._workers.close()
        for name in ("_workers", "_measured", "_ui_probe"):
            vars(self).pop(name, None)

    def ask(self, request: Request[Answer], on_event: EventHandler | None = None) -> Answer:
        with as_device_error(f"The request {type(request).__name__}"):
            return self._answer(request, on_event or (lambda *event: None))  # type: ignore[return-value]

    def _answer(self, request: Request[Any], emit: EventHandler) -> object:
        match request:
            case requests.Facts(name):
                return self._fact(name)
            case requests.Probe(driver):
                return _probe(driver)
            case requests.ImportPackage(name):
                return _import_package(name)
            case requests.Open(offer):
                return self._open(offer).programs.identity
        return self._answer_measuring(request, emit)

    def _fact(self, name: requests.FactName) -> object:
        from codl.machine import examination, hardware

        match name:
            case "machine":
                sensors, unreadable = find_sensors(self._files)
                return requests.TargetInfo(
                    cpu=hardware.cpu_facts(),
                    sensors={sensor.name: sensor.part for sensor in sensors},
                    unreadable_sensors=unreadable,
                    chip=hardware.read_chip(self._files),
                )
            case "examination":
                return examination.examine(self._files)
            case "libraries":
                versions = {name: hardware.version_of(name) for name in hardware.COMPUTING}
                return {name: version for name, version in versions.items() if version}
            case "conditions":
                return self._machine.read()
        raise self._unsupported(f"read {name!r}")

    def _answer_measuring(self, request: Request[Any], emit: EventHandler) -> object:
        from codl.measure.runner import Bench
        from codl.targets import measuring

        match request:
            case measuring.Compile(task, tuning):
                runner = Bench(self._measured, "", tuning=tuning)
                # All cores may compile: nothing is measured, and drivers compile on any thread.
                threads.pin(threads.thread_ids(), self.soc.placement.cores)
                runner.compile(task)
                return None
            case measuring.Measure(batch):
                return self._measure(batch, emit)
        return self._answer_of_kernels(request, emit)

    def _answer_of_kernels(self, request: Request[Any], emit: EventHandler) -> object:
        from codl.kernels import registry
        from codl.measure.budget import Budget
        from codl.measure.check_variants import CheckTask, check_all
        from codl.measure.op_runner import bench
        from codl.measure.tuner import TuneTask, tune
        from codl.targets import kernel_requests

        match request:
            case kernel_requests.Bench(op, tuning, every):
                with self._measuring() as device:
                    return bench(device, op, tuning, every=every)
            case kernel_requests.DrawFrames(seconds):
                return self._ui_probe.draw(seconds)
            case kernel_requests.Tune(tasks, begun, budget_s):
                found: Any = [(op, registry.find(op, name)) for op, name in tasks]
                tuned = [TuneTask(op, variant) for op, variant in found]
                with self._measuring() as device:
                    tune(device, tuned, begun, emit=emit, budget=Budget(budget_s))
                return None
            case kernel_requests.Check(tasks, budget_s):
                checked = [CheckTask(op, registry.find(op, name)) for op, name in tasks]
                with threads.pinned_to(self.soc.placement.cpu_cores):
                    check_all(self._open(), checked, emit=emit, budget=Budget(budget_s))
                return None
        raise self._unsupported(f"answer {type(request).__name__}")

    def _measure(self, batch: MeasureBatch, emit: EventHandler) -> object:
        from codl.measure.runner import BatchRunner, Bench
        from codl.targets.measuring import MeasuredRow

        def send(kind: EventKind, index: int, one: Measurement | None) -> None:
            row = one and MeasuredRow(msgspec.to_builtins(one.row), one.is_disturbed)
            emit(kind, index, row)

        how = (batch.run, batch.rounds, batch.tuning)
        with self._measuring() as device:
            if self._runner is None or self._runner[0] != how:
                bench = Bench(device, *how)
                self._runner = how, BatchRunner(bench, self._workers, self._machine.read)
            return self._runner[1].measure(batch, send)

    # Running.

    @as_device_error("Loading")
    def load(
        self, executable: Executable, *, tries: bool = True, on_step: StepCallback = no_callback
    ) -> Loaded:
        try:
            device = self._open()
        except (DeviceError, MissingPackageError) as error:
            if executable.needs_gpu or isinstance(error, ForkError):
                raise
            return self.load_on_cpu(executable)
        before = device.programs.compiled
        limits = self.soc.placement.limits
        session = Session(executable, device, tries=tries, on_step=on_step, limits=limits)
        if not tries and device.programs.compiled > before:
            warnings.warn(
                f"{executable.model}: {device.programs.compiled - before} kernels were compiled "
                "from source: the driver did not take those that were offered.",
                CodlWarning,
                stacklevel=2,
            )
        return session

    def load_on_cpu(self, executable: Executable) -> Loaded:
        lock = None if self._device is None else self._device.lock
        return host_session(executable, self.soc, lock=lock)

    @as_device_error("Reading binaries")
    def binaries(self, model: Any) -> Sequence[Binary]:
        programs = self._open().programs
        return (*programs.binaries(model.executable), programs.binary("busy", BUSY))

    def start_peer(
        self, name: str, model: bytes, inputs: Arrays, plan: Plan | None = None
    ) -> PeerProcess:
        from codl.targets.peers import PeerProcess

        peer = PeerProcess(name, model, self.soc, plan)
        try:
            peer.feed(inputs)
        except CodlError:
            peer.close()
            raise
        return peer

    @as_device_error("Timing")
    def time(
        self,
        models: Mapping[str, Any],
        effort: Effort,
        *,
        with_energy: bool = False,
        anchors: Tuning | None = None,
        after_round: Callable[[], None] = lambda: None,
    ) -> TimedTogether:
        from codl.measure.timing import time_together, timed

        runs = {  # a peer times its runs itself
            name: model.run if hasattr(model, "busy_cores") else timed(model.run)
            for name, model in models.items()
        }
        with self._measuring() as device:
            beside: dict[tuple[str, Processor], Timed] = {}
            if anchors is not None:
                from codl.measure.runner import Bench

                built = Bench(device, "", tuning=anchors).anchors()
                beside = {anchor.anchor: anchor.timed for anchor in built}
            return time_together(
                runs,
                effort,
                sensors=find_sensors()[0] if with_energy else (),
                anchors=beside,
                read=self._machine.read,
                # Idle threads of a library may spin in another model's turn.
                before_turn=threads.wait_until_idle,
                after_round=after_round,
            )

    # What is open.

    def _open(self, offer: Offer | None = None) -> OpenClDevice:
        with self._opening:
            if self._device is None:
                self._device = self._make_device(offer)
            elif offer is not None:
                self._device.programs.offer(offer)
            return self._device

    def _make_device(self, offer: Offer | None) -> OpenClDevice:
        """Open the device; plugins override this to open a subclass of `OpenClDevice`."""
        return OpenClDevice(self.soc, offer)

    @cached_property
    def _ui_probe(self) -> UiProbe:
        from codl.measure.ui_frames import UiProbe

        return UiProbe(self._open())

    @cached_property
    def _workers(self) -> CompileWorkers:
        from codl.targets.compile_workers import CompileWorkers, worker_count

        if self._given_workers is not None:
            return self._given_workers
        return CompileWorkers(self.soc, worker_count(self.soc) if self._device else 0)

    @contextmanager
    def _measuring(self) -> Iterator[OpenClDevice]:
        """The device, with the calling thread on the cores of the CPU side."""
        with threads.pinned_to(self.soc.placement.cpu_cores):
            yield self._measured

    @cached_property
    def _measured(self) -> OpenClDevice:
        """The device, or a placeholder if none opens, so that the CPU side can be measured."""
        try:
            return self._open()
        except (DeviceError, MissingPackageError) as error:
            return host_device(self.soc, error)

    @cached_property
    def _machine(self) -> ConditionReader:
        from codl.machine.conditions import ConditionReader

        return ConditionReader(self.soc, self._files)


def _probe(name: str) -> tuple[ProbeResult, ...]:
    """Devices of one driver, loaded in this process, or of every driver."""
    from codl.machine.driver_search import find_drivers
    from codl.runtime.probe import look

    if name:
        return (ProbeResult(name, tuple(look(name))),)
    found = [(driver, look_at(driver.name)) for driver in find_drivers()]
    return tuple(
        replace(result, file=driver.file or driver.library, is_guess=driver.is_guess)
        for driver, result in found
    )


def look_at(driver: str) -> ProbeResult:
    """Devices of a driver; a crash or time-out of its process becomes an error."""
    from codl.targets.client import ask_once

    try:
        (result,) = ask_once("the driver's process", requests.Probe(driver))
    except (CodlError, ValueError) as error:
        return ProbeResult(driver, error=str(error))
    return result


def _import_package(name: str) -> float:
    """Import a package that codl depends on; returns the seconds taken."""
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
