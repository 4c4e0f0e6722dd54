"""The agent's side of a peer: the library itself, asked one thing after the other.

While others run it sleeps on its input, and it answers a run only when its threads sleep too:
libraries let them spin for a while, which would disturb whoever is measured next.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread, get_native_id
from time import perf_counter, process_time
from typing import TypeVar

from codl.errors import CodlError, DeviceError
from codl.ir.plan import read_plan
from codl.measure.peers import PEERS, Job
from codl.measure.timing import timed
from codl.optional import explained
from codl.runtime import threads
from codl.targets.arrays import Arrays
from codl.targets.model_messages import BecomePeer, PeerObserved, PeerRan

#: How long a peer is watched to see on which cores it works, and how often.
OBSERVE_S, LOOK_S = 0.3, 0.005
T = TypeVar("T")


class PeerHost:
    """A peer in this process, with a folder for its files; raises `DeviceError` for what it does.

    Whatever a library raises is told by its first line.
    """

    def __init__(self, request: BecomePeer, model: bytes) -> None:
        self._folder = TemporaryDirectory(prefix="codl-peer-")
        folder = Path(self._folder.name)
        (folder / "model.onnx").write_bytes(model)
        plan = None if request.plan is None else read_plan(request.plan, folder / "plan")
        job = Job(folder / "model.onnx", request.cores, folder, request.soc, plan)
        self._peer = _told(lambda: PEERS[request.name](job))
        self.version = str(self._peer.version)

    def feed(self, inputs: Arrays) -> None:
        _told(lambda: self._peer.feed(inputs))

    def run(self, runs: int) -> PeerRan:
        seconds = timed(lambda: _told(self._peer.run))(runs)
        return PeerRan(tuple(seconds), threads.wait_until_idle())

    def observe(self) -> PeerObserved:
        used, begin = process_time(), perf_counter()
        cores = observed(lambda: _told(self._peer.run))
        return PeerObserved(cores, (process_time() - used) / (perf_counter() - begin))

    def outputs(self) -> Arrays:
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
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise DeviceError(lines[0] if lines else type(error).__name__) from error
