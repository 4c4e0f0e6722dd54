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
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from time import monotonic

from codl.errors import CodlError
from codl.kernels.tuning import Tuning
from codl.measure.tasks import SharingTask, StageTask, Task
from codl.runtime.examination import memory_of
from codl.runtime.placement import LocalSoc
from codl.targets.base import Target
from codl.targets.client import COMMAND, AgentClient, AgentLostError
from codl.targets.process import Process

#: On fewer cores the others would not make up for what it takes to start them.
LEAST_CORES = 4
#: Memory that a worker may need: its share of this machine's must be more.
WORKER_BYTES = 2 << 30
#: At most this many share a real GPU: each keeps some hundred megabytes of a card's memory.
MOST_ON_GPU = 12
#: Fewer tasks than this for each worker are compiled in the time that it takes to start.
WORTH = 3
#: At most this many tasks ahead are compiled: more than a batch has.
FURTHEST = 256
#: A task on which two workers died is not tried by this process.
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

    `crashing_tasks` are tasks at which agents died, with the reason: the driver would crash this
    process too.
    """

    def __init__(self, soc: LocalSoc, count: int, command: Sequence[str] = COMMAND) -> None:
        self.crashing_tasks: dict[Task, str] = {}
        how = {"name": "a process", "cores": _cores(soc), "prelude": {Process.begin: (soc,)}}
        self._agents = [AgentClient(command, **how) for _ in range(count)]  # type: ignore[arg-type]
        self._done: set[Task] = set()
        self._deaths: dict[Task, int] = {}
        self._taking = Lock()

    def close(self) -> None:
        """End the agents."""
        for agent in self._agents:
            agent.close()

    @property
    def is_used(self) -> bool:
        return bool(self._agents)

    def compile(self, tasks: Sequence[Task], tuning: Tuning, seconds: float) -> None:
        """Compile what the first tasks need and no worker has seen; begins no more after `seconds`.

        All workers are idle when this returns.
        """
        unseen = (task for task in tasks[:FURTHEST] if task not in self._done)
        left = deque(task for task in unseen if needs_kernels(task))
        count = len(self._agents)
        if not any(agent.pid for agent in self._agents) and len(left) < WORTH * count:
            return
        end = monotonic() + seconds
        with ThreadPoolExecutor(max(1, count)) as pool:
            list(pool.map(lambda agent: self._work(agent, left, tuning, end), [*self._agents]))

    def _work(self, agent: AgentClient, left: deque[Task], tuning: Tuning, end: float) -> None:
        """Compile one task after the other; what cannot open its device is done without.

        A task at which several agents died is a crashing task.
        """
        try:
            agent.ask(Target.open)
        except CodlError:  # as where a card has no room for another one
            self._agents.remove(agent)
            agent.close()
            return
        while (task := self._next(left, end)) is not None:
            try:
                agent.ask(Target.compile, task, tuning)
            except AgentLostError as error:
                self._deaths[task] = self._deaths.get(task, 0) + 1
                if self._deaths[task] < DEATHS:
                    left.appendleft(task)
                    continue
                self.crashing_tasks[task] = (
                    f"{DEATHS} processes died while it was compiled: {error}"
                )
            except CodlError:
                pass  # it is told where the task is measured
            self._done.add(task)

    def _next(self, left: deque[Task], end: float) -> Task | None:
        """The next task; what one of them died of is not left to this process."""
        with self._taking:
            return (
                left.popleft() if left and (monotonic() < end or left[0] in self._deaths) else None
            )


def _cores(soc: LocalSoc) -> tuple[int, ...]:
    return tuple(sorted(set(soc.placement.cores)))
