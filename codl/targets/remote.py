"""A target behind an agent: every call is a request, and one that was lost is started again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from codl.errors import CodlError
from codl.ir.soc import Soc
from codl.measure.batch import BatchResult, MeasureBatch, Measurement
from codl.measure.dataset import Row
from codl.measure.runner import blank_row
from codl.measure.task_records import choices_of, models_of, to_record
from codl.measure.tasks import Task
from codl.runtime.probe import ProbeResult
from codl.targets.client import AgentClient, AgentLostError
from codl.targets.info import TargetInfo
from codl.targets.messages import (
    Building,
    Clocks,
    CoresSeen,
    Describe,
    Described,
    Measure,
    Measured,
    MeasuredRow,
    ObserveCores,
    Open,
    Probe,
    Probed,
    ReadClocks,
    Reply,
    Timing,
    UsualLevel,
)


class RemoteTarget:
    """What an agent behind `command` measures and runs; `command` speaks frames over its pipes.

    It is the same for a child of this process and for a device over ssh or adb.
    """

    def __init__(self, serial: str, command: Sequence[str], soc: Soc | None = None) -> None:
        self.serial, self._soc = serial, soc
        prelude = () if soc is None else (Open(soc),)
        self.agent = AgentClient(command, name=f"the agent of {serial!r}", prelude=prelude)

    @property
    def soc(self) -> Soc:
        if self._soc is None:
            raise CodlError(
                f"The target {self.serial!r} was opened without a SoC; name one by --soc."
            )
        return self._soc

    def describe(self) -> TargetInfo:
        answer, _ = self.agent.ask(Describe(), Described)
        return answer.info

    def probe(self) -> list[ProbeResult]:
        answer, _ = self.agent.ask(Probe(), Probed)
        return list(answer.drivers)

    def observe_cores(self) -> dict[str, list[int]]:
        answer, _ = self.agent.ask(ObserveCores(), CoresSeen)
        return {"cpu": list(answer.cpu), "gpu": list(answer.gpu)}

    def clocks_mhz(self) -> dict[str, float]:
        answer, _ = self.agent.ask(ReadClocks(), Clocks)
        return answer.mhz

    def measure(self, batch: MeasureBatch) -> BatchResult:
        """Measure over there; an agent that is lost meanwhile is told with what it was doing."""
        models, progress = models_of(batch.tasks), _Progress()
        try:
            answer, _ = self.agent.ask(
                _request(batch, models),
                Measured,
                tuple(models.values()),
                on_event=progress.hear,
                limit_s=Measure.limit_s + 4 * batch.rounds.span_s,
            )
        except AgentLostError as error:
            suspects = tuple(batch.tasks[index] for index in progress.suspects)
            return BatchResult((), (), lost=str(error), suspects=suspects)
        rows = tuple(_measurement(batch.tasks, one) for one in answer.rows)
        return BatchResult(rows, answer.anchors)

    def close(self) -> None:
        self.agent.close()


@dataclass
class _Progress:
    """What an agent was doing when it was last heard of, by the indices of tasks."""

    built: list[int] = field(default_factory=list)
    is_timing: bool = False

    def hear(self, event: Reply) -> None:
        if isinstance(event, Building):
            self.built.append(event.index)
        elif isinstance(event, Timing):
            self.is_timing = True

    @property
    def suspects(self) -> list[int]:
        """The task that was being built, or all that took turns."""
        return self.built if self.is_timing else self.built[-1:]


def _request(batch: MeasureBatch, models: dict[str, bytes]) -> Measure:
    return Measure(
        tasks=tuple(map(to_record, batch.tasks)),
        models=tuple(models),
        run=batch.run,
        rounds=batch.rounds,
        tuning=choices_of(batch.tuning),
        left_s=None if batch.left_s == float("inf") else batch.left_s,
        usual_ms=tuple(UsualLevel(*key, ms) for key, ms in batch.usual_ms.items()),
        tolerance=dict(batch.tolerance),
    )


def _measurement(tasks: Sequence[Task], one: MeasuredRow) -> Measurement:
    """The row that came back, of the type that its task has."""
    task = tasks[one.index]
    row: Row = msgspec.convert(one.row, type(blank_row(task, "")))
    return Measurement(task, row, one.is_disturbed)
