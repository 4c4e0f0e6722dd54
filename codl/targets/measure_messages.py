"""Messages about a device itself and about what is measured on it.

Of the messages of `codl doctor`, what takes an agent down is the finding: nothing else is asked of
it at the same time.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from codl.measure.dataset import AnchorRow
from codl.measure.facts import Fact
from codl.measure.sent_tasks import TaskRecord
from codl.measure.timing import Rounds
from codl.measure.ui_frames import Drawn
from codl.records.results import Conditions
from codl.records.soc import PowerW
from codl.records.tuned import BenchRow, Choices, Refused, Trial, Tuned
from codl.runtime.clock_settings import Governed
from codl.runtime.examination import Examination
from codl.runtime.placement import LocalSoc
from codl.runtime.probe import ProbedDevice, ProbeResult
from codl.targets.info import TargetInfo
from codl.targets.message_base import Reply, Request


class Examined(Reply, frozen=True):
    examination: Examination


class Examine(Request, frozen=True):
    """What the machine has for codl; nothing is imported or opened."""

    reply: ClassVar[type[Reply]] = Examined


class Imported(Reply, frozen=True):
    seconds: float


class Import(Request, frozen=True):
    """Import a package of codl's base or extras, to see whether it works there."""

    package: str
    reply: ClassVar[type[Reply]] = Imported
    limit_s: ClassVar[float] = 120.0


class Paced(Reply, frozen=True):
    samples_s: tuple[float, ...]


class MeasurePace(Request, frozen=True):
    """Do the same work over and over for so many seconds, and time every round."""

    seconds: float
    reply: ClassVar[type[Reply]] = Paced


class CheckRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `CheckTask`: an op's text and the name of a variant."""

    op: str
    variant: str


class Checking(Reply, frozen=True):
    """An event of `CheckKernels`: the task of this index begins."""

    index: int


class KernelChecked(Reply, frozen=True):
    """An event of `CheckKernels`: the task of this index is done; no problem is ""."""

    index: int
    problem: str


class ChecksEnded(Reply, frozen=True):
    left: int


class CheckKernels(Request, frozen=True):
    """Check kernel variants against the NumPy interpreter."""

    tasks: tuple[CheckRecord, ...]
    budget_s: float | None
    reply: ClassVar[type[Reply]] = ChecksEnded
    limit_s: ClassVar[float] = 120.0


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


class Described(Reply, frozen=True):
    info: TargetInfo


class Describe(Request, frozen=True):
    """What the machine is."""

    reply: ClassVar[type[Reply]] = Described


class Spent(Reply, frozen=True):
    seconds: dict[str, float]


class ReadSpent(Request, frozen=True):
    """The seconds that this process took over requests so far, by their names."""

    reply: ClassVar[type[Reply]] = Spent


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

    identity: dict[str, str] = msgspec.field(default_factory=dict)
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


class ConditionsRead(Reply, frozen=True):
    conditions: Conditions


class ReadConditions(Request, frozen=True):
    """Temperature, clocks and battery, as they are now."""

    reply: ClassVar[type[Reply]] = ConditionsRead


class GovernorSet(Reply, frozen=True):
    governed: Governed


class SetGovernor(Request, frozen=True):
    """Let a governor choose the clocks until the agent ends, which puts the former one back."""

    governor: str
    reply: ClassVar[type[Reply]] = GovernorSet


class Compile(Request, frozen=True):
    """Build and run once what a task has on the GPU; `models` are the blobs' digests."""

    task: TaskRecord
    models: tuple[str, ...]
    tuning: Choices
    limit_s: ClassVar[float] = 600.0


class AnchorLevel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an anchor took in the run's first batch."""

    op: str
    processor: str
    latency_ms: float


class MeasuredRow(Reply, frozen=True):
    """An event of `Measure`: the row of the task of this index, as a CSV file has it."""

    index: int
    row: dict[str, Any]
    is_disturbed: bool


class Measured(Reply, frozen=True):
    """The end of a batch, behind its rows; `conditions` are those at the end."""

    anchors: tuple[AnchorRow, ...]
    conditions: Conditions


class Measure(Request, frozen=True):
    """A `MeasureBatch`; `models` are the blobs' digests."""

    tasks: tuple[TaskRecord, ...]
    models: tuple[str, ...]
    run: str
    rounds: Rounds
    tuning: Choices
    left_s: float | None
    reference_ms: tuple[AnchorLevel, ...]
    tolerance: dict[str, float]
    reply: ClassVar[type[Reply]] = Measured
    limit_s: ClassVar[float] = 300.0


class TuneRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `TuneTask`: an op's text, the name of a GPU variant, and whether the search is brief."""

    op: str
    variant: str
    brief: bool = False


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
    tuning: Choices
    every: bool
    reply: ClassVar[type[Reply]] = Benched
    limit_s: ClassVar[float] = 600.0


class FramesDrawn(Reply, frozen=True):
    drawn: Drawn


class DrawFrames(Request, frozen=True):
    """Draw an interface at 60 Hz for so many seconds."""

    seconds: float
    reply: ClassVar[type[Reply]] = FramesDrawn


class PowerMeasured(Reply, frozen=True):
    power: PowerW


class MeasurePower(Request, frozen=True):
    """Watts, over so many seconds for each state of the processors."""

    seconds: float
    reply: ClassVar[type[Reply]] = PowerMeasured
