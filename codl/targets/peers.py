"""A peer: another library in an agent of its own, on the cores of both processors.

Between runs it waits for its input. It answers a run only when its threads have stopped: threads
of libraries spin for a while, which would disturb the next measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread, get_native_id
from time import perf_counter, process_time
from typing import TypeVar

from codl.boundary import explained
from codl.errors import CodlError, DeviceError
from codl.ir.plan import Plan
from codl.measure.peers import PEERS, PeerJob
from codl.measure.timing import timed
from codl.runtime import threads
from codl.runtime.child import first_line, inherited
from codl.runtime.drivers import COUNTS
from codl.runtime.placement import LocalSoc
from codl.targets.client import COMMAND, AgentClient
from codl.targets.requests import BecomePeer, FeedPeer, PeerOutputs, RunPeer
from codl.targets.wire import Arrays

#: Variables by which libraries choose their threads. A peer gets its threads by its own options.
VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", *COUNTS)
#: How long a peer is watched to see on which cores it works, and how often.
OBSERVE_S, LOOK_S = 0.3, 0.005
T = TypeVar("T")


class PeerProcess:
    """A peer's agent, which is pinned to its cores from the start.

    All methods raise `DeviceError` with the library's error, or how the process ended.
    `observed_cores` are the cores on which its threads were seen working, `busy_cores` the mean
    number of busy ones.
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
            self.version = self.agent.ask(BecomePeer(name, model, soc, self.cores, plan))
        except DeviceError:
            self.agent.close()
            raise
        self.observed_cores: tuple[int, ...] = ()
        self.busy_cores = 0.0

    @property
    def threads(self) -> int:
        return len(self.cores)

    def feed(self, inputs: Arrays) -> None:
        """Set the inputs, run for a while, and observe the cores."""
        self.observed_cores, self.busy_cores = self.agent.ask(FeedPeer(inputs))

    def run(self, runs: int) -> Sequence[float]:
        """Run `runs` times in a row; the seconds of each, measured in the peer's process.

        Raises `DeviceError` where its threads do not stop spinning.
        """
        seconds, is_idle = self.agent.ask(RunPeer(runs))
        if not is_idle:
            raise DeviceError(f"The threads of {self.name} do not stop after a run.")
        if len(seconds) != runs:
            raise DeviceError(f"{self.name} ran {len(seconds)} times and not {runs}.")
        return seconds

    def outputs(self) -> Arrays:
        return self.agent.ask(PeerOutputs())

    def close(self) -> None:
        """End the process."""
        self.agent.close()


def environment(count: int) -> Mapping[str, str]:
    """This process's environment with the variables that set the threads of libraries replaced."""
    kept = {name: v for name, v in inherited().items() if not name.startswith(VARIABLES)}
    return {**kept, "OMP_NUM_THREADS": str(count), "OPENBLAS_NUM_THREADS": "1"}


class PeerHost:
    """A peer in this process, with a folder for its files.

    Errors of the library become a `DeviceError` with their first line.
    """

    def __init__(
        self, name: str, model: bytes, soc: LocalSoc, cores: tuple[int, ...], plan: Plan | None
    ) -> None:
        self._folder = TemporaryDirectory(prefix="codl-peer-")
        folder = Path(self._folder.name)
        (folder / "model.onnx").write_bytes(model)
        job = PeerJob(folder / "model.onnx", cores, folder, soc, plan)
        self._peer = _run(lambda: PEERS[name](job))
        self.version = str(self._peer.version)

    def feed(self, inputs: Arrays) -> tuple[tuple[int, ...], float]:
        """Set the inputs and run once, then for a while; the cores, and how many were busy."""
        _run(lambda: self._peer.feed(inputs))
        self.run(1)
        used, begin = process_time(), perf_counter()
        cores = observed(lambda: _run(self._peer.run))
        return cores, (process_time() - used) / (perf_counter() - begin)

    def run(self, runs: int) -> tuple[tuple[float, ...], bool]:
        """Run `runs` times; the seconds of each, and whether the library's threads stopped."""
        seconds = timed(lambda: _run(self._peer.run))(runs)
        return tuple(seconds), threads.wait_until_idle()

    def outputs(self) -> Arrays:
        """The outputs of the last run."""
        return _run(self._peer.outputs)

    def close(self) -> None:
        self._peer.close()
        self._folder.cleanup()


def observed(work: Callable[[], object]) -> tuple[int, ...]:
    """Repeat `work` for a while; the cores on which threads of this process were seen."""
    stop, observer = Event(), threads.CoreObserver()

    def watch() -> None:
        observer.ignore(get_native_id())
        while not stop.wait(LOOK_S):
            observer.sample()

    watcher = Thread(target=watch)
    watcher.start()
    begin = perf_counter()
    while perf_counter() - begin < OBSERVE_S:
        work()
    stop.set()
    watcher.join()
    return tuple(sorted(observer.cores))


def _run(work: Callable[[], T]) -> T:
    """Run code of a library; its errors become a `DeviceError` with their first line."""
    try:
        with explained():
            return work()
    except CodlError:
        raise
    except Exception as error:
        raise DeviceError(first_line(error)) from error
