"""Requests to tune, check and compare kernels, and to draw an interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from codl.ir import Op
from codl.ir.records.tuned import BenchRow, Refused, Tuned
from codl.kernels.tuning import Tuning
from codl.measure.tuner import Failure
from codl.measure.ui_frames import Drawn
from codl.targets.requests import Request

#: A task as its op and the name of its kernel variant.
NamedTask: TypeAlias = tuple[Op, str]


@dataclass(frozen=True)
class DrawFrames(Request[Drawn]):
    """Draw an interface at 60 Hz on the GPU for `seconds`."""

    seconds: float

    limit_s = property(lambda self: 60.0 + 2 * self.seconds)


@dataclass(frozen=True)
class Tune(Request[None]):
    """Search tuning choices; `begun` are results of interrupted searches.

    A finished task has its `Tuned` result or its failure.
    """

    tasks: tuple[NamedTask, ...]
    begun: tuple[Tuned, ...]
    budget_s: float | None
    limit_s = 600.0
    event = Tuned | Failure


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
