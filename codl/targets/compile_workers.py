"""Ahead-of-time compilation of the next tasks' kernels, in agents beside this process.

Some drivers take a second to compile a kernel that runs for a millisecond. PoCL compiles for every
size of an op, the last step at the first launch, and threads of one process wait for each other. So
agents build the next kernels and run them once; codl's and the driver's caches on disk then have
the binaries. Nothing is measured while agents compile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from time import monotonic

from codl.errors import CodlError
from codl.kernels.tuning import Tuning
from codl.machine.examination import memory_of
from codl.machine.placement import LocalSoc
from codl.measure.tasks import SharingTask, StageTask, Task
from codl.targets.client import COMMAND, AgentClient
from codl.targets.connection import AgentLostError
from codl.targets.measuring import Compile
from codl.targets.requests import Begin, Open

#: Fewest cores for agents; with fewer, starting agents costs more than it saves.
LEAST_CORES = 4
#: Memory in bytes reserved per worker.
WORKER_BYTES = 2 << 30
#: Most agents on a real GPU, as each takes some hundred megabytes of its memory.
MOST_ON_GPU = 12
#: Fewest tasks per worker; fewer compile in the time that an agent takes to start.
WORTH = 3
#: Most tasks to compile ahead, more than a batch has.
FURTHEST = 256
#: Worker crashes after which this process skips a task.
DEATHS = 2


def worker_count(soc: LocalSoc) -> int:
    """Number of compiling agents: the SoC's cores but one, limited by memory; 0 on few cores."""
    cores = len(_cores(soc))
    if cores < LEAST_CORES:
        return 0
    fits = min(cores - 1, memory_of().total // WORKER_BYTES)
    return fits if soc.gpu.is_cpu else min(fits, MOST_ON_GPU)


def needs_kernels(task: Task) -> bool:
    """Whether a part of a task runs on the OpenCL device."""
    return isinstance(task, StageTask | SharingTask) or task.processor == "gpu"


class CompileWorkers:
    """Up to `count` compiling agents, started once there are enough tasks.

    `crashing_tasks` maps tasks that crashed agents to reasons: they would crash this process too.
    """

    def __init__(self, soc: LocalSoc, count: int, command: Sequence[str] = COMMAND) -> None:
        self.crashing_tasks: dict[Task, str] = {}
        how = {"name": "a process", "cores": _cores(soc), "prelude": [Begin(soc)]}
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
        """Compile the first tasks once, starting none after `seconds`; returns when idle."""
        unseen = (task for task in tasks[:FURTHEST] if task not in self._done)
        left = deque(task for task in unseen if needs_kernels(task))
        count = len(self._agents)
        if not any(agent.pid for agent in self._agents) and len(left) < WORTH * count:
            return
        end = monotonic() + seconds
        with ThreadPoolExecutor(max(1, count)) as pool:
            list(pool.map(lambda agent: self._work(agent, left, tuning, end), [*self._agents]))

    def _work(self, agent: AgentClient, left: deque[Task], tuning: Tuning, end: float) -> None:
        """Compile tasks one after another; removes an agent that cannot open its device.

        Records a task that crashed several agents in `crashing_tasks`.
        """
        try:
            agent.ask(Open())
        except CodlError:  # such as without memory for another agent on the card
            self._agents.remove(agent)
            agent.close()
            return
        while (task := self._next(left, end)) is not None:
            try:
                agent.ask(Compile(task, tuning))
            except AgentLostError as error:
                self._deaths[task] = self._deaths.get(task, 0) + 1
                if self._deaths[task] < DEATHS:
                    left.appendleft(task)
                    continue
                self.crashing_tasks[task] = (
                    f"{DEATHS} processes died while it was compiled: {error}"
                )
            except CodlError:
                pass  # reported by the measurement of the task
            self._done.add(task)

    def _next(self, left: deque[Task], end: float) -> Task | None:
        """The next task; after the time limit, only one that has crashed a worker."""
        with self._taking:
            return (
                left.popleft() if left and (monotonic() < end or left[0] in self._deaths) else None
            )


def _cores(soc: LocalSoc) -> tuple[int, ...]:
    return tuple(sorted(set(soc.placement.cores)))
