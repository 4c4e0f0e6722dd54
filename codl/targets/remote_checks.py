"""Checks kernels through an agent: one that is lost names the task, and another does the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from codl.measure.budget import Budget
from codl.measure.check_variants import Checked, CheckRun, CheckTask
from codl.measure.progress import Progress
from codl.runtime.frames import FrameError
from codl.targets.arriving_rows import task_at
from codl.targets.check_messages import (
    Checking,
    CheckKernels,
    CheckRecord,
    ChecksEnded,
    KernelChecked,
)
from codl.targets.client import AgentClient, AgentLostError
from codl.targets.message_base import Reply

#: A driver may take so long to compile a kernel on a slow device.
COMPILES_S = 30.0


@dataclass
class RemoteChecks:
    """What came of checks so far, over all agents that were needed for them."""

    agent: AgentClient
    progress: Progress
    budget: Budget
    _done: CheckRun = field(default_factory=CheckRun)
    _tasks: Sequence[CheckTask] = ()
    _current: int | None = None
    _total: int = 0

    def run(self, tasks: Sequence[CheckTask]) -> CheckRun:
        """Check them; raises `AgentLostError` where an agent does not come as far as the first."""
        self._total = len(tasks)
        left = list(tasks)
        while left:
            self._tasks, self._current = left, None
            records = tuple(CheckRecord(*task.key) for task in left)
            try:
                answer, _ = self.agent.ask(
                    CheckKernels(records, self.budget.share().seconds),
                    ChecksEnded,
                    on_event=self._hear,
                    limit_s=self._limit_s(),
                )
            except AgentLostError as error:
                left = self._behind(error)
                continue
            self._done.left = answer.left
            break
        return self._done

    def _limit_s(self) -> float:
        """How long one task may take: one that hangs should not outlast the budget by much."""
        return min(CheckKernels.limit_s, max(COMPILES_S, self.budget.left_s))

    def _hear(self, event: Reply) -> None:
        if isinstance(event, Checking):
            task_at(self._tasks, event.index)
            self._current = event.index
        elif isinstance(event, KernelChecked):
            task = task_at(self._tasks, event.index)
            if any(own.task is task for own in self._done.checked):
                raise FrameError(f"It checked task {event.index} twice.")
            self._keep(Checked(task, event.problem))

    def _behind(self, error: AgentLostError) -> list[CheckTask]:
        """The tasks behind the one that an agent was lost with; raises where it was none."""
        if self._current is None:
            raise error
        self._keep(Checked(self._tasks[self._current], str(error), is_lost=True))
        return list(self._tasks[self._current + 1 :])

    def _keep(self, checked: Checked) -> None:
        self._done.checked.append(checked)
        done = len(self._done.checked)
        self.progress(done, self._total, self.budget.to_go_s(done, self._total))
