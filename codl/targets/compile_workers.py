"""Ahead-of-time compilation of the next tasks' kernels, in agents beside this process.

Some drivers take a second to compile a kernel that runs for a millisecond. PoCL compiles for every
size of an op, the last step at the first launch, and threads of one process wait for each other. So
agents build the next kernels and run them once; codl's and the driver's caches on disk then have
the binaries. Nothing is measured while agents compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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

    def close(self) -> None:
        """End the agents."""
        for agent in self._agents:
            agent.close()

    @property
    def is_used(self) -> bool:
        return bool(self._agents)

    def compile(self, tasks: Sequence[Task], tuning: Tuning, seconds: float) -> None:
        """Compile the first tasks once, starting none after `seconds`; returns when idle."""
        unseen = [task for task in tasks[:FURTHEST] if task not in self._done]
        left, end = [task for task in unseen if needs_kernels(task)], monotonic() + seconds
        count, tasks_left = len(self._agents), iter(left)
        if not any(agent.pid for agent in self._agents) and len(left) < WORTH * count:
            return

        def work(agent: AgentClient) -> None:
            try:
                agent.ask(Open())
            except CodlError:  # such as without memory for another agent on the card
                self._agents.remove(agent)
                agent.close()
                return
            for task in tasks_left:
                if monotonic() >= end:
                    return
                self._compile(agent, task, tuning)

        with ThreadPoolExecutor(max(1, count)) as pool:
            list(pool.map(work, [*self._agents]))

    def _compile(self, agent: AgentClient, task: Task, tuning: Tuning) -> None:
        """Compile a task; records it in `crashing_tasks` if it crashes several agents."""
        for deaths in range(1, DEATHS + 1):
            try:
                agent.ask(Compile(task, tuning))
            except AgentLostError as error:
                if deaths == DEATHS:
                    problem = f"{DEATHS} processes died while it was compiled: {error}"
                    self.crashing_tasks[task] = problem
            except CodlError:
                break  # reported by the measurement of the task
            else:
                break
        self._done.add(task)


def _cores(soc: LocalSoc) -> tuple[int, ...]:
    return tuple(sorted(set(soc.placement.cores)))
