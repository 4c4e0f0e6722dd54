"""Workers: one function for many values, in processes of this machine or on a Dask cluster.

joblib hands the work out. What goes to a worker are values and never paths, since a cluster's
machines have other files. Results do not depend on the workers: they come in the order of the
values, every value is worked on alone, and BLAS has one thread everywhere.
"""

from __future__ import annotations

import pickle
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from codl.boundary import explained
from codl.errors import CodlError, MismatchError
from codl.plugins import listed, load_installed, load_plugin
from codl.provenance import VERSION

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")
#: A pickled value: as an array, joblib hands it to all of the workers at once.
Pickled = NDArray[np.uint8]
#: How long a Dask cluster has to answer, and to have a worker.
PATIENCE_S = 10
#: Threads of one worker load plugins one after the other.
_LOADING = Lock()


@dataclass(frozen=True)
class Workers:
    """Where work is done: in `jobs` processes of this machine, or by the workers of a Dask cluster.

    `dask` is the address of the cluster's scheduler. One job without a cluster is done in this
    very process.
    """

    jobs: int = 1
    dask: str | None = None

    @property
    def are_here(self) -> bool:
        """Whether all is done in this process, so that values need not be pickled."""
        return self.jobs == 1 and self.dask is None

    @property
    def have_files(self) -> bool:
        """Whether the files of this machine are there: on a cluster they need not be."""
        return self.dask is None

    def at_most(self, jobs: int) -> Workers:
        """The same with no more processes than there is work for."""
        return Workers(max(1, min(self.jobs, jobs)), self.dask)

    def map(
        self,
        work: Callable[[C, T], R],
        common: C,
        values: Iterable[T],
    ) -> list[R]:
        """`work(common, value)` of every value, in the order of the values.

        `work` is a function of a module, and all values can be pickled; what is `common` goes to
        a worker once. Values are asked for one by one and begun in their order. Raises what `work`
        raises, as if it had run here, and `CodlError` where a worker dies, where it has another
        codl, or where there is no such cluster.
        """
        done: dict[int, R] = {}
        with closing(self.results(work, common, values)) as results:
            for at, result in results:
                done[at] = result
        return [done[at] for at in range(len(done))]

    def results(
        self, work: Callable[[C, T], R], common: C, values: Iterable[T]
    ) -> Generator[tuple[int, R], None, None]:
        """The results by the places of their values, as they come; `map` says more.

        Whoever closes it before the last gives up what is still under way.
        """
        with threadpool_limits(1, user_api="blas"):
            if self.are_here:
                yield from ((at, work(common, value)) for at, value in enumerate(values))
            else:
                yield from self._elsewhere(work, common, values)

    def _elsewhere(
        self, work: Callable[[C, T], R], common: C, values: Iterable[T]
    ) -> Iterator[tuple[int, R]]:
        with explained():
            from joblib import Parallel, delayed
        origin, shared = _Origin.here(), np.frombuffer(pickle.dumps((work, common)), np.uint8)
        calls = (
            delayed(_run)(origin, shared, at, pickle.dumps(value))
            for at, value in enumerate(values)
        )
        with _deaths_explained(), self._backend():
            with _deaf():
                results = Parallel(
                    # Values are asked for here, and not by a thread that talks to the cluster.
                    pre_dispatch="2*n_jobs" if self.dask is None else "all",
                    batch_size=1,
                    return_as="generator_unordered",
                )(calls)
            try:
                for result in results:  # noqa: UP028 - which would close it first
                    yield result
            finally:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # it says what was given up
                    results.close()

    @contextmanager
    def _backend(self) -> Iterator[None]:
        """Let joblib work there."""
        from joblib import parallel_config

        if self.dask is None:
            with parallel_config("loky", n_jobs=self.jobs, inner_max_num_threads=1):
                yield
            return
        with (
            _client(self.dask) as client,
            parallel_config("dask", n_jobs=-1, client=client, wait_for_workers_timeout=PATIENCE_S),
        ):
            yield


@dataclass(frozen=True)
class _Origin:
    """What a worker must have as this process has it."""

    version: str
    plugins: tuple[Path, ...]

    @classmethod
    def here(cls) -> _Origin:
        return cls(VERSION, tuple(listed()))

    def check(self) -> None:
        """Load the same plugins; raise `MismatchError` where this is another codl."""
        if self.version != VERSION:
            raise MismatchError(
                f"The worker on {socket.gethostname()} has codl {VERSION}, and the work comes from "
                f"codl {self.version}: install the same there."
            )
        with _LOADING:
            load_installed()
            for folder in self.plugins:
                load_plugin(folder)


def _run(origin: _Origin, shared: Pickled, at: int, value: bytes) -> tuple[int, Any]:
    """One value in a worker; pickles are opened once there is what they refer to."""
    origin.check()
    work, common = pickle.loads(shared.data)
    work_on = pickle.loads(value)
    threadpool_limits(1, user_api="blas")  # for good: other threads may be at work too
    return at, work(common, work_on)


@contextmanager
def _deaf() -> Iterator[None]:
    """Processes that are begun inside never hear Ctrl-C: this one, which does behind it, ends them.

    What is ignored stays so in a new program, from its first instruction on.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _client(address: str) -> Iterator[Any]:
    """A Dask cluster; raises `CodlError` where none answers at the address, or where it fails."""
    with explained():
        from distributed import Client, KilledWorker
        from distributed.comm import CommClosedError, resolve_address
    try:
        resolve_address(address)  # a client that was given no address takes long to end
        client = Client(address, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise CodlError(
            f"No Dask cluster answers at {address!r}: {error}. Expected the address that "
            "`dask scheduler` prints, such as tcp://host:8786."
        ) from error
    try:
        with client:
            yield client
    except (CancelledError, CommClosedError, KilledWorker) as error:
        raise CodlError(
            f"The Dask cluster at {address} lost the work: {error} Its log says why; its workers "
            f"need memory for a model, and codl {VERSION} with its extras `train` and `onnx`."
        ) from error
    except TimeoutError as error:
        raise CodlError(
            f"The Dask cluster at {address} has no worker after {PATIENCE_S} s: "
            f"`dask worker {address}` starts one."
        ) from error


@contextmanager
def _deaths_explained() -> Iterator[None]:
    """Turn what becomes of a process that died into a `CodlError`.

    What joblib raises where Ctrl-C comes while its processes are begun is a `KeyboardInterrupt`.
    """
    try:
        yield
    except BrokenProcessPool as error:
        raise CodlError(
            "A worker process died, as happens where memory runs out: take fewer by --jobs."
        ) from error
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from error
        raise
