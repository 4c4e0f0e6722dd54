"""A target behind an agent: every call is a request, and one that was lost is started again.

So it is with checks of kernels: an agent that is lost names the task, and another does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

from codl.errors import CodlError
from codl.ir import Op, to_text
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.kernels.tuning import Tuning
from codl.measure.batch import BatchResult, MeasureBatch
from codl.measure.budget import Budget, Progress
from codl.measure.check_variants import Checked, CheckRun, CheckTask
from codl.measure.facts import Fact
from codl.measure.task_records import models_of, models_of_ops, to_record
from codl.measure.timing import Effort, TimedTogether
from codl.measure.tuner import Failure, TuneRun, TuneTask, done_before
from codl.measure.ui_frames import Drawn, is_sound
from codl.records.results import Conditions
from codl.records.soc import PowerW, Soc
from codl.records.tuned import BenchRow, Refused, Tuned
from codl.runtime.clock_settings import Governed
from codl.runtime.connection import FrameError
from codl.runtime.examination import Examination
from codl.runtime.placement import LocalSoc, at_hand
from codl.runtime.probe import ProbeResult
from codl.runtime.program_cache import Binary, Offer
from codl.targets.arrays import Arrays, one_each, to_wire
from codl.targets.arriving_rows import Arriving, check_anchors, task_at
from codl.targets.client import AgentClient, AgentLostError
from codl.targets.device_shell import Fix
from codl.targets.info import ColdStart, TargetInfo
from codl.targets.measure_messages import (
    AnchorLevel,
    Benched,
    BenchOp,
    Checking,
    CheckKernels,
    CheckRecord,
    ChecksEnded,
    Clocks,
    ConditionsRead,
    CoresSeen,
    Describe,
    Described,
    DrawFrames,
    Examine,
    Examined,
    FactsMeasured,
    Found,
    FramesDrawn,
    GovernorSet,
    Identified,
    Import,
    Imported,
    KernelChecked,
    Measure,
    Measured,
    MeasureFacts,
    MeasurePace,
    MeasurePower,
    ObserveCores,
    OfferedBinary,
    Open,
    OpenDevice,
    Paced,
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
    TuneRecord,
)
from codl.targets.message_base import Advanced, Reply, Request
from codl.targets.model_messages import (
    BinariesRead,
    Lacks,
    Load,
    PeerStarted,
    ReadBinaries,
    Run,
    StartPeer,
    Time,
    TimesTogether,
)
from codl.targets.remote_models import RemoteModel, RemotePeer

#: A driver may take so long to compile a kernel on a slow device.
COMPILES_S = 30.0


@dataclass
class RemoteChecks:
    """What came of checks so far, over all agents that were needed for them."""

    agent: AgentClient
    progress: Progress
    budget: Budget
    _done: CheckRun = field(default_factory=CheckRun)
    _tasks: Sequence[CheckTask] = ()
    _current: int | None = None
    _total: int = 0

    def run(self, tasks: Sequence[CheckTask]) -> CheckRun:
        """Check them; raises `AgentLostError` where an agent does not come as far as the first."""
        self._total = len(tasks)
        left = list(tasks)
        while left:
            self._tasks, self._current = left, None
            records = tuple(CheckRecord(*task.key) for task in left)
            try:
                answer, _ = self.agent.ask(
                    CheckKernels(records, self.budget.share().seconds),
                    ChecksEnded,
                    on_event=self._hear,
                    limit_s=self._limit_s(),
                )
            except AgentLostError as error:
                left = self._behind(error)
                continue
            self._done.left = answer.left
            break
        return self._done

    def _limit_s(self) -> float:
        """How long one task may take: one that hangs should not outlast the budget by much."""
        return min(CheckKernels.limit_s, max(COMPILES_S, self.budget.left_s))

    def _hear(self, event: Reply) -> None:
        if isinstance(event, Checking):
            task_at(self._tasks, event.index)
            self._current = event.index
        elif isinstance(event, KernelChecked):
            task = task_at(self._tasks, event.index)
            if any(own.task is task for own in self._done.checked):
                raise FrameError(f"It checked task {event.index} twice.")
            self._keep(Checked(task, event.problem))

    def _behind(self, error: AgentLostError) -> list[CheckTask]:
        """The tasks behind the one that an agent was lost with; raises where it was none."""
        if self._current is None:
            raise error
        self._keep(Checked(self._tasks[self._current], str(error), is_lost=True))
        return list(self._tasks[self._current + 1 :])

    def _keep(self, checked: Checked) -> None:
        self._done.checked.append(checked)
        done = len(self._done.checked)
        self.progress(done, self._total, self.budget.to_go_s(done, self._total))


class RemoteTarget:
    """What an agent behind `command` measures and runs; `command` speaks frames over its pipes.

    It is the same for a child of this process and for a device over ssh or adb. `build`, `fixes`
    and `cuts` are as an `AgentClient` takes them.
    """

    def __init__(
        self,
        serial: str,
        command: Sequence[str],
        soc: Soc | None = None,
        *,
        build: str = "",
        fixes: Mapping[str, Fix] = MappingProxyType({}),
        cuts: Sequence[str] = (),
    ) -> None:
        self.serial, self._soc = serial, soc
        self._start = partial(
            RemoteTarget, serial, command, soc, build=build, fixes=fixes, cuts=cuts
        )
        prelude = () if soc is None else (Open(at_hand(soc)),)
        name = f"the agent of {serial!r}"
        self.agent = AgentClient(
            command, name=name, prelude=prelude, build=build, fixes=fixes, cuts=cuts
        )

    @property
    def replays(self) -> None:
        return None

    @property
    def soc(self) -> LocalSoc:
        if self._soc is None:
            raise CodlError(
                f"The target {self.serial!r} was opened without a SoC; name one by --soc."
            )
        return at_hand(self._soc)

    def describe(self) -> TargetInfo:
        answer, _ = self.agent.ask(Describe(), Described)
        return answer.info

    def probe(self) -> list[ProbeResult]:
        answer, _ = self.agent.ask(Probe(), Probed)
        return list(answer.drivers)

    def measure_facts(self, driver: str, device: str, keys: Sequence[str] = ()) -> list[Fact]:
        answer, _ = self.agent.ask(MeasureFacts(driver, device, tuple(keys)), FactsMeasured)
        return list(answer.facts)

    def observe_cores(self) -> dict[str, list[int]]:
        answer, _ = self.agent.ask(ObserveCores(), CoresSeen)
        return {"cpu": list(answer.cpu), "gpu": list(answer.gpu)}

    def clocks_mhz(self) -> dict[str, float]:
        answer, _ = self.agent.ask(ReadClocks(), Clocks)
        return answer.mhz

    def conditions(self) -> Conditions:
        answer, _ = self.agent.ask(ReadConditions(), ConditionsRead)
        return answer.conditions

    def set_governor(self, governor: str) -> Governed:
        """Have it set over there, and by every agent that takes the place of one that was lost."""
        request = SetGovernor(governor)
        answer, _ = self.agent.ask(request, GovernorSet)
        others = [own for own in self.agent.prelude if not isinstance(own, SetGovernor)]
        self.agent.prelude[:] = [*others, request]
        return answer.governed

    def measure(self, batch: MeasureBatch) -> BatchResult:
        """Measure over there; an agent that is lost meanwhile is told with what it was doing.

        The rows that had come by then are among what is returned.
        """
        models, progress = models_of(batch.tasks), Arriving(batch)
        try:
            answer, _ = self.agent.ask(
                _request(batch, models),
                Measured,
                tuple(models.values()),
                on_event=progress.hear,
                limit_s=Measure.limit_s + 4 * batch.rounds.span_s,
            )
            try:
                check_anchors(answer.anchors, batch.run)
            except FrameError as error:
                raise self.agent.refuse(str(error)) from error
        except AgentLostError as error:
            return BatchResult(
                progress.measurements,
                (),
                lost=str(error),
                suspects=() if error.is_cut else progress.suspects,
                has_hung=error.has_hung,
            )
        return BatchResult(progress.measurements, answer.anchors, conditions=answer.conditions)

    def tune(
        self,
        tasks: Sequence[TuneTask],
        tuning: Tuning,
        *,
        keep: Callable[[Tuned], object],
        budget_s: float | None = None,
        progress: Progress = lambda done, total, left: None,
    ) -> TuneRun:
        """Tune over there; the task of which an agent is lost fails, and another does the rest."""
        tuned = [tuning.find(task.variant, task.op, self.soc) for task in tasks]
        known = done_before(tasks, tuning, self.soc)
        begun = {result.key: result for result in tuned if result is not None}
        done = {result.key for result in known}
        missing = [task for task in tasks if task.key not in done]
        search = _RemoteSearch(keep, progress)
        budget = Budget(budget_s)
        while missing:
            records = tuple(TuneRecord(*task.key, task.brief) for task in missing)
            before = tuple(begun[task.key] for task in missing if task.key in begun)
            search.begin(missing)
            try:
                answer, _ = self.agent.ask(
                    Tune(records, before, budget.share().seconds), TuneEnded, on_event=search.hear
                )
            except AgentLostError as error:
                missing = search.rest(error)
                continue
            try:
                search.end(answer)
            except FrameError as error:
                raise self.agent.refuse(str(error)) from error
            missing = []
        results, failures = tuple(search.results), tuple(search.failures)
        left = len(tasks) - len(known) - len(results) - len(failures)
        return TuneRun(results, known, failures, left, budget.spent_s)

    def bench(
        self, op: Op, tuning: Tuning, *, every: bool = False
    ) -> tuple[list[BenchRow], list[Refused]]:
        models = models_of_ops([op])
        request = BenchOp(to_text(op), tuple(models), tuning.choices, every)
        answer, _ = self.agent.ask(request, Benched, tuple(models.values()))
        return list(answer.rows), list(answer.refused)

    def power(self, seconds: float) -> PowerW:
        limit_s = MeasurePower.limit_s + 4 * seconds
        answer, _ = self.agent.ask(MeasurePower(seconds), PowerMeasured, limit_s=limit_s)
        return answer.power

    def draw_frames(self, seconds: float) -> Drawn:
        request = DrawFrames(seconds)
        answer, _ = self.agent.ask(request, FramesDrawn, limit_s=request.limit_s + 2 * seconds)
        if not is_sound(answer.drawn):
            raise self.agent.refuse("It sent frames that are none, or drawn before others ended.")
        return answer.drawn

    def examine(self) -> Examination:
        answer, _ = self.agent.ask(Examine(), Examined)
        return answer.examination

    def import_package(self, name: str) -> float:
        answer, _ = self.agent.ask(Import(name), Imported)
        return answer.seconds

    def pace(self, seconds: float) -> tuple[float, ...]:
        limit_s = MeasurePace.limit_s + 4 * seconds
        answer, _ = self.agent.ask(MeasurePace(seconds), Paced, limit_s=limit_s)
        return answer.samples_s

    def check_kernels(
        self,
        tasks: Sequence[CheckTask],
        *,
        budget_s: float | None = None,
        progress: Progress = lambda done, total, left: None,
    ) -> CheckRun:
        return RemoteChecks(self.agent, progress, Budget(budget_s)).run(tasks)

    def open(self, offer: Offer | None = None) -> Mapping[str, str]:
        binaries = offer.binaries if offer else ()
        listed = tuple(OfferedBinary(own.name, own.source, own.options) for own in binaries)
        request = OpenDevice(dict(offer.identity) if offer else {}, listed)
        answer, _ = self.agent.ask(request, Identified, [own.blob for own in binaries])
        return answer.identity

    def load(self, executable: Executable, *, tries: bool = True) -> RemoteModel:
        return RemoteModel(self.agent, executable, tries=tries)

    def load_on_cpu(self, executable: Executable) -> RemoteModel:
        """Load an executable that needs no GPU; over there none is opened."""
        return RemoteModel(self.agent, executable, on_cpu=True)

    def binaries(self, model: RemoteModel) -> tuple[Binary, ...]:
        answer, blobs = self.agent.ask(ReadBinaries(model.handle()), BinariesRead)
        try:
            pairs = one_each(answer.binaries, blobs, "programs")
        except CodlError as error:
            raise self.agent.refuse(str(error)) from error
        return tuple(Binary(own.name, own.source, own.options, blob) for own, blob in pairs)

    def start_peer(
        self, name: str, model: bytes, inputs: Arrays, plan: Plan | None = None
    ) -> RemotePeer:
        records, blobs = to_wire(inputs)
        request = StartPeer(name, None if plan is None else plan.to_json(), records)
        answer, _ = self.agent.ask(request, PeerStarted, [model, *blobs])
        return RemotePeer(self.agent, name, answer, len(self.soc.placement.cores))

    def time(
        self,
        models: Mapping[str, RemoteModel | RemotePeer],
        effort: Effort,
        *,
        with_energy: bool = False,
        anchors: Tuning | None = None,
    ) -> TimedTogether:
        """Time over there; an agent that is lost meanwhile raises."""
        with self.agent.lock:
            for model in models.values():
                model.handle()  # a model that is loaded anew may have another than those before
            request = Time(
                handles={name: model.handle() for name, model in models.items()},
                effort=effort,
                with_energy=with_energy,
                with_anchors=anchors is not None,
                tuning=(anchors or Tuning()).choices,
            )
            answer, _ = self.agent.ask(request, TimesTogether, on_event=lambda event: None)
        times = answer.times
        if {*times.latency_ms, *times.failed} != {*models}:
            timed = ", ".join(sorted({*times.latency_ms, *times.failed})) or "nothing"
            raise self.agent.refuse(f"It timed {timed}, where {', '.join(models)} was asked.")
        return times

    def fresh(self) -> RemoteTarget:
        return self._start()

    def cold_start(self) -> ColdStart:
        answer, _ = self.agent.ask(ReadSpent(), Spent)
        start_s, import_s = self.agent.start_seconds()

        def ms(*requests: type[Request]) -> float:
            return 1e3 * sum(answer.seconds.get(own.__name__, 0.0) for own in requests)

        import_ms, load_ms = 1e3 * import_s + ms(Open), ms(OpenDevice, Lacks, Load)
        whole_ms = 1e3 * start_s + ms(Open, OpenDevice, Lacks, Load, Run)
        return ColdStart(whole_ms, import_ms, load_ms, ms(Run))

    def close(self) -> None:
        self.agent.close()


@dataclass
class _RemoteSearch:
    """What came of tuning so far, over all agents that were needed for it."""

    keep: Callable[[Tuned], object]
    progress: Progress
    results: list[Tuned] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    tasks: Sequence[TuneTask] = ()
    current: int | None = None

    def begin(self, tasks: Sequence[TuneTask]) -> None:
        self.tasks, self.current = tasks, None

    def hear(self, event: Reply) -> None:
        if isinstance(event, Found):
            key = event.result.key
            if key in self._done or key not in {task.key for task in self.tasks}:
                raise FrameError(f"It sent a result of {key}, which was not asked, or twice.")
            self.results.append(event.result)
            self.keep(event.result)
        elif isinstance(event, Searching):
            task_at(self.tasks, event.index)
            self.current = event.index
        elif isinstance(event, Advanced):
            self.progress(event.done, event.total, event.seconds_left)

    def end(self, answer: TuneEnded) -> None:
        """Take what failed; raises `FrameError` for what was not asked."""
        for own in answer.failures:
            self.failures.append(Failure(task_at(self.tasks, own.index), own.reason, own.trials))

    @property
    def _done(self) -> set[tuple[str, str]]:
        return {own.key for own in self.results} | {own.task.key for own in self.failures}

    def rest(self, error: AgentLostError) -> list[TuneTask]:
        """The tasks behind the one that took the agent down; raises where none did."""
        if self.current is None or error.is_cut:
            raise error
        self.failures.append(Failure(self.tasks[self.current], str(error), ()))
        return [task for task in self.tasks if task.key not in self._done]


def _request(batch: MeasureBatch, models: dict[str, bytes]) -> Measure:
    return Measure(
        tasks=tuple(map(to_record, batch.tasks)),
        models=tuple(models),
        run=batch.run,
        rounds=batch.rounds,
        tuning=batch.tuning.choices,
        left_s=None if batch.left_s == float("inf") else batch.left_s,
        reference_ms=tuple(AnchorLevel(*key, ms) for key, ms in batch.reference_ms.items()),
        tolerance=dict(batch.tolerance),
    )
