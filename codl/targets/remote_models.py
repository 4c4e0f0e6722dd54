"""Models and peers that an agent holds, as this side sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, DeviceError
from codl.ir.constants import array_digest
from codl.ir.executable import Executable, GpuOp, Refusal
from codl.ir.executable_json import encode
from codl.records.results import TimeSpan
from codl.runtime.connection import Blob, FrameError
from codl.runtime.loaded import RefusedError
from codl.targets.arrays import ArrayRecord, Arrays, from_wire, to_wire
from codl.targets.client import AgentClient, AgentLostError
from codl.targets.message_base import Building, Done, Reply
from codl.targets.model_messages import (
    KernelsRefused,
    Lacking,
    Lacks,
    Load,
    LoadAnswer,
    ModelLoaded,
    PeerOutputs,
    PeerStarted,
    Profile,
    Profiled,
    Ran,
    ReadPeerOf,
    Run,
    Unload,
)


class RemoteModel:
    """An executable that is loaded by an agent; `inputs` and `outputs` are arrays of this process.

    An agent that was lost since is started again, and loads it anew at the next call.
    """

    def __init__(
        self,
        agent: AgentClient,
        executable: Executable,
        *,
        tries: bool = True,
        on_cpu: bool = False,
    ) -> None:
        self.executable, self._agent = executable, agent
        self._load = partial(load, agent, executable, tries=tries, on_cpu=on_cpu)
        #: Held by whatever runs something on the same agent.
        self.lock = agent.lock
        self.inputs = {n: np.zeros(p.shape, np.float32) for n, p in executable.inputs.items()}
        self.outputs = {n: np.zeros(p.shape, np.float32) for n, p in executable.outputs.items()}
        self._generation = self._handle = 0
        #: What the agent's copies of the inputs hold; None before the first run.
        self._fed: list[bytes] | None = None
        loaded = self._load()
        self.footprint, self.limited = loaded.footprint, loaded.limited
        self._keep(loaded)

    def run(self) -> None:
        """One inference from what `inputs` hold."""
        with self.lock:
            records, blobs = to_wire(self.inputs)
            self._reload()
            try:
                answer, parts = self._agent.ask(Run(self._handle, records), Ran, blobs)
            except AgentLostError as error:
                error.args = (f"Running {self.executable.model!r}: {error}",)
                raise
            found = received(self._agent, answer.outputs, parts)
            shapes, wanted = ({n: own.shape for n, own in all_of.items()}
                              for all_of in (found, self.outputs))  # fmt: skip
            if shapes != wanted:
                raise self._agent.refuse(f"It sent outputs of {shapes}, where {wanted} was asked.")
            self._fed = [bytes(blob) for blob in blobs]
            for name, value in found.items():
                np.copyto(self.outputs[name], value)

    def profile(self) -> list[TimeSpan]:
        """What each processor did when in one inference from what `inputs` hold."""
        with self.lock:
            answer, _ = self._agent.ask(Profile(self.handle()), Profiled)
        return list(answer.spans)

    def handle(self) -> int:
        """What the agent calls it, once it is there and has run on what `inputs` hold."""
        self._reload()
        if self._fed != [bytes(blob) for blob in to_wire(self.inputs)[1]]:
            self.run()
        return self._handle

    def close(self) -> None:
        """Release it over there; it would be loaded anew where it runs again."""
        if self._generation == self._agent.generation and self._agent.pid is not None:
            try:
                self._agent.ask(Unload(self._handle), Done)
            except AgentLostError:
                return
            finally:
                self._generation = 0

    def _reload(self) -> None:
        if self._generation != self._agent.generation or self._agent.pid is None:
            self._keep(self._load())

    def _keep(self, loaded: ModelLoaded) -> None:
        self._handle, self._generation = loaded.handle, self._agent.generation
        self._fed = None


def load(
    agent: AgentClient, executable: Executable, *, tries: bool, on_cpu: bool = False
) -> ModelLoaded:
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
    answer, _ = agent.ask(Lacks(tuple(arrays)), Lacking)
    if unknown := {*answer.digests} - {*arrays}:
        raise agent.refuse(f"It lacks {', '.join(sorted(unknown))}, of which it was not asked.")
    records, blobs = to_wire({digest: arrays[digest] for digest in answer.digests})
    trying = _Trying(executable)
    request = Load(records, tries, on_cpu)
    try:
        loaded, _ = agent.ask(request, LoadAnswer, [content, *blobs], on_event=trying.hear)
    except AgentLostError as error:
        raise trying.blamed(error) from error
    if isinstance(loaded, KernelsRefused):
        raise RefusedError(loaded.refusals)
    assert isinstance(loaded, ModelLoaded)
    return loaded


@dataclass
class _Trying:
    """The step whose kernels an agent tries while it loads."""

    executable: Executable
    step: int = -1

    def hear(self, event: Reply) -> None:
        if isinstance(event, Building):
            if not -1 <= event.index < len(self.executable.steps):
                raise FrameError(f"It tries the step {event.index}, of which there is none.")
            self.step = event.index

    def blamed(self, error: AgentLostError) -> DeviceError:
        """The refusal of the step that took an agent down; the error itself where none did."""
        own = self.executable.steps[self.step] if self.step >= 0 else None
        if not isinstance(own, GpuOp) or error.is_cut:
            return error
        return RefusedError([Refusal(own.label, own.variant, own.choice, str(error))])


def received(
    agent: AgentClient, records: Sequence[ArrayRecord], blobs: Sequence[Blob]
) -> dict[str, NDArray[Any]]:
    """Arrays that an agent sent; one whose arrays cannot be is ended."""
    try:
        return from_wire(records, blobs)
    except CodlError as error:
        raise agent.refuse(str(error)) from error


class RemotePeer:
    """A peer that an agent has started; it is gone when the agent is."""

    def __init__(self, agent: AgentClient, name: str, started: PeerStarted, threads: int) -> None:
        self.name, self.version, self.threads = name, started.version, threads
        self.observed_cores, self.busy_cores = started.cores, started.busy
        self._agent, self._handle, self._generation = agent, started.handle, agent.generation

    def handle(self) -> int:
        """What the agent calls it; raises `DeviceError` where that agent has ended."""
        if not self._is_there():
            raise DeviceError(f"{self.name} ended with the agent that had started it.")
        return self._handle

    def outputs(self) -> Arrays:
        answer, blobs = self._agent.ask(ReadPeerOf(self.handle()), PeerOutputs)
        return received(self._agent, answer.arrays, blobs)

    def close(self) -> None:
        if self._is_there():
            self._agent.ask(Unload(self._handle), Done)

    def _is_there(self) -> bool:
        return self._generation == self._agent.generation and self._agent.pid is not None
