"""Models and peers that an agent holds, as this side sees them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import DeviceError
from codl.ir.constants import array_digest
from codl.ir.executable import Executable, GpuOp, Refusal
from codl.ir.executable_json import encode
from codl.records.results import TimeSpan
from codl.runtime.connection import FrameError
from codl.runtime.handles import Trying
from codl.runtime.loaded import RefusedError
from codl.targets.client import AgentClient, AgentLostError
from codl.targets.served_models import LoadedModel, Models, StartedPeer
from codl.targets.wire import Arrays


class RemoteModel:
    """An executable that is loaded by an agent; `inputs` and `outputs` are arrays of this process.

    An agent that was lost since is started again, and loads it anew at the next call.
    """

    def __init__(
        self,
        agent: AgentClient,
        executable: Executable,
        trying: Trying,
        *,
        tries: bool = True,
        on_cpu: bool = False,
    ) -> None:
        self.executable, self._agent = executable, agent
        self._load = partial(load, agent, executable, trying, tries=tries, on_cpu=on_cpu)
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

    def profile(self) -> list[TimeSpan]:
        """What each processor did when in one inference from what `inputs` hold."""
        with self.lock:
            return list(self._agent.ask(Models.profile, self.handle()))

    def handle(self) -> int:
        """What the agent calls it, once it is there and has run on what `inputs` hold."""
        self._reload()
        fed = self._fed
        if fed is None or any(v.tobytes() != fed[n].tobytes() for n, v in self.inputs.items()):
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
    agent: AgentClient, executable: Executable, trying: Trying, *, tries: bool, on_cpu: bool
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
        trying(step)

    try:
        loaded = agent.ask(Models.load, content, sent, tries, on_cpu, hear)
    except AgentLostError as error:
        step = executable.steps[at] if at >= 0 else None
        if not isinstance(step, GpuOp) or error.is_cut:
            raise
        raise RefusedError([Refusal(step.label, step.variant, step.choice, str(error))]) from error
    if not isinstance(loaded, LoadedModel):
        raise RefusedError(loaded)
    return loaded


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
