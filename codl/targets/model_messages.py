"""Messages about executables and peer libraries that a target loads, runs and times."""

from __future__ import annotations

from typing import Any, ClassVar

from codl.ir.executable import Refusal
from codl.measure.timing import Effort, TimedTogether
from codl.records.gpu_limits import LimitedGpu
from codl.records.results import TimeSpan
from codl.records.tuned import Choices
from codl.runtime.loaded import Footprint
from codl.runtime.placement import LocalSoc
from codl.targets.arrays import ArrayRecord
from codl.targets.measure_messages import (
    OfferedBinary,
)
from codl.targets.message_base import (
    Reply,
    Request,
)


class Lacking(Reply, frozen=True):
    digests: tuple[str, ...]


class Lacks(Request, frozen=True):
    """Which of these arrays, by digest, were not sent yet."""

    digests: tuple[str, ...]
    reply: ClassVar[type[Reply]] = Lacking


class LoadAnswer(Reply, frozen=True):
    """Base of what comes of `Load`."""


class ModelLoaded(LoadAnswer, frozen=True):
    handle: int
    footprint: Footprint
    limited: LimitedGpu | None = None


class KernelsRefused(LoadAnswer, frozen=True):
    """The device does not run some kernels of an executable, which is not loaded."""

    refusals: tuple[Refusal, ...]


class Load(Request, frozen=True):
    """Load an executable, the first blob; arrays that lacked, by their digests, are the others.

    Without `tries` no kernel runs for a trial; one `on_cpu` needs no GPU, and none is opened.
    """

    arrays: tuple[ArrayRecord, ...]
    tries: bool
    on_cpu: bool = False
    reply: ClassVar[type[Reply]] = LoadAnswer
    #: From one step to the next, each of which may be compiled.
    limit_s: ClassVar[float] = 300.0


class Ran(Reply, frozen=True):
    outputs: tuple[ArrayRecord, ...]


class Run(Request, frozen=True):
    """Run a model on inputs, one blob each."""

    handle: int
    inputs: tuple[ArrayRecord, ...]
    reply: ClassVar[type[Reply]] = Ran
    limit_s: ClassVar[float] = 120.0


class Profiled(Reply, frozen=True):
    spans: tuple[TimeSpan, ...]


class Profile(Request, frozen=True):
    """What each processor does when in one inference on what was fed last."""

    handle: int
    reply: ClassVar[type[Reply]] = Profiled
    limit_s: ClassVar[float] = 300.0


class TimesTogether(Reply, frozen=True):
    times: TimedTogether


class Time(Request, frozen=True):
    """Time models and peers in turns, each on what it was fed last."""

    handles: dict[str, int]
    effort: Effort
    with_energy: bool
    with_anchors: bool
    tuning: Choices
    reply: ClassVar[type[Reply]] = TimesTogether
    limit_s: ClassVar[float] = 300.0


class Unload(Request, frozen=True):
    """Release a model or end a peer."""

    handle: int


class BinariesRead(Reply, frozen=True):
    """Compiled programs, one blob each."""

    binaries: tuple[OfferedBinary, ...]


class ReadBinaries(Request, frozen=True):
    """The compiled programs of a model, and those that opening the device takes."""

    handle: int
    reply: ClassVar[type[Reply]] = BinariesRead


# Peers. The first three are asked of a target, the others of the process that a peer has.


class PeerStarted(Reply, frozen=True):
    handle: int
    version: str
    cores: tuple[int, ...]
    busy: float


class StartPeer(Request, frozen=True):
    """Start a peer for an ONNX model, the first blob, and feed it inputs, the other ones."""

    name: str
    plan: dict[str, Any] | None
    inputs: tuple[ArrayRecord, ...]
    reply: ClassVar[type[Reply]] = PeerStarted
    limit_s: ClassVar[float] = 400.0


class PeerOutputs(Reply, frozen=True):
    arrays: tuple[ArrayRecord, ...]


class ReadPeerOf(Request, frozen=True):
    """The outputs of a peer's last run."""

    handle: int
    reply: ClassVar[type[Reply]] = PeerOutputs


class PeerReady(Reply, frozen=True):
    version: str


class BecomePeer(Request, frozen=True):
    """Make a peer in this very process, of the ONNX model in the blob."""

    name: str
    soc: LocalSoc
    cores: tuple[int, ...]
    plan: dict[str, Any] | None
    reply: ClassVar[type[Reply]] = PeerReady
    #: Converting and compiling a large model takes its time.
    limit_s: ClassVar[float] = 300.0


class PeerFed(Reply, frozen=True):
    """The inputs lie where the next run reads them."""


class FeedPeer(Request, frozen=True):
    """Inputs for the runs that follow, one blob each."""

    inputs: tuple[ArrayRecord, ...]
    reply: ClassVar[type[Reply]] = PeerFed


class PeerRan(Reply, frozen=True):
    """The seconds of every run, and whether the library's threads have stopped since."""

    seconds: tuple[float, ...]
    is_idle: bool


class RunPeer(Request, frozen=True):
    """Run so many times in a row, each timed."""

    runs: int
    reply: ClassVar[type[Reply]] = PeerRan
    limit_s: ClassVar[float] = 300.0


class PeerObserved(Reply, frozen=True):
    """The cores on which threads were seen, and how many of them were busy in the mean."""

    cores: tuple[int, ...]
    busy: float


class ObservePeer(Request, frozen=True):
    """Run for a while and see on which cores."""

    reply: ClassVar[type[Reply]] = PeerObserved


class ReadPeer(Request, frozen=True):
    """The outputs of the last run."""

    reply: ClassVar[type[Reply]] = PeerOutputs
