"""Requests to tune, check and compare kernels, and to draw an interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from codl.ir import Op
from codl.ir.records.tuned import BenchRow, Refused, Trial, Tuned
from codl.kernels.tuning import Tuning
from codl.measure.ui_frames import Drawn
from codl.targets.connection import AgentLostError, FrameError
from codl.targets.requests import EventKind, Request

if TYPE_CHECKING:
    from codl.measure.check_variants import CheckTask
    from codl.measure.tuner import TuneTask

T = TypeVar("T")
#: A task as its op and the name of its kernel variant.
NamedTask: TypeAlias = tuple[Op, str]


@dataclass(frozen=True)
class DrawFrames(Request[Drawn]):
    """Draw an interface at 60 Hz on the GPU for `seconds`."""

    seconds: float

    limit_s = property(lambda self: 60.0 + 2 * self.seconds)


@dataclass(frozen=True)
class TuneFailure:
    """A task without a working choice, by its index."""

    index: int
    reason: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class Tune(Request[tuple[TuneFailure, ...]]):
    """Search tuning choices; `begun` are results of interrupted searches.

    A finished task has its `Tuned` result. The answer is the failures.
    """

    tasks: tuple[NamedTask, ...]
    begun: tuple[Tuned, ...]
    budget_s: float | None
    limit_s = 600.0
    event = Tuned


@dataclass(frozen=True)
class Check(Request[None]):
    """Check kernel variants against the NumPy references; a finished task has its problem."""

    tasks: tuple[NamedTask, ...]
    budget_s: float | None
    event = str

    @property
    def limit_s(self) -> float:
        """Near the budget, for hanging kernels, but at least 30 s, for compiling."""
        return 120.0 if self.budget_s is None else min(120.0, max(30.0, self.budget_s))


@dataclass(frozen=True)
class Bench(Request[tuple[list[BenchRow], list[Refused]]]):
    """Measure an op in its kernel variants; the answer includes the variants not measured."""

    op: Op
    tuning: Tuning
    every: bool
    limit_s = 600.0


class Remaining(Generic[T]):
    """Tasks for agents; after the loss of an agent with its task, a new agent continues."""

    def __init__(self, tasks: Sequence[T]) -> None:
        self.tasks = list(tasks)
        self._current: T | None = None

    def work(
        self, ask: Callable[[tuple[T, ...]], object], lost: Callable[[T, str], object]
    ) -> None:
        """Call `ask` with the tasks left until an agent finishes; `lost` gets a task that ends one.

        Raises `AgentLostError` for an agent lost before a task, or a cut connection.
        """
        while self.tasks:
            self._current = None
            try:
                ask(tuple(self.tasks))
                return
            except AgentLostError as error:
                if self._current is None or error.is_blameless:
                    raise
                self.done(self._current)
                lost(self._current, str(error))

    def event(self, kind: EventKind, sent: Sequence[T], index: int) -> T:
        """Record the start or end of a task, by its index in `sent`; returns the task."""
        if kind not in ("begin", "done") or not 0 <= index < len(sent):
            raise FrameError(f"it sent {kind!r} of task {index} of {len(sent)}")
        task = sent[index]
        if task not in self.tasks:
            raise FrameError(f"it sent {kind!r} of task {index}, which is done")
        if kind == "done":
            self.done(task)
        else:
            self._current = task
        return task

    def done(self, task: T) -> None:
        self.tasks.remove(task)


def named(tasks: Sequence[TuneTask | CheckTask]) -> tuple[NamedTask, ...]:
    return tuple((task.op, task.variant.name) for task in tasks)
