"""Results of comparing kernel variants and their tuning choices, as plain data.

`codl.kernels.tuning` defines where tuned choices apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from codl.ir.records.results import Latency
from codl.ir.types import Processor

#: Values of a variant's tuning parameters by name, such as tile sizes.
Choice: TypeAlias = Mapping[str, int]


@dataclass(frozen=True)
class Trial:
    """A measured choice; `latency_ms` is None after a failure with `reason`."""

    choice: Choice
    latency_ms: float | None
    reason: str = ""


@dataclass(frozen=True)
class Tuned:
    """The best choice of a variant for an op, with all trials.

    `default_ms` and `best_ms` were measured against each other in one run; `default_ms` is None if
    the variant's first choice fails. `complete` is False for an interrupted search.
    """

    op: str
    variant: str
    source: str
    choice: Choice
    default_ms: float | None
    best_ms: float
    complete: bool
    trials: tuple[Trial, ...]
    measured: str
    codl: str

    @property
    def key(self) -> tuple[str, str]:
        return self.op, self.variant


@dataclass(frozen=True)
class BenchRow:
    """One variant on one op; `choice` is the tuned one, None for the variant's first."""

    variant: str
    processor: Processor
    latency: Latency
    gflops: float
    choice: Choice | None


@dataclass(frozen=True)
class Refused:
    """A variant that was not measured: it refuses the op, or the device failed on it."""

    variant: str
    processor: Processor
    reason: str
