"""Requests to a target about its process, its machine, and its models and peers.

`codl.targets.measuring` and `codl.targets.kernel_requests` have the requests that measure. An agent
receives them as messages (`codl.targets.wire`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args

from numpy.typing import NDArray

from codl.ir.executable import Refusal
from codl.ir.plan import Plan
from codl.ir.records.gpu_limits import LimitedGpu
from codl.ir.records.results import Conditions, TimeSpan
from codl.ir.records.soc import Chip
from codl.machine.conditions import SensorInfo
from codl.machine.examination import Examination
from codl.machine.hardware import CpuFacts
from codl.machine.placement import LocalSoc, ProbeResult
from codl.runtime.loaded import Binary, Footprint, Offer

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
    sensors: tuple[SensorInfo, ...]
    unreadable_sensors: dict[str, str] = field(default_factory=dict)
    chip: Chip = field(default_factory=Chip)


FactName: TypeAlias = Literal[
    "machine", "examination", "libraries", "clocks_mhz", "conditions", "busy_cores", "seconds"
]
#: Types of facts by name; "seconds" is the time spent on requests, by request name.
FACT_TYPES: Mapping[FactName, Any] = {
    "machine": TargetInfo,
    "examination": Examination,
    "libraries": dict[str, str],
    "clocks_mhz": dict[str, float],
    "conditions": Conditions,
    "busy_cores": dict[str, list[int]],
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
class UnpinnedRatios(Request[tuple[float, ...]]):
    """Compare the CPU side's threads on all of `cores` with its threads on its own, in turns."""

    cores: tuple[int, ...]


# Models and peers, identified by handle in the agent.


@dataclass(frozen=True)
class Open(Request[dict[str, str]]):
    """Open the OpenCL device of the SoC; the answer identifies the device and its driver."""

    offer: Offer | None = None


@dataclass(frozen=True)
class LoadedModel:
    """Handle of a loaded executable, with its footprint and GPU limits."""

    handle: int
    footprint: Footprint
    limited: LimitedGpu | None


@dataclass(frozen=True)
class Load(Request[LoadedModel | tuple[Refusal, ...]]):
    """Load an executable, with its arrays by digest; an event begins each step.

    The answer is the model, or the kernels that the device refuses. With `tries` each kernel runs
    once as a trial. `on_cpu` loads without opening the device.
    """

    content: bytes
    arrays: Arrays
    tries: bool = True
    on_cpu: bool = False
    limit_s = 300.0  # a step may compile a kernel


@dataclass(frozen=True)
class Run(Request[Arrays]):
    """Run a model once on `inputs`; the answer is its outputs."""

    handle: int
    inputs: Arrays
    limit_s = 120.0


@dataclass(frozen=True)
class Profile(Request[tuple[TimeSpan, ...]]):
    """Run a model on its last inputs; the answer is the spans of both processors."""

    handle: int
    layers: bool
    limit_s = 300.0


@dataclass(frozen=True)
class Binaries(Request[tuple[Binary, ...]]):
    """Get the compiled programs of a loaded model, and the one that opening the device compiled."""

    handle: int


@dataclass(frozen=True)
class StartedPeer:
    """Handle of a peer, its version, and the cores observed in a first run."""

    handle: int
    version: str
    observed_cores: tuple[int, ...]
    busy_cores: float


@dataclass(frozen=True)
class StartPeer(Request[StartedPeer]):
    """Start a peer for an ONNX model in its own process, and send its inputs."""

    name: str
    model: bytes
    inputs: Arrays
    plan: Plan | None
    limit_s = 400.0


@dataclass(frozen=True)
class PeerOutputs(Request[Arrays]):
    """Read the outputs of a peer's last run; handle 0 is the peer in the agent's own process."""

    handle: int = 0


@dataclass(frozen=True)
class Close(Request[None]):
    """Release a model or end a peer."""

    handle: int


# Requests to a process that is a peer.


@dataclass(frozen=True)
class BecomePeer(Request[str]):
    """Turn this process into a peer for an ONNX model; the answer is the library's version."""

    name: str
    model: bytes
    soc: LocalSoc
    cores: tuple[int, ...]
    plan: Plan | None
    limit_s = 300.0  # a large model is converted and compiled


@dataclass(frozen=True)
class FeedPeer(Request[tuple[tuple[int, ...], float]]):
    """Set the peer's inputs and run it for a while; the answer is its cores and mean busy count."""

    inputs: Arrays
    limit_s = 300.0


@dataclass(frozen=True)
class RunPeer(Request[tuple[tuple[float, ...], bool]]):
    """Run the peer; the answer is the seconds of each run, and whether its threads went idle."""

    runs: int
    limit_s = 300.0
