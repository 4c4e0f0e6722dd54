"""What this process measures as a target; loaded when something is measured, not where it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from codl.ir import Op
from codl.kernels.tuning import Tuning
from codl.measure import drift
from codl.measure.batch import BatchResult, BatchRunner, MeasureBatch, Watcher, time_together
from codl.measure.budget import Budget, Progress
from codl.measure.op_runner import bench
from codl.measure.power import measure_power
from codl.measure.runner import Bench
from codl.measure.tasks import Task
from codl.measure.timing import Effort, Rounds, TimedRun, TimedTogether, timed
from codl.measure.tuner import TuneRun, TuneTask, tune
from codl.records.soc import PowerW
from codl.records.tuned import BenchRow, Refused, Tuned
from codl.runtime import threads
from codl.runtime.conditions import ConditionReader
from codl.runtime.loaded import Loaded
from codl.runtime.opencl import OpenClDevice
from codl.runtime.sensors import find_sensors
from codl.targets.compile_workers import CompileWorkers, worker_count
from codl.targets.peer_process import PeerProcess


class LocalMeasuring:
    """Measures on an OpenCL device and its CPU."""

    def __init__(
        self,
        gpu: OpenClDevice,
        machine: ConditionReader,
        workers: CompileWorkers | None = None,
    ) -> None:
        self._gpu, self._machine = gpu, machine
        self._workers = workers or CompileWorkers(gpu.soc, worker_count(gpu.soc))
        self._runner: BatchRunner | None = None
        self._runs: tuple[str, Rounds, Tuning] | None = None

    def measure(self, batch: MeasureBatch, watcher: Watcher) -> BatchResult:
        how = (batch.run, batch.rounds, batch.tuning)
        if self._runner is None or self._runs != how:
            self._runner = BatchRunner(Bench(self._gpu, *how), self._workers, self._machine)
            self._runs = how
        with self._placed():
            return self._runner.measure(batch, watcher)

    def compile(self, task: Task, tuning: Tuning) -> None:
        bench = Bench(self._gpu, "", tuning=tuning)
        # No side keeps to its cores: nothing is measured, and drivers compile on any thread.
        threads.pin(threads.thread_ids(), self._gpu.soc.placement.cores)
        bench.compile(task)

    def tune(
        self,
        tasks: Sequence[TuneTask],
        tuning: Tuning,
        *,
        keep: Callable[[Tuned], object],
        searching: Callable[[TuneTask], object],
        budget_s: float | None,
        progress: Progress,
    ) -> TuneRun:
        with self._placed():
            return tune(
                self._gpu,
                tasks,
                tuning,
                keep=keep,
                searching=searching,
                budget=Budget(budget_s),
                progress=progress,
            )

    def bench(self, op: Op, tuning: Tuning, *, every: bool) -> tuple[list[BenchRow], list[Refused]]:
        with self._placed():
            return bench(self._gpu, op, tuning, every=every)

    def power(self, seconds: float) -> PowerW:
        with self._placed():
            return measure_power(self._gpu, find_sensors(), seconds)

    def time(
        self,
        models: Mapping[str, Loaded | PeerProcess],
        effort: Effort,
        *,
        with_energy: bool,
        anchors: Tuning | None,
        after_round: Callable[[], None],
    ) -> TimedTogether:
        runs: dict[str, TimedRun] = {
            name: model.run if isinstance(model, PeerProcess) else timed(model.run)
            for name, model in models.items()
        }
        with self._placed():
            beside = [] if anchors is None else drift.prepare(Bench(self._gpu, "", tuning=anchors))
            return time_together(
                runs,
                effort,
                sensors=find_sensors().sensors if with_energy else (),
                anchors=beside,
                machine=self._machine,
                # Libraries let idle threads spin: nobody's are there in another one's turn.
                before_turn=threads.wait_until_idle,
                after_round=after_round,
            )

    def _placed(self) -> AbstractContextManager[None]:
        """The calling thread is one of the CPU side inside."""
        return threads.placed(self._gpu.soc.placement.cpu_cores)

    def close(self) -> None:
        self._runner = None
        self._workers.close()
