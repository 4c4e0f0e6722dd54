"""The agent: serves requests on its standard input by the target that is this very process.

It executes nothing that it is sent but kernels and nets. Libraries print to standard output as they
like; for them it is standard error.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from codl.errors import CodlError, CodlWarning
from codl.optional import explained
from codl.plugins import load_installed
from codl.provenance import VERSION as CODL
from codl.runtime import clock_settings
from codl.runtime.child import ending_with, own_streams
from codl.runtime.connection import Blob, Connection, ConnectionEnded, FrameError, Reader, Writer
from codl.targets.arrays import from_wire, headed, one_each, to_wire
from codl.targets.measure_messages import (
    Benched,
    BenchOp,
    CheckKernels,
    Clocks,
    Compile,
    ConditionsRead,
    CoresSeen,
    Describe,
    Described,
    DrawFrames,
    Examine,
    FactMeasured,
    FactsMeasured,
    FailedSearch,
    Found,
    FramesDrawn,
    GovernorSet,
    Import,
    Look,
    Looked,
    Measure,
    Measured,
    MeasuredRow,
    MeasureFact,
    MeasureFacts,
    MeasurePace,
    MeasurePower,
    ObserveCores,
    Open,
    OpenDevice,
    PowerMeasured,
    Probe,
    Probed,
    ReadClocks,
    ReadConditions,
    ReadSpent,
    Searching,
    SetGovernor,
    Spent,
    Tune,
    TuneEnded,
)
from codl.targets.message_base import (
    VERSION,
    Advanced,
    Building,
    Done,
    Failed,
    Hello,
    Reply,
    Timing,
    Warned,
)
from codl.targets.messages import AnyReply, AnyRequest
from codl.targets.model_messages import (
    BecomePeer,
    FeedPeer,
    Lacks,
    Load,
    ObservePeer,
    PeerFed,
    PeerOutputs,
    PeerReady,
    Profile,
    ReadBinaries,
    ReadPeer,
    ReadPeerOf,
    Run,
    RunPeer,
    StartPeer,
    Time,
    Unload,
)

if TYPE_CHECKING:
    from codl.measure.batch import Measurement
    from codl.measure.tasks import Task
    from codl.targets.local import LocalTarget
    from codl.targets.peer_host import PeerHost
    from codl.targets.served_models import ServedModels

Answer = tuple[Reply, Sequence[bytes | memoryview]]


def main(begin: float, build: str = "") -> int:
    """Serve until the input ends; returns the exit code.

    `begin` is when this process began, and `build` that of the file which it was started from.
    """
    if clock_settings.is_left():
        from codl.runtime.clock_settings import put_back_left

        put_back_left()
    reader, writer = own_streams()
    with reader, writer, ending_with(reader.fileno()):
        return Agent(reader, writer, begin, build).serve()


class Agent:
    """Answers one request after the other.

    What is wrong with a request becomes `Failed`; what is wrong with a frame ends the connection.
    """

    def __init__(self, reader: Reader, writer: Writer, begin: float, build: str = "") -> None:
        self._connection: Connection[AnyRequest, AnyReply] = Connection(reader, writer, AnyRequest)
        self._begin, self._build = begin, build
        self._spent: dict[str, float] = defaultdict(float)
        self._target: LocalTarget | None = None
        self._models: ServedModels | None = None
        self._peer: PeerHost | None = None

    def serve(self) -> int:
        """Until the other side closes the connection; 1 where that was because of an error."""
        self._send(Hello(VERSION, CODL, self._begin, perf_counter(), self._build))
        try:
            with warnings.catch_warnings():
                warnings.showwarning = self._warn  # type: ignore[assignment]
                while True:
                    request, blobs = self._connection.receive()
                    start = perf_counter()
                    answer, parts = self._answer(request, blobs)
                    self._spent[type(request).__name__] += perf_counter() - start
                    self._connection.send(answer, parts)  # type: ignore[arg-type]
        except ConnectionEnded:
            return 0
        except FrameError as error:
            print(error, file=sys.stderr)
            with suppress(FrameError):
                self._connection.send_last(Failed("FrameError", str(error)))
            return 1
        finally:
            for own in (self._peer, self._models, self._target):
                if own is not None:
                    own.close()

    def _answer(self, request: AnyRequest, blobs: list[Blob]) -> Answer:
        try:
            handler: Callable[..., Answer] = HANDLERS[type(request)]
            with explained():
                return handler(self, request, blobs)
        except FrameError:
            raise
        except CodlError as error:
            return Failed(_kind(error), str(error)), ()
        except Exception as error:  # a defect here, or a library's
            traceback.print_exc()
            return Failed(type(error).__name__, _first_line(error)), ()

    def _send(self, message: AnyReply) -> None:
        self._connection.send(message)

    def _warn(self, message: Warning | str, category: type[Warning], *where: Any) -> None:
        if issubclass(category, CodlWarning):
            self._send(Warned(str(message)))
        else:
            print(message, file=sys.stderr)

    @property
    def target(self) -> LocalTarget:
        """This process as the target of a SoC; raises `CodlError` where none was opened."""
        if self._target is None:
            from codl.targets.local import LocalTarget

            load_installed()
            self._target = LocalTarget()
        return self._target

    def open(self, request: Open, blobs: list[Blob]) -> Answer:
        from codl.targets.local import LocalTarget

        if self._target is not None:
            raise self._connection.refuse("A SoC was opened already: Open must come first.")
        load_installed()
        self._target = LocalTarget(request.soc)
        return Done(), ()

    def look(self, request: Look, blobs: list[Blob]) -> Answer:
        from codl.runtime.probe import look

        return Looked(tuple(look(request.icd))), ()

    def probe(self, request: Probe, blobs: list[Blob]) -> Answer:
        return Probed(tuple(self.target.probe())), ()

    def measure_fact(self, request: MeasureFact, blobs: list[Blob]) -> Answer:
        from codl.measure.facts import FACTS
        from codl.runtime.probe import BareDevice

        measuring = FACTS.find(request.key)
        return FactMeasured(measuring(BareDevice.open(request.driver, request.device))), ()

    def measure_facts(self, request: MeasureFacts, blobs: list[Blob]) -> Answer:
        facts = self.target.measure_facts(request.driver, request.device, request.keys)
        return FactsMeasured(tuple(facts)), ()

    def observe_cores(self, request: ObserveCores, blobs: list[Blob]) -> Answer:
        seen = self.target.observe_cores()
        return CoresSeen(tuple(seen["cpu"]), tuple(seen["gpu"])), ()

    def read_clocks(self, request: ReadClocks, blobs: list[Blob]) -> Answer:
        return Clocks(self.target.clocks_mhz()), ()

    def read_conditions(self, request: ReadConditions, blobs: list[Blob]) -> Answer:
        return ConditionsRead(self.target.conditions()), ()

    def set_governor(self, request: SetGovernor, blobs: list[Blob]) -> Answer:
        return GovernorSet(self.target.set_governor(request.governor)), ()

    def spent(self, request: ReadSpent, blobs: list[Blob]) -> Answer:
        return Spent(dict(self._spent)), ()

    def compile(self, request: Compile, blobs: list[Blob]) -> Answer:
        from codl.kernels.tuning import Tuning
        from codl.measure.task_records import from_record

        models = dict(one_each(request.models, blobs, "models"))
        self.target.compile(from_record(request.task, models), Tuning.of_choices(request.tuning))
        return Done(), ()

    def measure(self, request: Measure, blobs: list[Blob]) -> Answer:
        from codl.kernels.tuning import Tuning
        from codl.measure.batch import MeasureBatch
        from codl.measure.task_records import from_record

        models = dict(one_each(request.models, blobs, "models"))
        tasks = tuple(from_record(record, models) for record in request.tasks)
        batch = MeasureBatch(
            tasks=tasks,
            run=request.run,
            rounds=request.rounds,
            tuning=Tuning.of_choices(request.tuning),
            left_s=float("inf") if request.left_s is None else request.left_s,
            reference_ms={(own.op, own.processor): own.latency_ms for own in request.reference_ms},
            tolerance=request.tolerance,
        )
        result = self.target.measure(batch, watcher=_Watched(self._send, tasks))
        return Measured(result.anchors, result.conditions), ()

    def tune(self, request: Tune, blobs: list[Blob]) -> Answer:
        from codl.kernels.tuning import Tuning
        from codl.measure.tuner import task_of
        from codl.records.tuned import Choices

        tasks = [task_of(own.op, own.variant, brief=own.brief) for own in request.tasks]
        index = {task.key: at for at, task in enumerate(tasks)}
        run = self.target.tune(
            tasks,
            Tuning.of_choices(Choices(request.tuning)),
            keep=lambda result: self._send(Found(result)),
            searching=lambda task: self._send(Searching(index[task.key])),
            budget_s=request.budget_s,
            progress=lambda *how: self._send(Advanced(*how)),
        )
        failures = (FailedSearch(index[f.task.key], f.reason, f.trials) for f in run.failures)
        return TuneEnded(tuple(failures), run.left, run.seconds), ()

    def bench(self, request: BenchOp, blobs: list[Blob]) -> Answer:
        from codl.kernels.tuning import Tuning
        from codl.measure.task_records import op_of

        op = op_of(request.op, dict(one_each(request.models, blobs, "models")))
        rows, refused = self.target.bench(
            op, Tuning.of_choices(request.tuning), every=request.every
        )
        return Benched(tuple(rows), tuple(refused)), ()

    def for_seconds(self, request: MeasurePower | DrawFrames, blobs: list[Blob]) -> Answer:
        if isinstance(request, DrawFrames):
            return FramesDrawn(self.target.draw_frames(request.seconds)), ()
        return PowerMeasured(self.target.power(request.seconds)), ()

    def check(
        self, request: Examine | Import | MeasurePace | CheckKernels, blobs: list[Blob]
    ) -> Answer:
        from codl.targets.served_models import answer

        return answer(request, self.target, self._send), ()

    @property
    def models(self) -> ServedModels:
        """What was loaded here."""
        if self._models is None:
            from codl.targets.served_models import ServedModels

            self._models = ServedModels(self.target)
        return self._models

    def time(self, request: Time, blobs: list[Blob]) -> Answer:
        return self.models.time(request, lambda: self._send(Advanced(0, 0, 0.0)))

    def become_peer(self, request: BecomePeer, blobs: list[Blob]) -> Answer:
        from codl.targets.peer_host import PeerHost

        if self._peer is not None:
            raise self._connection.refuse("This process is a peer already: BecomePeer comes once.")
        model, _ = headed(blobs)
        self._peer = PeerHost(request, model)
        return PeerReady(self._peer.version), ()

    @property
    def peer(self) -> PeerHost:
        if self._peer is None:
            raise self._connection.refuse("This process is no peer: BecomePeer must come first.")
        return self._peer

    def feed_peer(self, request: FeedPeer, blobs: list[Blob]) -> Answer:
        self.peer.feed(from_wire(request.inputs, blobs))
        return PeerFed(), ()

    def read_peer(self, request: ReadPeer, blobs: list[Blob]) -> Answer:
        records, parts = to_wire(self.peer.outputs())
        return PeerOutputs(records), parts


class _Watched:
    """Tells the other side what becomes of the tasks of a batch, and each row as it is made."""

    def __init__(self, send: Callable[[AnyReply], None], tasks: Sequence[Task]) -> None:
        self._send = send
        self._index = {task: at for at, task in enumerate(tasks)}

    def building(self, index: int) -> None:
        self._send(Building(index))

    def timing(self) -> None:
        self._send(Timing())

    def measured(self, one: Measurement) -> None:
        row = msgspec.to_builtins(one.row)
        self._send(MeasuredRow(self._index[one.task], row, one.is_disturbed))


HANDLERS: dict[type[Any], Callable[..., Answer]] = {
    Look: Agent.look,
    Describe: lambda agent, request, blobs: (Described(agent.target.describe()), ()),
    Probe: Agent.probe,
    Open: Agent.open,
    OpenDevice: lambda agent, request, blobs: agent.models.open(request, blobs),
    MeasureFact: Agent.measure_fact,
    MeasureFacts: Agent.measure_facts,
    ObserveCores: Agent.observe_cores,
    ReadClocks: Agent.read_clocks,
    ReadConditions: Agent.read_conditions,
    SetGovernor: Agent.set_governor,
    ReadSpent: Agent.spent,
    Compile: Agent.compile,
    Measure: Agent.measure,
    Tune: Agent.tune,
    BenchOp: Agent.bench,
    **dict.fromkeys((DrawFrames, MeasurePower), Agent.for_seconds),
    **dict.fromkeys((Examine, Import, MeasurePace, CheckKernels), Agent.check),
    Lacks: lambda agent, request, blobs: agent.models.lacks(request),
    Load: lambda agent, request, blobs: agent.models.load(
        request, blobs, lambda step: agent._send(Building(step))
    ),
    Run: lambda agent, request, blobs: agent.models.run(request, blobs),
    Profile: lambda agent, request, blobs: agent.models.profile(request),
    Time: Agent.time,
    Unload: lambda agent, request, blobs: agent.models.unload(request),
    ReadBinaries: lambda agent, request, blobs: agent.models.binaries(request),
    StartPeer: lambda agent, request, blobs: agent.models.start_peer(request, blobs),
    ReadPeerOf: lambda agent, request, blobs: agent.models.read_peer(request),
    BecomePeer: Agent.become_peer,
    FeedPeer: Agent.feed_peer,
    RunPeer: lambda agent, request, blobs: (agent.peer.run(request.runs), ()),
    ObservePeer: lambda agent, request, blobs: (agent.peer.observe(), ()),
    ReadPeer: Agent.read_peer,
}


def _kind(error: CodlError) -> str:
    """The nearest of codl's own classes: others cannot be raised on the other side."""
    return next(c.__name__ for c in type(error).__mro__ if c.__module__ == CodlError.__module__)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(perf_counter()))
