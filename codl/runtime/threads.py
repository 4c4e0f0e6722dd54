"""Cores and threads: pinning them, observing where they really ran (Linux's /proc), and running
images of a batch side by side on them.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock, RLock, Thread
from time import perf_counter, process_time, sleep
from typing import TypeVar

from threadpoolctl import ThreadpoolController

from codl.errors import ForkError

TASKS = Path("/proc/self/task")
#: A process is idle when it used less than this share of a look's time, `LOOK_S`.
IDLE_SHARE, LOOK_S = 0.2, 0.001
#: The cores that this process was started on, before any of its threads was pinned to some of them.
INITIAL_CORES = tuple(sorted(os.sched_getaffinity(0)))


def available_cores() -> tuple[int, ...]:
    """The cores that this process may use."""
    return tuple(sorted(os.sched_getaffinity(0)))


def refused_cores(cores: Iterable[int]) -> list[int]:
    """Those that no thread of this process may work on: they are not there, or for others.

    Whatever the calling thread is pinned to.
    """
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


def pin(threads: Iterable[int], cores: Iterable[int]) -> None:
    """Pin threads by id (0: the calling one); threads that have ended are passed over."""
    wanted = set(cores)
    for thread in threads:
        try:
            os.sched_setaffinity(thread, wanted)
        except ProcessLookupError:
            continue


def spread(threads: Iterable[int], cores: Iterable[int]) -> None:
    """Pin threads to a core each where there are as many cores, otherwise all to all of them.

    Two that are woken at once may else begin on one core, while another one is idle.
    """
    ids, places = sorted(threads), sorted(cores)
    if len(ids) != len(places):
        pin(ids, places)
        return
    for thread, core in zip(ids, places, strict=True):
        pin([thread], [core])


@contextmanager
def pinned_to(cores: Iterable[int]) -> Iterator[None]:
    """Pin the calling thread to some cores inside, and restore its cores afterwards.

    That costs 6 us, or half a microsecond where it is pinned there already. Handing the work to a
    thread that stays there takes 27 us.
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
    """Pin the calling thread for a while; yields the ids of threads that already exist.

    Threads made inside inherit the cores, which is how a driver's workers are kept on theirs.
    """
    with pinned_to([*cores] or available_cores()):
        yield thread_ids()


def others_threads() -> set[int]:
    """Threads that no driver has made: those of Python, and all before a driver was loaded."""
    ids = {thread.native_id for thread in threading.enumerate()}
    return {*_before_drivers(), *(number for number in ids if number is not None)}


@cache
def _before_drivers() -> frozenset[int]:
    """Asked for the first time before codl loads a driver; none where somebody else has."""
    return frozenset() if "pyopencl" in sys.modules else frozenset(thread_ids())


class ProcessLock:
    """A re-entrant lock of what drivers and libraries hold for the process that made it.

    Their threads are not in a process forked from it, which would wait for them for ever: there it
    raises `ForkError`.
    """

    def __init__(self) -> None:
        self._lock, self._process = RLock(), os.getpid()

    def __enter__(self) -> None:
        check_process(self._process, "This was made")
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def check_process(process: int, made: str) -> None:
    """Raise `ForkError` in a fork of the process where something was `made`."""
    if os.getpid() != process:
        raise ForkError(
            f"{made} in process {process}, of which process {os.getpid()} is a fork, without the "
            "threads of its drivers: make it in the process that uses it, or start that one by "
            "`spawn` or `forkserver`."
        )


def wait_until_idle(limit_s: float = 0.5) -> bool:
    """Sleep until no thread of this process works any more; False where they do not stop in time.

    Thread pools of libraries let their threads spin for a while when they have nothing to do.
    """
    begin = perf_counter()
    while perf_counter() - begin < limit_s:
        used, start = process_time(), perf_counter()
        sleep(LOOK_S)
        if process_time() - used < IDLE_SHARE * (perf_counter() - start):
            return True
    return False


class CoreObserver:
    """Counts on which cores the threads of this process were seen working, and which did.

    `sample` looks at every thread once; a thread counts when it has used processor time since the
    last look. Sample often while the side under test works.
    """

    def __init__(self, *, ignore: Iterable[int] = ()) -> None:
        self._ignore = set(ignore)
        self._ticks = {thread: ticks for thread, ticks, _ in self._look()}
        self.cores: Counter[int] = Counter()
        self.threads: set[int] = set()

    def ignore(self, thread: int) -> None:
        """Count a thread no more, such as the one that samples."""
        self._ignore.add(thread)

    def sample(self) -> None:
        for thread, ticks, core in self._look():
            if ticks > self._ticks.get(thread, 0):
                self.cores[core] += 1
                self.threads.add(thread)
            self._ticks[thread] = ticks

    def _look(self) -> Iterator[tuple[int, int, int]]:
        """Thread id, nanoseconds on a processor, and the core it last ran on."""
        for thread in thread_ids() - self._ignore:
            try:
                stat = (TASKS / str(thread) / "stat").read_text()
                used = (TASKS / str(thread) / "schedstat").read_text().split()[0]
            except (FileNotFoundError, ProcessLookupError):
                continue
            # Fields are counted behind the name, which may itself hold spaces and brackets.
            after = stat[stat.rindex(")") + 2 :].split()
            yield thread, int(used), int(after[36])


def one_blas_thread() -> AbstractContextManager[object]:
    """Linear algebra of NumPy's stays on the calling thread inside.

    Its other threads would go on spinning for tens of milliseconds, on a core of either processor.
    """
    return _blas().limit(limits=1, user_api="blas")  # type: ignore[no-any-return]


_blas = cache(ThreadpoolController)


Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class ImageParallel:
    """`count` lanes on these cores, with `threads` each.

    Most layers share a core's time better with another image than with another thread: these wait
    for each other after every layer. One image has all the threads in one lane.
    """

    cores: tuple[int, ...]
    count: int
    threads: int

    @classmethod
    def of(cls, cores: tuple[int, ...], threads: int, images: int) -> ImageParallel:
        """As many lanes as there are images, as long as each has a thread."""
        count = max(1, min(images, threads))
        return cls(cores, count, threads // count)

    def narrow(self, most: int) -> ImageParallel:
        """At most `most` of these lanes."""
        return replace(self, count=min(self.count, most))

    def each(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """`work` of every item, in order; the calling thread is the first lane.

        Whoever is done with an item takes the next.
        """
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
        finally:  # nobody works on the same arrays when this returns, not even after an error
            # Whoever has not begun yet would find nothing left.
            errors = [other.exception() for other in others if not other.cancel()]
        for error in filter(None, errors):
            raise error
        return [made[index] for index in range(len(items))]


@cache
def _pool(cores: tuple[int, ...]) -> ThreadPoolExecutor:
    """Threads that stay on these cores, made as they are first needed."""
    most = max(1, len(cores) - 1)
    return ThreadPoolExecutor(most, "lane", pin, ([0], cores))
