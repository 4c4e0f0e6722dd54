"""Tuning and checking of kernels on a target.

A task that crashes or hangs its process is lost alone: a new process continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from codl.ir.records.tuned import Tuned
from codl.kernels.tuning import Tuning
from codl.measure.budget import GRACE_S, Budget, Progress, no_progress
from codl.measure.check_variants import CheckRun, CheckTask, VariantCheck
from codl.measure.tuner import Failure, TuneRun, TuneTask, done_before
from codl.targets.base import Target
from codl.targets.connection import AgentLostError, FrameError
from codl.targets.kernel_requests import Check, NamedTask, Tune
from codl.targets.requests import EventKind, Request

T = TypeVar("T")


class Remaining(Generic[T]):
    """Tasks for agents; after the loss of an agent with its task, a new agent continues."""

    def __init__(self, tasks: Sequence[T]) -> None:
        self.tasks = list(tasks)
        self._current: T | None = None

    def work(
        self,
        target: Target,
        request: Callable[[Sequence[T]], Request[None]],
        keep: Callable[[T, Any], object],
        lost: Callable[[T, str], object],
        progress: Callable[[int], object],
    ) -> None:
        """Send `request` of the tasks left until an agent finishes.

        `keep` gets each task with its result, `lost` a task that ends its agent, and `progress` the
        number of tasks left. Raises `AgentLostError` for an agent lost before a task, or a cut
        connection.
        """
        while self.tasks:
            sent, self._current = tuple(self.tasks), None

            def on_event(kind: EventKind, index: int, value: Any, sent: Sequence[T] = sent) -> None:
                task = self.event(kind, sent, index)
                if kind == "done":
                    keep(task, value)
                    progress(len(self.tasks))

            try:
                target.ask(request(sent), on_event)
                return
            except AgentLostError as error:
                if self._current is None or error.is_blameless:
                    raise
                task = self._current
                self.tasks.remove(task)
                lost(task, str(error))
                progress(len(self.tasks))

    def event(self, kind: EventKind, sent: Sequence[T], index: int) -> T:
        """Record the start or end of a task, by its index in `sent`; returns the task."""
        if kind not in ("begin", "done") or not 0 <= index < len(sent):
            raise FrameError(f"it sent {kind!r} of task {index} of {len(sent)}")
        task = sent[index]
        if task not in self.tasks:
            raise FrameError(f"it sent {kind!r} of task {index}, which is done")
        if kind == "done":
            self.tasks.remove(task)
        else:
            self._current = task
        return task


def tune(
    target: Target,
    tasks: Sequence[TuneTask],
    tuning: Tuning,
    *,
    keep: Callable[[Tuned], object],
    budget_s: float | None = None,
    progress: Progress = no_progress,
) -> TuneRun:
    """Search tunings for tasks without a complete result in `tuning`; `keep` gets each result."""
    finished, budget = done_before(tasks, tuning, target.soc), Budget(budget_s)
    keys = {result.key for result in finished}
    left = Remaining([task for task in tasks if task.key not in keys])
    found = {task.key: tuning.find(task.variant, task.op, target.soc) for task in left.tasks}
    results: list[Tuned] = []
    failures: list[Failure] = []

    def request(missing: Sequence[TuneTask]) -> Tune:
        begun = tuple(result for task in missing if (result := found[task.key]) is not None)
        return Tune(_named(missing), begun, budget.share().seconds)

    def kept(task: TuneTask, result: Tuned | Failure) -> None:
        if (result.op, result.variant) != task.key:
            raise FrameError(f"it sent a result of {result.variant} for {task.key}")
        if isinstance(result, Failure):
            failures.append(result)
        else:
            results.append(result)
            keep(result)

    try:
        with target.within(budget.left_s + GRACE_S):
            left.work(
                target,
                request,
                kept,
                lambda task, why: failures.append(Failure(*task.key, why, ())),
                _report(budget, len(left.tasks), progress),
            )
    except AgentLostError:
        if not budget.is_over():
            raise
    return TuneRun(tuple(results), finished, tuple(failures), len(left.tasks), budget.spent_s)


def check_kernels(
    target: Target,
    tasks: Sequence[CheckTask],
    *,
    budget_s: float | None = None,
    progress: Progress = no_progress,
) -> CheckRun:
    """Check kernel variants against the NumPy references."""
    left, budget, run = Remaining(tasks), Budget(budget_s), CheckRun()
    left.work(
        target,
        lambda missing: Check(_named(missing), budget.share().seconds),
        lambda task, problem: run.checked.append(VariantCheck(task, problem)),
        lambda task, why: run.checked.append(VariantCheck(task, why, is_lost=True)),
        _report(budget, len(tasks), progress),
    )
    run.left = len(left.tasks)
    return run


def _report(budget: Budget, total: int, progress: Progress) -> Callable[[int], object]:
    """A callback of the number of tasks left."""
    return lambda left: progress(total - left, total, budget.to_go_s(total - left, total))


def _named(tasks: Sequence[TuneTask | CheckTask]) -> tuple[NamedTask, ...]:
    return tuple((task.op, task.variant.name) for task in tasks)
