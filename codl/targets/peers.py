"""A peer: another library in an agent of its own, on the cores of both processors; and its host.

While others run it sleeps on its input, and it answers a run only when its threads sleep too:
libraries let them spin for a while, which would disturb whoever is measured next.
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
from codl.runtime.child import inherited
from codl.runtime.drivers import COUNTS
from codl.runtime.placement import LocalSoc
from codl.targets.client import COMMAND, AgentClient
from codl.targets.process import Process, first_line
from codl.targets.wire import Arrays, question

#: What other libraries read from the environment. A peer gets its threads by its own options.
VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", *COUNTS)
#: How long a peer is watched to see on which cores it works, and how often.
OBSERVE_S, LOOK_S = 0.3, 0.005
T = TypeVar("T")


class PeerProcess:
    """Starts a peer's agent, which inherits the cores from the start, and talks to it.

    All methods raise `DeviceError` with what the library said, or how the process ended.
    `observed_cores` are those on which its threads were seen at work, `busy_cores` how many of them
    it kept busy in the mean.
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
            self.version = self.agent.ask(Process.become_peer, name, model, soc, self.cores, plan)
        except DeviceError:
            self.agent.close()
            raise
        self.observed_cores: tuple[int, ...] = ()
        self.busy_cores = 0.0

    @property
    def threads(self) -> int:
        return len(self.cores)

    def feed(self, inputs: Arrays) -> None:
        """Hand inputs over, run once, and see on which cores."""
        self.agent.ask(PeerHost.feed, inputs)
        self.agent.ask(PeerHost.run, 1)
        self.observed_cores, self.busy_cores = self.agent.ask(PeerHost.observe)

    def run(self, runs: int) -> Sequence[float]:
        """Run `runs` times in a row; the seconds of each, measured over there.

        Raises `DeviceError` where its threads go on spinning after that, which would disturb all
        others.
        """
        seconds, is_idle = self.agent.ask(PeerHost.run, runs)
        if not is_idle:
            raise DeviceError(f"The threads of {self.name} do not stop after a run.")
        if len(seconds) != runs:
            raise DeviceError(f"{self.name} ran {len(seconds)} times and not {runs}.")
        return seconds

    def outputs(self) -> Arrays:
        return self.agent.ask(PeerHost.outputs)

    def close(self) -> None:
        """End the process."""
        self.agent.close()


def environment(count: int) -> Mapping[str, str]:
    """This process's environment without what would tell a library how many threads to have."""
    kept = {name: v for name, v in inherited().items() if not name.startswith(VARIABLES)}
    return {**kept, "OMP_NUM_THREADS": str(count), "OPENBLAS_NUM_THREADS": "1"}


class PeerHost:
    """A peer in this process, with a folder for its files; raises `DeviceError` for what it does.

    Whatever a library raises is told by its first line.
    """

    def __init__(
        self, name: str, model: bytes, soc: LocalSoc, cores: tuple[int, ...], plan: Plan | None
    ) -> None:
        self._folder = TemporaryDirectory(prefix="codl-peer-")
        folder = Path(self._folder.name)
        (folder / "model.onnx").write_bytes(model)
        job = PeerJob(folder / "model.onnx", cores, folder, soc, plan)
        self._peer = _told(lambda: PEERS[name](job))
        self.version = str(self._peer.version)

    @question()
    def feed(self, inputs: Arrays) -> None:
        """Put inputs where the runs that follow read them."""
        _told(lambda: self._peer.feed(inputs))

    @question(300.0)
    def run(self, runs: int) -> tuple[tuple[float, ...], bool]:
        """Run `runs` times; the seconds of each, and whether the library's threads stopped."""
        seconds = timed(lambda: _told(self._peer.run))(runs)
        return tuple(seconds), threads.wait_until_idle()

    @question()
    def observe(self) -> tuple[tuple[int, ...], float]:
        """The cores on which threads were seen in a while, and how many were busy in the mean."""
        used, begin = process_time(), perf_counter()
        cores = observed(lambda: _told(self._peer.run))
        return cores, (process_time() - used) / (perf_counter() - begin)

    @question()
    def outputs(self) -> Arrays:
        """The outputs of the last run."""
        return _told(self._peer.outputs)

    def close(self) -> None:
        self._peer.close()
        self._folder.cleanup()


def observed(work: Callable[[], object]) -> tuple[int, ...]:
    """The cores on which threads of this process were seen while `work` was done for a while."""
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


def _told(work: Callable[[], T]) -> T:
    try:
        with explained():
            return work()
    except CodlError:
        raise
    except Exception as error:
        raise DeviceError(first_line(error)) from error
