"""Thread pinning, processor time of threads through Linux's /proc, and lanes for images."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock, RLock, Thread
from time import perf_counter, process_time, sleep
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from codl.errors import ForkError

TASKS = Path("/proc/self/task")
#: A process is idle if it uses less than this share of a sleep of `LOOK_S` seconds.
IDLE_SHARE, LOOK_S = 0.2, 0.001
#: Cores that this process was started on, before any of its threads was pinned.
INITIAL_CORES = tuple(sorted(os.sched_getaffinity(0)))


def available_cores() -> tuple[int, ...]:
    """Cores that the calling thread may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def refused_cores(cores: Iterable[int]) -> list[int]:
    """Those of `cores` that no thread of this process may use, pinned or not."""
    refused = []

    def try_each() -> None:
        for core in cores:
            try:
                os.sched_setaffinity(0, {core})
            except (OSError, ValueError, OverflowError):
                refused.append(core)

    thread = Thread(target=try_each)
    thread.start()
    thread.join()
    return refused


def thread_ids() -> set[int]:
    return {int(task.name) for task in TASKS.iterdir()}


def used_ns() -> dict[int, int]:
    """Nanoseconds of processor time of each thread of this process, by id."""
    used = {}
    for thread in thread_ids():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            used[thread] = int((TASKS / str(thread) / "schedstat").read_text().split()[0])
    return used


def pin(threads: Iterable[int], cores: Iterable[int]) -> None:
    """Pin threads by id, 0 for the calling one; skips ended threads."""
    wanted = set(cores)
    for thread in threads:
        try:
            os.sched_setaffinity(thread, wanted)
        except ProcessLookupError:
            continue


def spread(threads: Iterable[int], cores: Iterable[int]) -> None:
    """Pin each thread to its own core if there are as many cores, else all threads to all cores.

    Two unpinned threads that wake at once may start on the same core.
    """
    ids, places = sorted(threads), sorted(cores)
    if len(ids) != len(places):
        pin(ids, places)
        return
    for thread, core in zip(ids, places, strict=True):
        pin([thread], [core])


@contextmanager
def pinned_to(cores: Iterable[int]) -> Iterator[None]:
    """Pin the calling thread to `cores` inside, and restore its cores afterwards.

    Takes 6 us, or 0.5 us if already pinned to them. Handing work to another thread takes 27 us.
    """
    wanted, before = {*cores}, os.sched_getaffinity(0)
    if before == wanted:
        yield
        return
    os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def pinned(cores: Iterable[int]) -> Iterator[set[int]]:
    """Pin this thread, and threads created inside; yields ids of the existing ones."""
    with pinned_to([*cores] or available_cores()):
        yield thread_ids()


def others_threads() -> set[int]:
    """Ids of threads not made by a driver: Python's, and all threads from before driver loading."""
    ids = {thread.native_id for thread in threading.enumerate()}
    return {*_before_drivers(), *(number for number in ids if number is not None)}


@cache
def _before_drivers() -> frozenset[int]:
    """Threads at the first call, before codl loads a driver; empty if one is already loaded."""
    return frozenset() if "pyopencl" in sys.modules else frozenset(thread_ids())


class ProcessLock:
    """A re-entrant lock for one process; raises `ForkError` in a fork of that process.

    A fork has no threads of drivers and libraries, and would wait for them forever.
    """

    def __init__(self) -> None:
        self._lock, self._process = RLock(), os.getpid()

    def __enter__(self) -> None:
        check_process(self._process, "This was made")
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def check_process(process: int, made: str) -> None:
    """Raise `ForkError` in a fork of `process`; `made` begins the message."""
    if os.getpid() != process:
        raise ForkError(
            f"{made} in process {process}, of which process {os.getpid()} is a fork, without the "
            "threads of its drivers: make it in the process that uses it, or start that one by "
            "`spawn` or `forkserver`."
        )


def wait_until_idle(limit_s: float = 0.5) -> bool:
    """Sleep until this process's threads stop spinning; False if one works after `limit_s`."""
    begin = perf_counter()
    while perf_counter() - begin < limit_s:
        used, start = process_time(), perf_counter()
        sleep(LOOK_S)
        if process_time() - used < IDLE_SHARE * (perf_counter() - start):
            return True
    return False


def one_blas_thread() -> AbstractContextManager[object]:
    """A context that keeps NumPy's linear algebra on the calling thread.

    Its other threads would spin for tens of milliseconds on cores of either processor.
    """
    return _blas().limit(limits=1, user_api="blas")  # type: ignore[no-any-return]


_blas = cache(ThreadpoolController)


Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class ImageParallel:
    """Parallel lanes for images on some cores, with `threads` per lane.

    Threads of an image synchronize after every layer; lanes do not. A single image has one lane.
    """

    cores: tuple[int, ...]
    count: int
    threads: int

    @classmethod
    def of(cls, cores: tuple[int, ...], threads: int, images: int) -> ImageParallel:
        """One lane per image, at most one per thread."""
        count = max(1, min(images, threads))
        return cls(cores, count, threads // count)

    def each(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """Results of `work` in order, from free lanes; the calling thread is the first lane."""
        count = min(self.count, len(items))
        if count < 2:
            return [work(item) for item in items]
        left, lock, made = iter(range(len(items))), Lock(), dict[int, Made]()

        def lane() -> None:
            while True:
                with lock:
                    index = next(left, None)
                if index is None:
                    return
                made[index] = work(items[index])

        others = [_pool(self.cores).submit(lane) for _ in range(count - 1)]
        try:
            lane()
        finally:  # all lanes have left the arrays when this returns, even after an error
            # Lanes that have not begun would find no item.
            errors = [other.exception() for other in others if not other.cancel()]
        for error in filter(None, errors):
            raise error
        return [made[index] for index in range(len(items))]


@cache
def _pool(cores: tuple[int, ...]) -> ThreadPoolExecutor:
    """A lazily filled pool of threads pinned to some cores."""
    most = max(1, len(cores) - 1)
    return ThreadPoolExecutor(most, "lane", pin, ([0], cores))
