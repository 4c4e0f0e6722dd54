"""Results of comparing kernel variants and their choices, as plain data.

`codl.kernels.tuning` says where tuned choices hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from codl.ir.types import Processor
from codl.records.results import Latency

#: Values of a variant's tuning parameters by name, such as tile sizes.
Choice: TypeAlias = Mapping[str, int]


@dataclass(frozen=True)
class Trial:
    """One choice that was measured; `latency_ms` is None where it failed, and `reason` says why."""

    choice: Choice
    latency_ms: float | None
    reason: str = ""


@dataclass(frozen=True)
class Tuned:
    """The best choice of a variant for an op, and everything that was tried for it.

    `default_ms` and `best_ms` were measured against each other in one run; `default_ms` is None
    where the first of the variant's choices fails. `complete`: the search was not cut short.
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
class UsualBlocks:
    """How many blocks of output channels tiles have in ops of a kind that were not tuned."""

    op_kind: str
    variant: str
    blocks: int


@dataclass(frozen=True)
class Choices:
    """What kernels on a SoC are made by: results without their trials, and usual blocks."""

    results: tuple[Tuned, ...] = ()
    blocks: tuple[UsualBlocks, ...] = ()


@dataclass(frozen=True)
class BenchRow:
    """One variant on one op; `choice` is the tuned one, None where the variant's first holds."""

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
