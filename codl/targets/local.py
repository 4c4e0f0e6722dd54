"""This process as a target: it owns the one open OpenCL device and the threads that are pinned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from codl.errors import CodlError
from codl.ir import Op
from codl.ir.soc import PowerW, Soc
from codl.kernels.tuning import Tuned, Tuning
from codl.measure.batch import BatchResult, BatchRunner, MeasureBatch, Unwatched, Watcher
from codl.measure.bench_rows import BenchRow, Refused
from codl.measure.compare_variants import bench
from codl.measure.power import measure_power
from codl.measure.progress import Progress
from codl.measure.runner import Bench
from codl.measure.tasks import Task
from codl.measure.timing import Rounds
from codl.measure.tuner import TuneRun, TuneTask, tune
from codl.runtime import drivers, threads
from codl.runtime.cpu_facts import clocks_mhz, cpu_facts
from codl.runtime.detect import observe_cores
from codl.runtime.energy import SensorInfo, find_sensors
from codl.runtime.probe import ProbeResult
from codl.targets.client import AgentClient, AgentLostError
from codl.targets.compile_workers import CompileWorkers, worker_count
from codl.targets.info import TargetInfo
from codl.targets.messages import Look, Looked

SERIAL = "local"
UNWATCHED = Unwatched()


class LocalTarget:
    """This machine, in this process; `soc` is the pair of processors that it is asked about."""

    serial = SERIAL

    def __init__(self, soc: Soc | None = None, *, workers: CompileWorkers | None = None) -> None:
        self._soc, self._given_workers = soc, workers
        self._runner: BatchRunner | None = None
        self._runs: tuple[str, Rounds, Tuning] | None = None

    @property
    def soc(self) -> Soc:
        if self._soc is None:
            raise CodlError(
                f"The target {self.serial!r} was opened without a SoC; name one by --soc."
            )
        return self._soc

    def describe(self) -> TargetInfo:
        sensors = find_sensors()
        kinds = tuple(SensorInfo(sensor.name, sensor.part) for sensor in sensors.sensors)
        return TargetInfo(cpu_facts(), kinds, sensors.unreadable)

    def probe(self) -> list[ProbeResult]:
        """Look at every driver, each in an agent of its own."""
        return [look_at(driver.name) for driver in drivers.find_drivers()]

    def observe_cores(self) -> dict[str, list[int]]:
        return observe_cores(self.soc)

    def clocks_mhz(self) -> dict[str, float]:
        return clocks_mhz((*self.soc.cpu.cores, *self.soc.gpu.cores))

    def open_device(self) -> None:
        """Open the device now: what fails, fails here."""
        Bench(self.soc, "")

    def compile(self, task: Task, tuning: Tuning) -> None:
        """Build and run once what a task has on the GPU."""
        bench = Bench(self.soc, "", tuning=tuning)
        # No side keeps to its cores: nothing is measured, and drivers compile on any thread.
        threads.pin(threads.thread_ids(), {*self.soc.cpu.cores, *self.soc.gpu.cores})
        bench.compile(task)

    def measure(self, batch: MeasureBatch, watcher: Watcher = UNWATCHED) -> BatchResult:
        how = (batch.run, batch.rounds, batch.tuning)
        if self._runner is None or self._runs != how:
            self._runner = BatchRunner(Bench(self.soc, *how), self._workers)
            self._runs = how
        return self._runner.measure(batch, watcher)

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
        return tune(
            self.soc,
            tasks,
            tuning,
            keep=keep,
            searching=searching,
            budget_s=budget_s,
            progress=progress,
        )

    def bench(
        self, op: Op, tuning: Tuning, *, every: bool = False
    ) -> tuple[list[BenchRow], list[Refused]]:
        return bench(op, self.soc, tuning, every=every)

    def power(self, seconds: float) -> PowerW:
        return measure_power(self.soc, find_sensors(), seconds)

    @cached_property
    def _workers(self) -> CompileWorkers:
        return self._given_workers or CompileWorkers(self.soc, worker_count(self.soc))

    def close(self) -> None:
        self._runner = None
        if "_workers" in vars(self):
            self._workers.close()


def look_at(driver: str) -> ProbeResult:
    """The devices of a driver by an agent of its own; a crash becomes the result's error."""
    agent = AgentClient(name="the driver's process")
    try:
        answer, _ = agent.ask(Look(driver), Looked)
        return ProbeResult(driver, answer.devices)
    except AgentLostError as error:
        return ProbeResult(driver, error=str(error))
    except CodlError as error:
        return ProbeResult(driver, error=str(error))
    finally:
        agent.close()
