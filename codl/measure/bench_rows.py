"""What `codl bench` says of an op's kernel variants."""

from __future__ import annotations

from dataclasses import dataclass

from codl.ir.types import Processor
from codl.records.results import Latency
from codl.records.tuned import Choice


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
