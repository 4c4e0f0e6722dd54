"""A recording of single inferences: predicted and measured timelines, and sensor readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.plan.price import PlacedSpan


@dataclass(frozen=True)
class TracedInference:
    """An inference that began at `at_ms` of the trace."""

    at_ms: float
    spans: tuple[PlacedSpan, ...]


@dataclass(frozen=True)
class SensorReading:
    """Readings of sensors at `at_ms` of the trace, by name with the unit."""

    at_ms: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Traced inferences of an executable, its predicted timeline, and sensor readings.

    `predicted` is empty without a trained predictor. `power_w` is the mean of plain runs, None
    without a sensor.
    """

    executable: Executable
    plan: Plan
    predicted: tuple[PlacedSpan, ...] = ()
    inferences: tuple[TracedInference, ...] = ()
    readings: tuple[SensorReading, ...] = ()
    power_w: float | None = None
