"""Compiles the kernels of the tasks that come next, in agents beside this process.

Some drivers take a second to compile what runs for a millisecond, and PoCL compiles anew for every
size of an op, the last step only when a kernel is first launched. Threads of one process wait for
each other in it. So agents build and run once what is to be measured next; what they compile lies
in the caches on disk, codl's and the driver's own, when this process asks for it. They work only
when they are told to, and nothing is measured meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from select import select
from time import monotonic
from types import TracebackType

from codl.kernels.tuning import Tuning
from codl.measure.tasks import SharingTask, StageTask, Task
from codl.runtime.examination import memory_of
from codl.runtime.placement import LocalSoc
from codl.targets.base import Target
from codl.targets.client import COMMAND, AgentClient, AgentLostError
from codl.targets.process import Process
from codl.targets.wire import Answered

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


def worker_count(soc: LocalSoc) -> int:
    """How many agents may compile: one a core of the SoC but for this process's, 0 on few."""
    cores = len(_cores(soc))
    if cores < LEAST_CORES:
        return 0
    fits = min(cores - 1, memory_of().total // WORKER_BYTES)
    return fits if soc.gpu.is_cpu else min(fits, MOST_ON_GPU)


def needs_kernels(task: Task) -> bool:
    """Whether something of a task runs on the OpenCL device."""
    return isinstance(task, StageTask | SharingTask) or task.processor == "gpu"


class CompileWorkers:
    """Up to `count` agents that compile, started when there is enough to do for them.

    `deadly` are tasks on which agents died, with what is known of it: a driver that takes its
    process down would take this one down too.
    """

    def __init__(self, soc: LocalSoc, count: int, command: Sequence[str] = COMMAND) -> None:
        self.deadly: dict[Task, str] = {}
        self._soc, self._count, self._command = soc, count, tuple(command)
        self._workers: list[_Worker] = []
        self._done: set[Task] = set()
        self._deaths: dict[Task, int] = {}

    def __enter__(self) -> CompileWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the agents."""
        while self._workers:
            self._workers.pop().client.close()

    @property
    def is_used(self) -> bool:
        return self._count > 0

    def compile(self, tasks: Sequence[Task], tuning: Tuning, seconds: float) -> None:
        """Compile what the first tasks need and no worker has seen; begins no more after `seconds`.

        All workers are idle when this returns.
        """
        unseen = (task for task in tasks[:FURTHEST] if task not in self._done)
        left = deque(task for task in unseen if needs_kernels(task))
        if not self._workers and len(left) < WORTH * self._count:
            return
        self._start(self._count - len(self._workers))
        end = monotonic() + seconds
        while True:
            # What one of them died of is not left to this process.
            for worker in [one for one in self._workers if one.is_idle]:
                if left and (monotonic() < end or left[0] in self._deaths):
                    self._give(worker, left, tuning)
            busy = [worker for worker in self._workers if not worker.is_idle]
            if not busy:
                return
            readable, _, _ = select([worker.client for worker in busy], [], [])
            for client in readable:
                self._hear(next(one for one in busy if one.client is client), left)

    def _start(self, count: int) -> None:
        """Start agents at the same time; those that do not answer are done without."""
        prelude = {Process.begin: (self._soc,)}
        name, cores = "a process", _cores(self._soc)
        new = [
            AgentClient(self._command, name=name, cores=cores, prelude=prelude)
            for _ in range(count)
        ]
        for client in new:
            client.spawn()
        for client in new:
            try:
                client.post(Target.open)
                self._workers.append(_Worker(client))
            except AgentLostError:
                self._count -= 1

    def _give(self, worker: _Worker, left: deque[Task], tuning: Tuning) -> None:
        worker.task = left.popleft()
        try:
            worker.client.post(Target.compile, worker.task, tuning)
        except AgentLostError as error:
            self._bury(worker, error, left)

    def _hear(self, worker: _Worker, left: deque[Task]) -> None:
        """Take an answer, that a worker has begun or done its task, or see that it has ended."""
        try:
            answer = worker.client.receive()
        except AgentLostError as error:
            self._bury(worker, error, left)
            return
        if worker.has_begun:
            assert worker.task is not None
            self._done.add(worker.task)
            worker.task = None
        elif isinstance(answer, Answered):
            worker.has_begun = True
        else:  # the device cannot be opened, as where a card has no room for so many
            self._workers.remove(worker)
            worker.client.close()
            self._count -= 1

    def _bury(self, worker: _Worker, error: AgentLostError, left: deque[Task]) -> None:
        """Another worker takes a dead one's place and its task; none that of one that never began.

        A task on which several died is deadly.
        """
        self._workers.remove(worker)
        task = worker.task
        if task is None:
            self._count -= 1
            return
        self._deaths[task] = self._deaths.get(task, 0) + 1
        if self._deaths[task] < DEATHS:
            left.appendleft(task)
        else:
            self._done.add(task)
            self.deadly[task] = f"{DEATHS} processes died while it was compiled: {error}"
        self._start(1)


@dataclass
class _Worker:
    """An agent that compiles one task at a time; it opens its device before the first."""

    client: AgentClient
    task: Task | None = None
    has_begun: bool = False

    @property
    def is_idle(self) -> bool:
        return self.has_begun and self.task is None


def _cores(soc: LocalSoc) -> tuple[int, ...]:
    return tuple(sorted(set(soc.placement.cores)))
