"""Peers: other libraries, each in its own agent on the cores of both processors.

Between runs a peer waits for its input. It answers a run once its threads are idle: threads of
libraries spin for a while, which would disturb the next measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import TypeVar

from codl.errors import CodlError, DeviceError, explained
from codl.ir.plan import Plan
from codl.machine import threads
from codl.machine.placement import LocalSoc
from codl.measure.peers import PEERS, THROUGHPUT_PEERS, PeerJob
from codl.measure.timing import timed
from codl.runtime.drivers import COUNTS
from codl.targets.child import first_line, inherited
from codl.targets.client import COMMAND, AgentClient
from codl.targets.model_requests import BecomePeer, FeedPeer, PeerOutputs, RunPeer
from codl.targets.requests import Arrays

#: Prefixes of variables that set libraries' threads. A peer gets its threads by its own options.
VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", *COUNTS)
#: Seconds of observing how many cores a peer keeps busy.
OBSERVE_S = 0.3
T = TypeVar("T")


class PeerProcess:
    """A peer's agent, pinned to its cores from the start.

    All methods raise `DeviceError` with the library's error or the end of the process.
    `busy_cores` is the mean number of cores that it keeps busy.
    """

    def __init__(
        self,
        name: str,
        model: bytes,
        soc: LocalSoc,
        plan: Plan | None = None,
        *,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.name, self.cores = name, soc.placement.cores
        self.agent = AgentClient(
            command,
            name=f"the peer {name!r}",
            cores=self.cores,
            environment=environment(len(self.cores)),
        )
        try:
            become = BecomePeer(name, model, soc, self.cores, plan)
            self._handle, self.version = self.agent.ask(become)
        except DeviceError:
            self.agent.close()
            raise
        self.busy_cores = 0.0

    @property
    def threads(self) -> int:
        return len(self.cores)

    def feed(self, inputs: Arrays) -> None:
        """Set the inputs, run for a while, and count the busy cores."""
        self.busy_cores = self.agent.ask(FeedPeer(self._handle, inputs))

    def run(self, runs: int) -> Sequence[float]:
        """Seconds of each of `runs` runs; raises `DeviceError` for threads that keep spinning."""
        seconds, is_idle = self.agent.ask(RunPeer(self._handle, runs))
        if not is_idle:
            raise DeviceError(f"The threads of {self.name} do not stop after a run.")
        if len(seconds) != runs:
            raise DeviceError(f"{self.name} ran {len(seconds)} times and not {runs}.")
        return seconds

    def outputs(self) -> Arrays:
        return self.agent.ask(PeerOutputs(self._handle))

    def close(self) -> None:
        self.agent.close()


def environment(count: int) -> Mapping[str, str]:
    """This process's environment, with other settings of libraries' threads."""
    kept = {name: v for name, v in inherited().items() if not name.startswith(VARIABLES)}
    return {**kept, "OMP_NUM_THREADS": str(count), "OPENBLAS_NUM_THREADS": "1"}


class PeerHost:
    """A peer in this process and its folder; the library's errors become `DeviceError`."""

    def __init__(
        self, name: str, model: bytes, soc: LocalSoc, cores: tuple[int, ...], plan: Plan | None
    ) -> None:
        self._folder = TemporaryDirectory(prefix="codl-peer-")
        folder = Path(self._folder.name)
        (folder / "model.onnx").write_bytes(model)
        job = PeerJob(folder / "model.onnx", cores, folder, soc, plan)
        known = THROUGHPUT_PEERS if name in THROUGHPUT_PEERS else PEERS
        self._peer = _run(lambda: known[name](job))
        self.version = str(self._peer.version)

    def feed(self, inputs: Arrays) -> float:
        """Set the inputs, run once, then for a while; returns the mean number of busy cores."""
        _run(lambda: self._peer.feed(inputs))
        self.run(1)
        used, begin = process_time(), perf_counter()
        while perf_counter() - begin < OBSERVE_S:
            _run(self._peer.run)
        return (process_time() - used) / (perf_counter() - begin)

    def run(self, runs: int) -> tuple[tuple[float, ...], bool]:
        """Run `runs` times; returns the seconds of each, and whether its threads went idle."""
        seconds = timed(lambda: _run(self._peer.run))(runs)
        return tuple(seconds), threads.wait_until_idle()

    def outputs(self) -> Arrays:
        """The outputs of the last run."""
        return _run(self._peer.outputs)

    def close(self) -> None:
        del self._peer
        self._folder.cleanup()


def _run(work: Callable[[], T]) -> T:
    """Run code of a library; its errors become a `DeviceError` with their first line."""
    try:
        with explained():
            return work()
    except CodlError:
        raise
    except Exception as error:
        raise DeviceError(first_line(error)) from error
