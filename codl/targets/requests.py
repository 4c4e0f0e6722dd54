"""Requests to an agent about its process, its machine, and what it runs.

Those that measure are in `codl.targets.measuring`, which an agent imports when it needs them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from codl.ir.executable import Refusal
from codl.ir.plan import Plan
from codl.records.gpu_limits import LimitedGpu
from codl.records.results import Conditions, TimeSpan
from codl.records.soc import PowerW
from codl.records.soc_facts import Chip
from codl.runtime.clock_settings import Governed
from codl.runtime.examination import Examination
from codl.runtime.hardware import CpuFacts
from codl.runtime.loaded import Binary, Footprint, Offer
from codl.runtime.placement import LocalSoc
from codl.runtime.probe import ProbeResult
from codl.runtime.sensors import SensorInfo
from codl.targets.wire import Arrays, Request

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
    #: Temperature sensors of the processors, by the system's names.
    thermometers: tuple[str, ...] = ()


FactName: TypeAlias = Literal[
    "machine", "examination", "libraries", "clocks_mhz", "conditions", "busy_cores", "seconds"
]
#: Types of the facts by their names. "seconds" are those spent on requests, by their names.
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
    """Read a fact of the machine, or of the process."""

    name: FactName

    @property
    def answer(self) -> Any:
        return FACT_TYPES[self.name]


@dataclass(frozen=True)
class Probe(Request[tuple[ProbeResult, ...]]):
    """Run a kernel on the devices of every OpenCL driver, each in a process of its own.

    With a `driver`, this process loads it.
    """

    driver: str = ""
    limit_s = 600.0


@dataclass(frozen=True)
class SetGovernor(Request[Governed]):
    """Let a governor choose the clocks until the agent ends."""

    governor: str


@dataclass(frozen=True)
class ImportPackage(Request[float]):
    """Import a package; the answer is the seconds that it took."""

    name: str
    limit_s = 120.0


@dataclass(frozen=True)
class UnpinnedRatios(Request[tuple[float, ...]]):
    """Compare the CPU side's threads on all of `cores` with its own, in turns."""

    cores: tuple[int, ...]


@dataclass(frozen=True)
class Power(Request[PowerW]):
    """Measure the watts of no load, of each processor and of both, each over `seconds`."""

    seconds: float

    limit_s = property(lambda self: 60.0 + 4 * self.seconds)


@dataclass(frozen=True)
class Pace(Request[tuple[float, ...]]):
    """Repeat the same work on one core for `seconds`; the answer is the seconds of each round."""

    seconds: float

    limit_s = property(lambda self: 60.0 + 4 * self.seconds)


# Models and peers, which the agent holds by handle.


@dataclass(frozen=True)
class Open(Request[dict[str, str]]):
    """Open the OpenCL device of the SoC; the answer is the device and its driver."""

    offer: Offer | None = None


@dataclass(frozen=True)
class MissingArrays(Request[tuple[str, ...]]):
    """Find which of these arrays, by digest, the agent does not have."""

    digests: tuple[str, ...]


@dataclass(frozen=True)
class LoadedModel:
    """Handle of a loaded executable, and what it takes."""

    handle: int
    footprint: Footprint
    limited: LimitedGpu | None


@dataclass(frozen=True)
class Load(Request[LoadedModel | tuple[Refusal, ...]]):
    """Load an executable with the arrays that were missing; an event begins each step.

    The answer is the model, or the kernels that the device refuses. With `tries` each kernel runs
    once for a trial. `on_cpu` loads it without opening the device.
    """

    content: bytes
    arrays: Arrays
    tries: bool = True
    on_cpu: bool = False
    limit_s = 300.0  # a step may compile a kernel


@dataclass(frozen=True)
class Run(Request[Arrays]):
    """Run a model once on these inputs; the answer is its outputs."""

    handle: int
    inputs: Arrays
    limit_s = 120.0


@dataclass(frozen=True)
class Profile(Request[tuple[TimeSpan, ...]]):
    """Run a model on its last inputs; the answer is what each processor did when."""

    handle: int
    layers: bool
    limit_s = 300.0


@dataclass(frozen=True)
class Binaries(Request[tuple[Binary, ...]]):
    """Read the compiled programs of a model, and those that opening the device takes."""

    handle: int


@dataclass(frozen=True)
class StartedPeer:
    """Handle of a peer, its version, and how its threads worked in a first run."""

    handle: int
    version: str
    observed_cores: tuple[int, ...]
    busy_cores: float


@dataclass(frozen=True)
class StartPeer(Request[StartedPeer]):
    """Start a peer for an ONNX model in a process of its own, and feed it."""

    name: str
    model: bytes
    inputs: Arrays
    plan: Plan | None
    limit_s = 400.0


@dataclass(frozen=True)
class PeerOutputs(Request[Arrays]):
    """Read the outputs of a peer's last run; 0 is the handle of the peer in its own process."""

    handle: int = 0


@dataclass(frozen=True)
class Close(Request[None]):
    """Release a model or end a peer."""

    handle: int


# A process that is a peer.


@dataclass(frozen=True)
class BecomePeer(Request[str]):
    """Make a peer of an ONNX model in this process; the answer is the library's version."""

    name: str
    model: bytes
    soc: LocalSoc
    cores: tuple[int, ...]
    plan: Plan | None
    limit_s = 300.0  # a large model is converted and compiled


@dataclass(frozen=True)
class FeedPeer(Request[tuple[tuple[int, ...], float]]):
    """Feed the peer and run it for a while; the answer is its cores, and how many were busy."""

    inputs: Arrays
    limit_s = 300.0


@dataclass(frozen=True)
class RunPeer(Request[tuple[tuple[float, ...], bool]]):
    """Run the peer; the answer is the seconds of each run, and whether its threads stopped."""

    runs: int
    limit_s = 300.0
