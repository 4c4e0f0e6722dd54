"""Compiles the kernels of the tasks that come next, in processes of their own.

Some drivers take a second to compile what runs for a millisecond, and PoCL compiles anew for every
size of an op, the last step only when a kernel is first launched. Threads of one process wait for
each other in it. So processes beside this one build and run once what is to be measured next; what
they compile lies in the caches on disk, codl's and the driver's own, when this one asks for it.
They work only when they are told to, and nothing is measured meanwhile.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from time import monotonic
from types import TracebackType

from codl.ir.soc import Soc
from codl.kernels.tuning import Tuning
from codl.measure.runner import Bench
from codl.measure.tasks import ContentionTask, SharingTask, Task
from codl.runtime import threads

#: On fewer cores the others would not make up for what it takes to start them.
LEAST_CORES = 4
#: Memory that a worker may need: its share of this machine's must be more.
WORKER_BYTES = 2 << 30
#: So many at most share a real GPU: each keeps some hundred megabytes of a card's memory.
MOST_ON_GPU = 4
#: Fewer tasks than this for each worker are compiled in the time that it takes to start.
WORTH = 3
#: So many tasks ahead are compiled at most: more than a batch has.
FURTHEST = 256
#: A task on which so many workers died is not tried by this process.
DEATHS = 2
COMMAND = (sys.executable, "-m", "codl.measure.compile_workers")


def worker_count(soc: Soc) -> int:
    """How many processes may compile: one a core of the SoC but for this process's, 0 on few."""
    cores = len(_cores(soc))
    if cores < LEAST_CORES:
        return 0
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fits = min(cores - 1, memory // WORKER_BYTES)
    return fits if soc.gpu.is_cpu else min(fits, MOST_ON_GPU)


def needs_kernels(task: Task) -> bool:
    """Whether something of a task runs on the OpenCL device."""
    return isinstance(task, ContentionTask | SharingTask) or task.processor == "gpu"


class Ahead:
    """Up to `workers` processes that compile, started when there is enough to do for them.

    `deadly` are tasks on which workers died, with what is known of it: a driver that takes its
    process down would take this one down too.
    """

    def __init__(
        self,
        soc: Soc,
        workers: int,
        command: Sequence[str] = COMMAND,
        *,
        tuning: Tuning = Tuning(),
    ) -> None:
        self.deadly: dict[Task, str] = {}
        self._work, self._count, self._command = (soc, tuning), workers, command
        self._workers: list[_Worker] = []
        self._done: set[Task] = set()
        self._deaths: dict[Task, int] = {}

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._workers:
            self._workers.pop().stop()

    @property
    def is_used(self) -> bool:
        return self._count > 0

    def compile(self, tasks: Sequence[Task], seconds: float) -> None:
        """Compile what the first tasks need and no worker has seen; begins no more after `seconds`.

        All workers are idle when this returns.
        """
        unseen = (task for task in tasks[:FURTHEST] if task not in self._done)
        left = deque(task for task in unseen if needs_kernels(task))
        if not self._workers and len(left) < WORTH * self._count:
            return
        while len(self._workers) < self._count:
            self._workers.append(_Worker.start(self._work, self._command))
        end = monotonic() + seconds
        while True:
            idle = [worker for worker in self._workers if worker.task is None]
            # What one of them died of is not left to this process.
            while idle and left and (monotonic() < end or left[0] in self._deaths):
                idle.pop().give(left.popleft())
            busy = {one.channel: one for one in self._workers if one.task is not None}
            if not busy:
                return
            for channel in wait(list(busy)):
                self._collect(busy[channel], left)  # type: ignore[index]

    def _collect(self, worker: _Worker, left: deque[Task]) -> None:
        """Hear that a worker is done, or dead: then another one takes its place, and its task.

        For one that could not begin, as where a card has no room for so many, there is no other.
        """
        task = worker.task
        assert task is not None
        if worker.hears():
            if worker.task is None:
                self._done.add(task)
            return
        self._workers.remove(worker)
        code = worker.stop()
        if not worker.has_begun:
            self._count -= 1
            left.appendleft(task)
            return
        self._deaths[task] = self._deaths.get(task, 0) + 1
        if self._deaths[task] < DEATHS:
            left.appendleft(task)
        else:
            self._done.add(task)
            self.deadly[task] = f"{DEATHS} processes died while it was compiled (code {code})"
        self._workers.append(_Worker.start(self._work, self._command))


@dataclass
class _Worker:
    """A process that compiles one task at a time, and the way to it."""

    process: subprocess.Popen[bytes]
    channel: Connection
    task: Task | None = None
    has_begun: bool = False

    @classmethod
    def start(cls, work: tuple[Soc, Tuning], command: Sequence[str]) -> _Worker:
        mine, its = Pipe()
        with its:
            process = subprocess.Popen(
                [*command, str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        with suppress(OSError):  # as below
            mine.send(work)
        return cls(process, mine)

    def give(self, task: Task) -> None:
        self.task = task
        with suppress(OSError):  # it died; waiting for its answer will tell
            self.channel.send(task)

    def hears(self) -> bool:
        """Take its answer, that it has begun or done its task; False where it died instead."""
        try:
            self.channel.recv()
        except (EOFError, OSError):
            return False
        if self.has_begun:
            self.task = None
        self.has_begun = True
        return True

    def stop(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        self.channel.close()  # it ends when nobody can ask it any more
        try:
            return self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def _cores(soc: Soc) -> set[int]:
    return {*soc.cpu.cores, *soc.gpu.cores}


def _work(channel: Connection) -> None:
    """What a worker does: compile whatever it is given, until nobody gives it more."""
    soc, tuning = channel.recv()
    bench = Bench(soc, "", tuning=tuning)
    # Here no side keeps to its cores: nothing is measured, and drivers compile on any thread.
    threads.pin(threads.thread_ids(), _cores(soc))
    channel.send(None)
    while True:
        try:
            task = channel.recv()
        except EOFError:
            return
        bench.compile(task)
        channel.send(None)


if __name__ == "__main__":
    _work(Connection(int(sys.argv[1])))
