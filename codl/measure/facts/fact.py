"""What a measured fact is, and the registry of those that are measured on a device by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from codl.records.results import Latency
from codl.registry import Registry
from codl.runtime.probe import BareDevice


@dataclass(frozen=True)
class Point:
    """A latency that a fact was decided by: what was done, and how large it was.

    `size` is in work-items or bytes, as the fact says.
    """

    case: str
    size: int
    latency: Latency


@dataclass(frozen=True)
class Fact:
    """A fact by its key in a SoC file; `value` is None where it could not be told.

    `reason` says how it was decided, or why it was not; `origin` who says so.
    """

    key: str
    value: bool | int | float | str | None
    reason: str
    points: tuple[Point, ...] = ()
    origin: Literal["measured", "driver"] = "measured"


Measuring: TypeAlias = Callable[[BareDevice], Fact]
#: By the key of the SoC file that each of them fills.
FACTS: Registry[Measuring] = Registry("fact")
FACTS.add_lazy("gpu.wave_size", "codl.measure.facts.wave_size:measure_wave_size")
FACTS.add_lazy("gpu.zero_copy", "codl.measure.facts.host_memory:measure_zero_copy")
FACTS.add_lazy("gpu.svm_atomics", "codl.measure.facts.svm_flag:measure_svm_atomics")


def points(case: str, size: int, samples_ms: Sequence[float]) -> Point:
    """The point of some samples."""
    return Point(case, size, Latency.of([1e-3 * ms for ms in samples_ms]))
