"""Requests to an agent about its models and peers, which have handles."""

from __future__ import annotations

from dataclasses import dataclass

from codl.ir.executable import Refusal
from codl.ir.plan import Plan
from codl.ir.records.gpu_limits import LimitedGpu
from codl.ir.records.results import TimeSpan
from codl.machine.placement import LocalSoc
from codl.runtime.loaded import Binary, Footprint
from codl.targets.requests import Arrays, Request


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
    """Handle of a peer, its version, and the mean number of busy cores in a first run."""

    handle: int
    version: str
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
    """Read the outputs of a peer's last run."""

    handle: int


@dataclass(frozen=True)
class Close(Request[None]):
    """Release a model or end a peer."""

    handle: int


# Requests to a process that is a peer.


@dataclass(frozen=True)
class BecomePeer(Request[tuple[int, str]]):
    """Turn this process into a peer for an ONNX model; answers its handle and version."""

    name: str
    model: bytes
    soc: LocalSoc
    cores: tuple[int, ...]
    plan: Plan | None
    limit_s = 300.0  # a large model is converted and compiled


@dataclass(frozen=True)
class FeedPeer(Request[float]):
    """Set the peer's inputs and run it for a while; the answer is its mean busy cores."""

    handle: int
    inputs: Arrays
    limit_s = 300.0


@dataclass(frozen=True)
class RunPeer(Request[tuple[tuple[float, ...], bool]]):
    """Run the peer; the answer is the seconds of each run, and whether its threads went idle."""

    handle: int
    runs: int
    limit_s = 300.0
