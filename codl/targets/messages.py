"""What is said to an agent and what it answers; each is one frame.

One request is under way at a time. An agent answers with any number of events and then with the
request's `reply`, or with `Failed`.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import msgspec

from codl.ir.executable import Refusal
from codl.ir.results import TimeSpan
from codl.ir.soc import PowerW
from codl.kernels.tuning import Trial, Tuned
from codl.measure.bench_rows import BenchRow, Refused
from codl.measure.dataset import AnchorRow
from codl.measure.interleave import Effort, TimedTogether
from codl.measure.task_records import TaskRecord
from codl.measure.timing import Rounds
from codl.runtime.placement import LocalSoc
from codl.runtime.probe import ProbedDevice, ProbeResult
from codl.runtime.session import Footprint
from codl.targets.arrays import ArrayRecord
from codl.targets.info import TargetInfo

#: Of the messages; an agent of another version is refused.
VERSION = 1


class Message(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="message", tag=True
):
    """Base of everything that is sent."""


class Reply(Message, frozen=True):
    """An answer, or an event on the way to one."""


class Hello(Reply, frozen=True):
    """The first frame of an agent; `begin` and `ready` are its clock's when it began and now."""

    version: int
    codl: str
    begin: float
    ready: float


class Failed(Reply, frozen=True):
    """Why a request failed; `kind` is the name of one of codl's errors, or of another exception."""

    kind: str
    text: str


class Warned(Reply, frozen=True):
    """An event: a warning of codl's."""

    text: str


class Advanced(Reply, frozen=True):
    """An event: so far has the request come (see `codl.measure.progress`)."""

    done: int
    total: int
    seconds_left: float


class Building(Reply, frozen=True):
    """An event of `Measure`: the task of this index is being built."""

    index: int


class Timing(Reply, frozen=True):
    """An event of `Measure`: all that was built now takes turns."""


class Done(Reply, frozen=True):
    """There is nothing more to say."""


class Request(Message, frozen=True):
    """Base of what a target is asked; `reply` is the answer, which takes at most `limit_s`.

    The limit is for the time between two frames.
    """

    reply: ClassVar[type[Reply]] = Done
    limit_s: ClassVar[float] = 60.0


class Described(Reply, frozen=True):
    info: TargetInfo


class Describe(Request, frozen=True):
    """What the machine is."""

    reply: ClassVar[type[Reply]] = Described


class Looked(Reply, frozen=True):
    devices: tuple[ProbedDevice, ...]


class Look(Request, frozen=True):
    """Load a driver and run a kernel on each of its devices; the process is for nothing else."""

    icd: str
    reply: ClassVar[type[Reply]] = Looked


class Probed(Reply, frozen=True):
    drivers: tuple[ProbeResult, ...]


class Probe(Request, frozen=True):
    """Look at every driver of the machine, each in a process of its own."""

    reply: ClassVar[type[Reply]] = Probed
    limit_s: ClassVar[float] = 600.0


class Open(Request, frozen=True):
    """Be the target of a SoC; must come before anything that measures or runs on it."""

    soc: LocalSoc


class OfferedBinary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A compiled program; its bytes are a blob."""

    name: str
    source: str
    options: str


class Identified(Reply, frozen=True):
    identity: dict[str, str]


class OpenDevice(Request, frozen=True):
    """Open the SoC's device now, which others do when they need it: what fails, fails here.

    `offered` are programs, one blob each, as they were compiled for what `identity` says.
    """

    identity: dict[str, str] = {}
    offered: tuple[OfferedBinary, ...] = ()
    reply: ClassVar[type[Reply]] = Identified


class CoresSeen(Reply, frozen=True):
    cpu: tuple[int, ...]
    gpu: tuple[int, ...]


class ObserveCores(Request, frozen=True):
    """Work on either side alone and see on which cores."""

    reply: ClassVar[type[Reply]] = CoresSeen


class Clocks(Reply, frozen=True):
    mhz: dict[str, float]


class ReadClocks(Request, frozen=True):
    """The clocks of the SoC's cores."""

    reply: ClassVar[type[Reply]] = Clocks


class Compile(Request, frozen=True):
    """Build and run once what a task has on the GPU; `models` are the blobs' digests."""

    task: TaskRecord
    models: tuple[str, ...]
    tuning: tuple[Tuned, ...]
    limit_s: ClassVar[float] = 600.0


class UsualLevel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an anchor usually takes."""

    op: str
    processor: str
    latency_ms: float


class MeasuredRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The row of the task of this index, as a CSV file has it."""

    index: int
    row: dict[str, Any]
    is_disturbed: bool


class Measured(Reply, frozen=True):
    rows: tuple[MeasuredRow, ...]
    anchors: tuple[AnchorRow, ...]


class Measure(Request, frozen=True):
    """A `MeasureBatch`; `models` are the blobs' digests."""

    tasks: tuple[TaskRecord, ...]
    models: tuple[str, ...]
    run: str
    rounds: Rounds
    tuning: tuple[Tuned, ...]
    left_s: float | None
    usual_ms: tuple[UsualLevel, ...]
    tolerance: dict[str, float]
    reply: ClassVar[type[Reply]] = Measured
    limit_s: ClassVar[float] = 300.0


class TuneRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `TuneTask`: an op's text and the name of a GPU variant."""

    op: str
    variant: str


class Searching(Reply, frozen=True):
    """An event of `Tune`: the choices of the task of this index are being searched."""

    index: int


class Found(Reply, frozen=True):
    """An event of `Tune`: a task is done."""

    result: Tuned


class FailedSearch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `Failure` of the task of this index."""

    index: int
    reason: str
    trials: tuple[Trial, ...]


class TuneEnded(Reply, frozen=True):
    failures: tuple[FailedSearch, ...]
    left: int
    seconds: float


class Tune(Request, frozen=True):
    """Search the choices of kernels; `tuning` are results of searches that were cut short."""

    tasks: tuple[TuneRecord, ...]
    tuning: tuple[Tuned, ...]
    budget_s: float | None
    reply: ClassVar[type[Reply]] = TuneEnded
    limit_s: ClassVar[float] = 600.0


class Benched(Reply, frozen=True):
    rows: tuple[BenchRow, ...]
    refused: tuple[Refused, ...]


class BenchOp(Request, frozen=True):
    """Measure an op in every variant; `models` are the blobs' digests."""

    op: str
    models: tuple[str, ...]
    tuning: tuple[Tuned, ...]
    every: bool
    reply: ClassVar[type[Reply]] = Benched
    limit_s: ClassVar[float] = 600.0


class PowerMeasured(Reply, frozen=True):
    power: PowerW


class MeasurePower(Request, frozen=True):
    """Watts, over so many seconds for each state of the processors."""

    seconds: float
    reply: ClassVar[type[Reply]] = PowerMeasured


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


class KernelsRefused(LoadAnswer, frozen=True):
    """The device does not run some kernels of an executable, which is not loaded."""

    refusals: tuple[Refusal, ...]


class Load(Request, frozen=True):
    """Load an executable, the first blob; arrays that lacked, by their digests, are the others.

    Without `tries` no kernel runs for a trial.
    """

    arrays: tuple[ArrayRecord, ...]
    tries: bool
    reply: ClassVar[type[Reply]] = LoadAnswer
    limit_s: ClassVar[float] = 600.0


class Ran(Reply, frozen=True):
    outputs: tuple[ArrayRecord, ...]


class Run(Request, frozen=True):
    """Run a model on inputs, one blob each."""

    handle: int
    inputs: tuple[ArrayRecord, ...]
    reply: ClassVar[type[Reply]] = Ran
    limit_s: ClassVar[float] = 300.0


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
    tuning: tuple[Tuned, ...]
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
    """The seconds of the last run, and whether the library's threads have stopped since."""

    seconds: float
    is_idle: bool


class RunPeer(Request, frozen=True):
    """Run so often, and once more that is timed."""

    lead_in: int
    reply: ClassVar[type[Reply]] = PeerRan


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


AnyRequest: TypeAlias = (
    Describe
    | Look
    | Probe
    | Open
    | OpenDevice
    | ObserveCores
    | ReadClocks
    | Compile
    | Measure
    | Tune
    | BenchOp
    | MeasurePower
    | Lacks
    | Load
    | Run
    | Profile
    | Time
    | Unload
    | ReadBinaries
    | StartPeer
    | ReadPeerOf
    | BecomePeer
    | FeedPeer
    | RunPeer
    | ObservePeer
    | ReadPeer
)
AnyReply: TypeAlias = (
    Hello
    | Failed
    | Warned
    | Advanced
    | Building
    | Timing
    | Done
    | Described
    | Looked
    | Probed
    | CoresSeen
    | Clocks
    | Measured
    | Searching
    | Found
    | TuneEnded
    | Benched
    | PowerMeasured
    | Lacking
    | ModelLoaded
    | KernelsRefused
    | Ran
    | Profiled
    | TimesTogether
    | Identified
    | BinariesRead
    | PeerStarted
    | PeerOutputs
    | PeerReady
    | PeerFed
    | PeerRan
    | PeerObserved
)
