"""A target behind an agent, with automatic restart of a lost agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, DeviceError
from codl.ir.constants import array_digest
from codl.ir.executable import Executable, GpuOp, Refusal
from codl.ir.executable_json import encode
from codl.ir.plan import Plan
from codl.ir.records.results import TimeSpan
from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.machine.placement import require_local
from codl.measure.timing import Effort, TimedTogether
from codl.runtime.loaded import Binary, RefusedError, StepCallback, no_callback
from codl.targets import model_requests, requests
from codl.targets.base import ColdStart, Target
from codl.targets.client import COMMAND, AgentClient, Fix
from codl.targets.connection import AgentLostError, FrameError
from codl.targets.measuring import Time
from codl.targets.requests import Answer, Arrays, EventHandler, EventKind, Request


class RemoteModel:
    """An executable loaded by an agent; `inputs` and `outputs` are arrays of this process.

    After the loss of an agent, the next call starts a new one and reloads the executable.
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
        #: Held by every run on the same agent.
        self.lock = agent.lock
        self.inputs = {n: np.zeros(p.shape, np.float32) for n, p in executable.inputs.items()}
        self.outputs = {n: np.zeros(p.shape, np.float32) for n, p in executable.outputs.items()}
        self._generation = self._handle = 0
        #: The agent's copies of the inputs; None before the first run.
        self._fed: dict[str, NDArray[Any]] | None = None
        loaded = self._load()
        self.footprint, self.limited = loaded.footprint, loaded.limited
        self._keep(loaded)

    def run(self) -> None:
        """Run one inference on `inputs`, and copy the results to `outputs`."""
        with self.lock:
            inputs = {name: value.copy() for name, value in self.inputs.items()}
            self._reload()
            try:
                outputs = self._agent.ask(model_requests.Run(self._handle, inputs))
            except AgentLostError as error:
                error.args = (f"Running {self.executable.model!r}: {error}",)
                raise
            came, wanted = ({name: value.shape for name, value in arrays.items()}
                            for arrays in (outputs, self.outputs))  # fmt: skip
            if came != wanted:
                raise self._agent.refuse(f"it sent outputs of {came} instead of {wanted}")
            self._fed = inputs
            for name, value in outputs.items():
                np.copyto(self.outputs[name], value)

    def profile(self, *, layers: bool = False) -> list[TimeSpan]:
        """The spans of both processors in one inference on `inputs`."""
        with self.lock:
            return [*self._agent.ask(model_requests.Profile(self.handle(), layers))]

    def handle(self) -> int:
        """The agent's handle; loads the model and runs it on `inputs` first if needed."""
        self._reload()
        fed = self._fed
        if fed is None or any(
            not _is_same(fed[name], value) for name, value in self.inputs.items()
        ):
            self.run()
        return self._handle

    def close(self) -> None:
        """Release the agent's copy; the next run would reload it."""
        if self._generation == self._agent.generation and self._agent.pid is not None:
            try:
                self._agent.ask(model_requests.Close(self._handle))
            except AgentLostError:
                return
            finally:
                self._generation = 0

    def _reload(self) -> None:
        if self._generation != self._agent.generation or self._agent.pid is None:
            self._keep(self._load())

    def _keep(self, loaded: model_requests.LoadedModel) -> None:
        self._handle, self._generation = loaded.handle, self._agent.generation
        self._fed = None


def load(
    agent: AgentClient, executable: Executable, on_step: StepCallback, *, tries: bool, on_cpu: bool
) -> model_requests.LoadedModel:
    """Send an executable with its arrays.

    Raises `RefusedError` for refused kernels, and for a step in which the agent crashed or hung.
    """
    arrays: dict[str, NDArray[Any]] = {}

    def put(array: NDArray[Any]) -> str:
        digest = array_digest(array)
        arrays[digest] = array
        return digest

    content = encode(executable, put)
    at = -1

    def on_event(kind: EventKind, step: int, value: None) -> None:
        nonlocal at
        if kind != "begin" or not -1 <= step < len(executable.steps):
            raise FrameError(f"it sent {kind!r} of step {step} of {len(executable.steps)}")
        at = step
        on_step(step)

    try:
        answer = agent.ask(model_requests.Load(content, arrays, tries, on_cpu), on_event)
    except AgentLostError as error:
        step = executable.steps[at] if at >= 0 else None
        if not isinstance(step, GpuOp) or error.is_blameless:
            raise
        raise RefusedError([Refusal(step.label, step.variant, step.choice, str(error))]) from error
    if not isinstance(answer, model_requests.LoadedModel):
        raise RefusedError(answer)
    return answer


def _is_same(array: NDArray[Any], other: NDArray[Any]) -> bool:
    """Bitwise equality, so that a NaN equals itself."""
    return np.array_equal(array.reshape(-1).view(np.uint8), other.reshape(-1).view(np.uint8))


class RemotePeer:
    """A peer started by an agent; it ends with the agent."""

    def __init__(
        self, agent: AgentClient, name: str, started: model_requests.StartedPeer, threads: int
    ) -> None:
        self.name, self.version, self.threads = name, started.version, threads
        self.busy_cores = started.busy_cores
        self._agent, self._handle, self._generation = agent, started.handle, agent.generation

    def handle(self) -> int:
        """The agent's handle; raises `DeviceError` if that agent has ended."""
        if not self._is_running():
            raise DeviceError(f"{self.name} ended with the agent that had started it.")
        return self._handle

    def outputs(self) -> Arrays:
        return self._agent.ask(model_requests.PeerOutputs(self.handle()))

    def close(self) -> None:
        if self._is_running():
            self._agent.ask(model_requests.Close(self._handle))

    def _is_running(self) -> bool:
        return self._generation == self._agent.generation and self._agent.pid is not None


class RemoteTarget(Target):
    """A device behind an agent; `command` starts the agent, with frames on its pipes.

    The agent is a child of this process, or runs on a device over ssh or adb. `build`, `fixes` and
    `cuts` are those of `AgentClient`.
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
        super().__init__(soc)
        self.serial = serial
        self._start = partial(
            RemoteTarget, serial, command, soc, build=build, fixes=fixes, cuts=cuts
        )
        prelude: list[Request[Any]] = [] if soc is None else [requests.Begin(require_local(soc))]
        name = f"the agent of {serial!r}"
        self.agent = AgentClient(
            command, name=name, prelude=prelude, build=build, fixes=fixes, cuts=cuts
        )

    def fresh(self) -> RemoteTarget:
        return self._start()

    def cold_start(self) -> ColdStart:
        spent: Mapping[str, float] = self.ask(requests.Facts("seconds"))
        start_s, import_s = self.agent.start_seconds()

        def ms(*kinds: type[Request[Any]]) -> float:
            return 1e3 * sum(spent.get(kind.__name__, 0.0) for kind in kinds)

        begin_ms, run_ms, load_ms = (
            ms(requests.Begin),
            ms(model_requests.Run),
            ms(requests.Open, model_requests.Load),
        )
        whole_ms = 1e3 * start_s + begin_ms + load_ms + run_ms
        return ColdStart(whole_ms, 1e3 * import_s + begin_ms, load_ms, run_ms)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Limit requests inside to `seconds`; then end the agent."""
        with self.agent.within(seconds):
            yield

    def close(self) -> None:
        self.agent.close()

    def ask(self, request: Request[Answer], on_event: EventHandler | None = None) -> Answer:
        return self.agent.ask(request, on_event)

    def _refuse(self, problem: str) -> CodlError:
        return self.agent.refuse(problem)

    # Running.

    def load(
        self, executable: Executable, *, tries: bool = True, on_step: StepCallback = no_callback
    ) -> RemoteModel:
        return RemoteModel(self.agent, executable, on_step, tries=tries)

    def load_on_cpu(self, executable: Executable) -> RemoteModel:
        return RemoteModel(self.agent, executable, no_callback, on_cpu=True)

    def binaries(self, model: RemoteModel) -> Sequence[Binary]:
        return self.agent.ask(model_requests.Binaries(model.handle()))

    def start_peer(
        self, name: str, model: bytes, inputs: Arrays, plan: Plan | None = None
    ) -> RemotePeer:
        started = self.agent.ask(model_requests.StartPeer(name, model, inputs, plan))
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
        """Time models and peers; raises `AgentLostError` if the agent is lost meanwhile."""

        def on_event(kind: EventKind, index: int, value: None) -> None:
            if kind != "round":
                raise FrameError(f"it sent {kind!r} while it timed")
            after_round()

        with self.agent.lock:
            for model in models.values():
                model.handle()  # reloading a model may replace the agent of another
            handles = {name: model.handle() for name, model in models.items()}
            request = Time(handles, effort, with_energy, anchors)
            times = self.agent.ask(request, on_event)
        if {*times.latency_ms, *times.failed} != {*models}:
            timed = ", ".join(sorted({*times.latency_ms, *times.failed})) or "nothing"
            raise self.agent.refuse(f"it timed {timed} instead of {', '.join(models)}")
        return times


def process_target(soc: Soc | None) -> RemoteTarget:
    """This machine through an agent in a child process, which a driver may crash."""
    return RemoteTarget("process", COMMAND, soc)
