"""A target behind an agent: every question goes there, and one that was lost is started again.

Written by hand is what an agent may be lost over with something done, and what it holds: models and
peers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from codl.errors import DeviceError
from codl.ir.constants import array_digest
from codl.ir.executable import Executable, GpuOp, Refusal
from codl.ir.executable_json import encode
from codl.ir.plan import Plan
from codl.kernels.tuning import Tuning
from codl.measure.batch import BatchListener, BatchResult, MeasureBatch
from codl.measure.budget import GRACE_S, Budget, Progress
from codl.measure.check_variants import CheckRun, CheckTask, VariantCheck
from codl.measure.timing import Effort, TimedTogether
from codl.measure.tuner import Failure, TuneRun, TuneTask, done_before
from codl.measure.ui_frames import Drawn, is_sound
from codl.records.results import TimeSpan
from codl.records.soc import Soc
from codl.records.tuned import Tuned
from codl.runtime.clock_settings import Governed
from codl.runtime.connection import FrameError
from codl.runtime.handles import StepCallback, no_callback
from codl.runtime.loaded import RefusedError
from codl.runtime.placement import LocalSoc, at_hand
from codl.runtime.program_cache import Binary
from codl.targets.arriving import Arriving, Remaining, check_anchors
from codl.targets.base import ColdStart, Elsewhere, Target
from codl.targets.client import COMMAND, AgentClient, AgentLostError, Fix
from codl.targets.process import Process
from codl.targets.served_models import LoadedModel, Models, StartedPeer
from codl.targets.wire import Arrays, question_of

# Models and peers that an agent holds, as this side sees them.


class RemoteModel:
    """An executable that is loaded by an agent; `inputs` and `outputs` are arrays of this process.

    An agent that was lost since is started again, and loads it anew at the next call.
    """

    def __init__(
        self,
        agent: AgentClient,
        executable: Executable,
        on_step: StepCallback,
        *,
        tries: bool = True,
        on_cpu: bool = False,
    ) -> None:
        self.executable, self._agent = executable, agent
        self._load = partial(load, agent, executable, on_step, tries=tries, on_cpu=on_cpu)
        #: Held by whatever runs something on the same agent.
        self.lock = agent.lock
        self.inputs = {n: np.zeros(p.shape, np.float32) for n, p in executable.inputs.items()}
        self.outputs = {n: np.zeros(p.shape, np.float32) for n, p in executable.outputs.items()}
        self._generation = self._handle = 0
        #: What the agent's copies of the inputs hold; None before the first run.
        self._fed: dict[str, NDArray[Any]] | None = None
        loaded = self._load()
        self.footprint, self.limited = loaded.footprint, loaded.limited
        self._keep(loaded)

    def run(self) -> None:
        """One inference from what `inputs` hold."""
        with self.lock:
            inputs = {name: value.copy() for name, value in self.inputs.items()}
            self._reload()
            try:
                outputs = self._agent.ask(Models.run, self._handle, inputs)
            except AgentLostError as error:
                error.args = (f"Running {self.executable.model!r}: {error}",)
                raise
            came, wanted = ({name: value.shape for name, value in arrays.items()}
                            for arrays in (outputs, self.outputs))  # fmt: skip
            if came != wanted:
                raise self._agent.refuse(f"It sent outputs of {came}, where {wanted} was asked.")
            self._fed = inputs
            for name, value in outputs.items():
                np.copyto(self.outputs[name], value)

    def profile(self, *, layers: bool = False) -> list[TimeSpan]:
        """What each processor did when in one inference from what `inputs` hold."""
        with self.lock:
            return list(self._agent.ask(Models.profile, self.handle(), layers))

    def handle(self) -> int:
        """What the agent calls it, once it is there and has run on what `inputs` hold."""
        self._reload()
        fed = self._fed
        if fed is None or any(
            not _is_same(fed[name], value) for name, value in self.inputs.items()
        ):
            self.run()
        return self._handle

    def close(self) -> None:
        """Release it over there; it would be loaded anew where it runs again."""
        if self._generation == self._agent.generation and self._agent.pid is not None:
            try:
                self._agent.ask(Models.unload, self._handle)
            except AgentLostError:
                return
            finally:
                self._generation = 0

    def _reload(self) -> None:
        if self._generation != self._agent.generation or self._agent.pid is None:
            self._keep(self._load())

    def _keep(self, loaded: LoadedModel) -> None:
        self._handle, self._generation = loaded.handle, self._agent.generation
        self._fed = None


def load(
    agent: AgentClient, executable: Executable, on_step: StepCallback, *, tries: bool, on_cpu: bool
) -> LoadedModel:
    """Send an executable with the arrays that the agent lacks.

    Raises `RefusedError` where the device refuses some of its kernels, and for one at which the
    agent crashed or hung: it was the driver's last.
    """
    arrays: dict[str, NDArray[Any]] = {}

    def put(array: NDArray[Any]) -> str:
        digest = array_digest(array)
        arrays[digest] = array
        return digest

    content = encode(executable, put)
    lacking = agent.ask(Models.lacks, tuple(arrays))
    if unknown := {*lacking} - {*arrays}:
        raise agent.refuse(f"It lacks {', '.join(sorted(unknown))}, of which it was not asked.")
    sent = {digest: arrays[digest] for digest in lacking}
    at = -1

    def hear(step: int) -> None:
        nonlocal at
        if not -1 <= step < len(executable.steps):
            raise FrameError(f"It tries the step {step}, of which there is none.")
        at = step
        on_step(step)

    try:
        loaded = agent.ask(Models.load, content, sent, tries, on_cpu, hear)
    except AgentLostError as error:
        step = executable.steps[at] if at >= 0 else None
        if not isinstance(step, GpuOp) or error.is_blameless:
            raise
        raise RefusedError([Refusal(step.label, step.variant, step.choice, str(error))]) from error
    if not isinstance(loaded, LoadedModel):
        raise RefusedError(loaded)
    return loaded


def _is_same(array: NDArray[Any], other: NDArray[Any]) -> bool:
    """Bit by bit: no number is told from itself."""
    return np.array_equal(array.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


class RemotePeer:
    """A peer that an agent has started; it is gone when the agent is."""

    def __init__(self, agent: AgentClient, name: str, started: StartedPeer, threads: int) -> None:
        self.name, self.version, self.threads = name, started.version, threads
        self.observed_cores, self.busy_cores = started.observed_cores, started.busy_cores
        self._agent, self._handle, self._generation = agent, started.handle, agent.generation

    def handle(self) -> int:
        """What the agent calls it; raises `DeviceError` where that agent has ended."""
        if not self._is_there():
            raise DeviceError(f"{self.name} ended with the agent that had started it.")
        return self._handle

    def outputs(self) -> Arrays:
        return self._agent.ask(Models.peer_outputs, self.handle())

    def close(self) -> None:
        if self._is_there():
            self._agent.ask(Models.unload, self._handle)

    def _is_there(self) -> bool:
        return self._generation == self._agent.generation and self._agent.pid is not None


# The target.

R = TypeVar("R")
#: JSON has no number for as long as it takes.
LONGEST_S = 1e9


class RemoteTarget(Elsewhere):
    """What an agent behind `command` measures and runs; `command` speaks frames over its pipes.

    It is the same for a child of this process and for a device over ssh or adb. `build`, `fixes`
    and `cuts` are as an `AgentClient` takes them.
    """

    def __init__(
        self,
        serial: str,
        command: Sequence[str],
        soc: Soc | None = None,
        *,
        build: str = "",
        fixes: Mapping[str, Fix] = MappingProxyType({}),
        cuts: Sequence[str] = (),
    ) -> None:
        self.serial, self._soc = serial, soc
        self._start = partial(
            RemoteTarget, serial, command, soc, build=build, fixes=fixes, cuts=cuts
        )
        prelude = {} if soc is None else {Process.begin: (at_hand(soc),)}
        name = f"the agent of {serial!r}"
        self.agent = AgentClient(
            command, name=name, prelude=prelude, build=build, fixes=fixes, cuts=cuts
        )

    def _ask(self, method: Callable[..., R], *arguments: Any, **named: Any) -> R:
        return self.agent.ask(method, *arguments, **named)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """What is asked inside is ended after `seconds`, and the agent with it."""
        with self.agent.within(seconds):
            yield

    @property
    def soc(self) -> LocalSoc:
        return self._local

    def set_governor(self, governor: str) -> Governed:
        """Have it set over there, and by every agent that takes the place of one that was lost."""
        done = self.agent.ask(Target.set_governor, governor)
        self.agent.prelude[Target.set_governor] = (governor,)
        return done

    def draw_frames(self, seconds: float) -> Drawn:
        drawn = self.agent.ask(Target.draw_frames, seconds)
        if not is_sound(drawn):
            raise self.agent.refuse("It sent frames that are none, or drawn before others ended.")
        return drawn

    def measure(self, batch: MeasureBatch, watcher: BatchListener | None = None) -> BatchResult:
        """Measure over there; an agent that is lost meanwhile is told with what it was doing.

        The rows that had come by then are among what is returned.
        """
        arriving = Arriving(batch, watcher or BatchListener())
        sent = replace(batch, left_s=min(batch.left_s, LONGEST_S))
        try:
            anchors, conditions = self.agent.ask(
                Models.measure, sent, arriving.building, arriving.timing, arriving.measured
            )
            try:
                check_anchors(anchors, batch.run)
            except FrameError as error:
                raise self.agent.refuse(str(error)) from error
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
        """Tune over there; the task of which an agent is lost fails, and another does the rest."""
        finished, budget = done_before(tasks, tuning, self.soc), Budget(budget_s)
        keys = {result.key for result in finished}
        left = Remaining([task for task in tasks if task.key not in keys])
        by_key = {task.key: task for task in left.tasks}
        tuned = [tuning.find(task.variant, task.op, self.soc) for task in left.tasks]
        begun = {result.key: result for result in tuned if result is not None}
        results: list[Tuned] = []
        failures: list[Failure] = []

        def begins(task: TuneTask) -> None:
            left.begins(task)
            searching(task)

        def ends(result: Tuned) -> None:
            if result.key not in by_key:
                raise FrameError(f"It sent a result of {result.key}, which was not asked.")
            left.done(by_key[result.key])
            results.append(result)
            keep(result)

        def ask(missing: tuple[TuneTask, ...]) -> None:
            before = tuple(begun[task.key] for task in missing if task.key in begun)
            share_s = budget.share().seconds
            with self.agent.within(budget.left_s + GRACE_S):
                run = self.agent.ask(Models.tune, missing, before, share_s, ends, begins, progress)
            try:
                for failure in run.failures:
                    left.done(failure.task)
            except FrameError as error:
                raise self.agent.refuse(str(error)) from error
            failures.extend(run.failures)

        try:
            left.work(ask, lambda task, why: failures.append(Failure(task, why, ())))
        except AgentLostError:
            if not budget.is_over():
                raise
        return TuneRun(tuple(results), finished, tuple(failures), len(left.tasks), budget.spent_s)

    def check_kernels(
        self,
        tasks: Sequence[CheckTask],
        *,
        keep: Callable[[VariantCheck], object] = lambda checked: None,
        checking: Callable[[CheckTask], object] = lambda task: None,
        budget_s: float | None = None,
        progress: Progress = lambda done, total, left: None,
    ) -> CheckRun:
        """Check over there; the task of which an agent is lost has a problem."""
        left, budget, run = Remaining(tasks), Budget(budget_s), CheckRun()

        def begins(task: CheckTask) -> None:
            left.begins(task)
            checking(task)

        def ends(checked: VariantCheck) -> None:
            left.done(checked.task)
            kept(checked)

        def kept(checked: VariantCheck) -> None:
            run.checked.append(checked)
            keep(checked)
            done = len(run.checked)
            progress(done, len(tasks), budget.to_go_s(done, len(tasks)))

        def ask(missing: tuple[CheckTask, ...]) -> None:
            share_s = budget.share().seconds
            self.agent.ask(
                Target.check_kernels, missing, keep=ends, checking=begins, budget_s=share_s
            )

        left.work(ask, lambda task, why: kept(VariantCheck(task, why, is_lost=True)))
        run.left = len(left.tasks)
        return run

    def load(
        self, executable: Executable, *, tries: bool = True, on_step: StepCallback = no_callback
    ) -> RemoteModel:
        return RemoteModel(self.agent, executable, on_step, tries=tries)

    def load_on_cpu(self, executable: Executable) -> RemoteModel:
        return RemoteModel(self.agent, executable, no_callback, on_cpu=True)

    def binaries(self, model: RemoteModel) -> Sequence[Binary]:
        return self.agent.ask(Models.binaries, model.handle())

    def start_peer(
        self, name: str, model: bytes, inputs: Arrays, plan: Plan | None = None
    ) -> RemotePeer:
        started = self.agent.ask(Models.start_peer, name, model, inputs, plan)
        return RemotePeer(self.agent, name, started, len(self.soc.placement.cores))

    def time(
        self,
        models: Mapping[str, Any],
        effort: Effort,
        *,
        with_energy: bool = False,
        anchors: Tuning | None = None,
        after_round: Callable[[], None] = lambda: None,
    ) -> TimedTogether:
        """Time over there; an agent that is lost meanwhile raises."""
        with self.agent.lock:
            for model in models.values():
                model.handle()  # a model that is loaded anew may have another than those before
            handles = {name: model.handle() for name, model in models.items()}
            times = self.agent.ask(Models.time, handles, effort, with_energy, anchors, after_round)
        if {*times.latency_ms, *times.failed} != {*models}:
            timed = ", ".join(sorted({*times.latency_ms, *times.failed})) or "nothing"
            raise self.agent.refuse(f"It timed {timed}, where {', '.join(models)} was asked.")
        return times

    def fresh(self) -> RemoteTarget:
        return self._start()

    def cold_start(self) -> ColdStart:
        """What the process took so far, for what `load` gave and its first run."""
        spent = self.agent.ask(Process.spent)
        start_s, import_s = self.agent.start_seconds()

        def ms(*methods: Callable[..., Any]) -> float:
            return 1e3 * sum(spent.get(question_of(method).name, 0.0) for method in methods)

        begin_ms, run_ms = ms(Process.begin), ms(Models.run)
        load_ms = ms(Target.open, Models.lacks, Models.load)
        whole_ms = 1e3 * start_s + begin_ms + load_ms + run_ms
        return ColdStart(whole_ms, 1e3 * import_s + begin_ms, load_ms, run_ms)

    def close(self) -> None:
        self.agent.close()


def process_target(soc: Soc | None) -> RemoteTarget:
    """This machine, with every call made in a child: a driver that crashes takes that down."""
    return RemoteTarget("process", COMMAND, soc)
