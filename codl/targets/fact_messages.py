"""Messages about what is measured of an OpenCL device by itself."""

from __future__ import annotations

from typing import ClassVar

from codl.measure.facts.fact import Fact
from codl.targets.message_base import Reply, Request


class FactMeasured(Reply, frozen=True):
    fact: Fact


class MeasureFact(Request, frozen=True):
    """Load a driver and measure one fact of a device; the process is for nothing else."""

    driver: str
    device: str
    key: str
    reply: ClassVar[type[Reply]] = FactMeasured
    limit_s: ClassVar[float] = 300.0


class FactsMeasured(Reply, frozen=True):
    facts: tuple[Fact, ...]


class MeasureFacts(Request, frozen=True):
    """Measure the facts of these keys, or all that there are, each in a process of its own."""

    driver: str
    device: str
    keys: tuple[str, ...] = ()
    reply: ClassVar[type[Reply]] = FactsMeasured
    limit_s: ClassVar[float] = 1800.0
