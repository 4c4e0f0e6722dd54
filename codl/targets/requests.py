"""Requests to a target about its process and its machine.

Other modules have those about models and peers (`codl.targets.model_requests`) and those that
measure (`codl.targets.measuring`, `codl.targets.kernel_requests`). An agent receives requests as
messages (`codl.targets.wire`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args

from numpy.typing import NDArray

from codl.ir.records.results import Conditions
from codl.ir.records.soc import Chip
from codl.machine.conditions import Part
from codl.machine.examination import Examination
from codl.machine.hardware import CpuFacts
from codl.machine.placement import LocalSoc, ProbeResult
from codl.runtime.loaded import Offer

Answer = TypeVar("Answer")
Arrays: TypeAlias = Mapping[str, NDArray[Any]]
EventKind: TypeAlias = Literal["begin", "timing", "done", "round"]
#: Receives the events of a request: kind, index, and value.
EventHandler: TypeAlias = Callable[[EventKind, int, Any], object]


@dataclass(frozen=True)
class Request(Generic[Answer]):
    """Base of all requests: a `Request[X]` is answered by an X, after events that carry `event`."""

    #: Most seconds between two messages of the agent; a property if it depends on the request.
    limit_s: ClassVar[Any] = 60.0
    #: Type of the value in an event.
    event: ClassVar[Any] = type(None)

    @property
    def answer(self) -> Any:
        """Type of the answer: the base class's parameter."""
        (base,) = type(self).__orig_bases__  # type: ignore[attr-defined]
        return get_args(base)[0]


# The process and its machine.


@dataclass(frozen=True)
class Begin(Request[None]):
    """Serve a SoC; must be the first request that needs one."""

    soc: LocalSoc


@dataclass(frozen=True)
class TargetInfo:
    """Facts of a machine without its OpenCL devices, which `Target.probe` finds."""

    cpu: CpuFacts
    #: The measured part of each energy sensor, by name.
    sensors: dict[str, Part]
    unreadable_sensors: dict[str, str] = field(default_factory=dict)
    chip: Chip = field(default_factory=Chip)


FactName: TypeAlias = Literal["machine", "examination", "libraries", "conditions", "seconds"]
#: Types of facts by name; "seconds" is the time spent on requests, by request name.
FACT_TYPES: Mapping[FactName, Any] = {
    "machine": TargetInfo,
    "examination": Examination,
    "libraries": dict[str, str],
    "conditions": Conditions,
    "seconds": dict[str, float],
}


@dataclass(frozen=True)
class Facts(Request[Any]):
    """Read a fact about the machine or the process."""

    name: FactName

    @property
    def answer(self) -> Any:
        return FACT_TYPES[self.name]


@dataclass(frozen=True)
class Probe(Request[tuple[ProbeResult, ...]]):
    """Run a kernel on the devices of every OpenCL driver, each driver in its own process.

    With a `driver`, the agent itself loads this driver.
    """

    driver: str = ""
    limit_s = 600.0


@dataclass(frozen=True)
class ImportPackage(Request[float]):
    """Import a package; the answer is the seconds taken."""

    name: str
    limit_s = 120.0


@dataclass(frozen=True)
class Open(Request[dict[str, str]]):
    """Open the OpenCL device of the SoC; the answer identifies the device and its driver."""

    offer: Offer | None = None
