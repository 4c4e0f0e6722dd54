"""One function over many values in parallel, in local processes or on a Dask cluster.

joblib distributes the work. Workers receive values rather than paths, since a cluster's machines
have other files. Results are independent of the workers: values are processed separately, results
keep their order, and BLAS has one thread everywhere.
"""

from __future__ import annotations

import pickle
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from codl.errors import CodlError, MismatchError, explained
from codl.files import VERSION
from codl.registry import listed, load_installed, load_plugin

C = TypeVar("C")
T = TypeVar("T")
R = TypeVar("R")
#: A pickled value. As an array, joblib shares it with all workers.
Pickled = NDArray[np.uint8]
#: Seconds for a Dask cluster to answer, and to have a worker.
PATIENCE_S = 10
#: Held while a worker's thread loads plugins.
_LOADING = Lock()


@dataclass(frozen=True)
class Workers:
    """Where to run work: in `jobs` local processes, or on the Dask cluster of the scheduler `dask`.

    One job without a cluster runs in the calling process.
    """

    jobs: int = 1
    dask: str | None = None

    @property
    def are_here(self) -> bool:
        """Whether all work runs in this process, without pickling of values."""
        return self.jobs == 1 and self.dask is None

    @property
    def have_files(self) -> bool:
        """Whether workers can read this machine's files; a cluster may not."""
        return self.dask is None

    def at_most(self, jobs: int) -> Workers:
        """The same workers, with at most `jobs` local processes."""
        return Workers(max(1, min(self.jobs, jobs)), self.dask)

    def results(
        self, work: Callable[[C, T], R], common: C, values: Iterable[T]
    ) -> Generator[tuple[int, R], None, None]:
        """(index, `work(common, value)`) of each value, on arrival; closing cancels the rest.

        `work` is a module-level function, and all values can be pickled; each worker gets `common`
        once. Values are consumed one by one and started in order. Raises the errors of `work`, and
        `CodlError` for a dead worker, a worker with another codl, or an unreachable cluster.
        """
        with threadpool_limits(1, user_api="blas"):
            if self.are_here:
                yield from ((at, work(common, value)) for at, value in enumerate(values))
            else:
                yield from self._on_workers(work, common, values)

    def _on_workers(
        self, work: Callable[[C, T], R], common: C, values: Iterable[T]
    ) -> Iterator[tuple[int, R]]:
        with explained():
            from joblib import Parallel, delayed
        shared = np.frombuffer(pickle.dumps((work, common)), np.uint8)
        plugins = tuple(listed())
        calls = (
            delayed(_run)(VERSION, plugins, shared, at, pickle.dumps(value))
            for at, value in enumerate(values)
        )
        with _explained_deaths(), self._backend():
            with _ignoring_interrupts():
                results = Parallel(
                    # Values are consumed in this thread, not in a thread that talks to the cluster.
                    pre_dispatch="2*n_jobs" if self.dask is None else "all",
                    batch_size=1,
                    return_as="generator_unordered",
                )(calls)
            try:
                for result in results:  # noqa: UP028 - which would close it first
                    yield result
            finally:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # it lists the cancelled work
                    results.close()

    @contextmanager
    def _backend(self) -> Iterator[None]:
        """Select joblib's backend for these workers."""
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


def _run(
    version: str, plugins: Sequence[Path], shared: Pickled, at: int, value: bytes
) -> tuple[int, Any]:
    """Process one value in a worker; unpickles only after the caller's plugins are loaded.

    Raises `MismatchError` in a worker with another codl.
    """
    if version != VERSION:
        raise MismatchError(
            f"The worker on {socket.gethostname()} has codl {VERSION}, and the work comes from "
            f"codl {version}: install the same there."
        )
    with _LOADING:
        load_installed()
        for folder in plugins:
            load_plugin(folder)
    work, common = pickle.loads(shared.data)
    work_on = pickle.loads(value)
    threadpool_limits(1, user_api="blas")  # permanent, as other threads may work too
    return at, work(common, work_on)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Make processes started inside ignore Ctrl-C; this process handles it later and ends them.

    A new program inherits ignored signals from its first instruction.
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
    """A client of a Dask cluster; raises `CodlError` if no cluster answers, or if it fails."""
    with explained():
        from distributed import Client, KilledWorker
        from distributed.comm import CommClosedError, resolve_address
    try:
        resolve_address(address)  # a client without an address takes long to end
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
def _explained_deaths() -> Iterator[None]:
    """Raise `CodlError` for a dead worker; restores a `KeyboardInterrupt` hidden by joblib."""
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
