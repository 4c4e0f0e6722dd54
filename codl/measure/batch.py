"""A batch of tasks, measured on the target in one call; the collector judges the result.

Kernels are compiled ahead, and tasks are built until there are enough for a batch's time. Then all
take turns with the anchors, which show whether the machine was as fast as usual.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from statistics import mean
from typing import Literal, Protocol, TypeAlias

from codl.errors import CodlError, InterruptedCommandError
from codl.ir.types import PROCESSORS, Processor
from codl.kernels.tuning import Tuning
from codl.measure import drift, timing
from codl.measure.dataset import AnchorRow, Row
from codl.measure.runner import Bench, Prepared
from codl.measure.tasks import BatchTask, OpTask, SharingTask, StageTask, Task, crash_row
from codl.measure.timing import WHOLE, AnchorTime, Effort, Rounds, Timed, TimedRun, TimedTogether
from codl.records.results import Conditions, Latency
from codl.records.statistic import level
from codl.runtime.examination import memory_of
from codl.runtime.sensors import Sensor, energy_mj

#: What a batch may take of the memory, and how often a task's tensors and weights lie there.
MEMORY_SHARE, MEMORY_BYTES, COPIES = 0.25, 6 << 30, 3
#: Tasks that take more than one such share of that, and all of them together at most the other:
#: enough small ones must fit beside them to fill a batch's time.
LARGE, ALL_LARGE = 0.02, 0.5


@dataclass(frozen=True)
class MeasureBatch:
    """Tasks of which a target measures as many of the first as `left_s` and `rounds` allow.

    `reference_ms` is what every anchor, by op and processor, took in the run's first batch, and
    `tolerance` how far the anchors of a processor may scatter; in that batch the former is empty.
    """

    tasks: tuple[Task, ...]
    run: str
    rounds: Rounds
    tuning: Tuning
    left_s: float
    reference_ms: Mapping[tuple[str, str], float]
    tolerance: Mapping[str, float]


@dataclass(frozen=True)
class Measurement:
    """The row of a task; `is_disturbed` where something but drift went on meanwhile.

    Then its latency is as it was measured; else the drift of the machine is divided out.
    """

    task: Task
    row: Row
    is_disturbed: bool = False


@dataclass(frozen=True)
class BatchResult:
    """Rows and the levels of the anchors; `conditions` are the last, those of the whole in rows.

    `lost`, a sentence, says how the process that measured ended before it was done, else "". Then
    there are the rows that had arrived, and `suspects` are the tasks that it may have ended of: the
    one that was being built, or all that took turns. One that hung was ended from this side.
    `skipped_s` are seconds that measuring took once, and a replay did not wait for.
    """

    measurements: tuple[Measurement, ...]
    anchors: tuple[AnchorRow, ...]
    lost: str = ""
    suspects: tuple[Task, ...] = ()
    has_hung: bool = False
    conditions: Conditions = field(default_factory=Conditions)
    skipped_s: float = 0.0


class PrecompilePool(Protocol):
    """Compiles the kernels of the next tasks; `crashing_tasks` gives the reason of each crash."""

    @property
    def crashing_tasks(self) -> Mapping[Task, str]: ...

    @property
    def is_used(self) -> bool: ...

    def compile(self, tasks: Sequence[Task], tuning: Tuning, seconds: float) -> None: ...


#: Gets the progress of a batch: a task begins, by its index, tasks are timed together, or a task is
#: done, with its measurement.
Emit: TypeAlias = Callable[[Literal["begin", "timing", "done"], int, "Measurement | None"], object]


class BatchRunner:
    """Measures the batches of one run; anchors are built once, `read` reads the conditions."""

    def __init__(self, bench: Bench, ahead: PrecompilePool, read: Callable[[], Conditions]) -> None:
        self._bench, self._ahead, self._read = bench, ahead, read

    @cached_property
    def _anchors(self) -> list[Prepared]:
        return drift.prepare(self._bench)

    def measure(self, batch: MeasureBatch, emit: Emit) -> tuple[tuple[AnchorRow, ...], Conditions]:
        """Build the first tasks and let them take turns, in a batch's time or what is left.

        `emit` gets each measurement. Returns the rows of the anchors and the last conditions.
        """
        # As much time each to compile, to build and to measure them.
        seconds = min(batch.left_s / (3 if self._ahead.is_used else 2), batch.rounds.span_s)
        first = (*drift.tasks_of(self._bench.soc), *batch.tasks)
        self._ahead.compile(first, batch.tuning, seconds)
        readings = [self._read()]
        prepared = self._prepare(batch, seconds, emit)

        def look() -> None:
            readings.append(self._read())

        look()
        for anchor in self._anchors:
            anchor.timed.taken_s.clear()
        emit("timing", 0, None)
        timed: list[Timed] = [item.timed for item in (*self._anchors, *prepared.values())]
        rounds = replace(batch.rounds, span_s=seconds)
        timing.measure(
            timed, rounds, lambda: self._is_disturbed(batch, [*prepared.values()]), after_round=look
        )
        meanwhile = Conditions.over(readings)
        for index, item in prepared.items():
            is_disturbed = self._is_disturbed(batch, [item])
            row = item.row(1.0 if is_disturbed else self._drift(batch, item.task))
            emit("done", index, Measurement(item.task, row.under(meanwhile), is_disturbed))
        anchors = tuple(drift.row_of(anchor).under(meanwhile) for anchor in self._anchors)
        return anchors, readings[-1]

    def _is_disturbed(self, batch: MeasureBatch, prepared: Sequence[Prepared]) -> bool:
        """Whether the anchors of a processor that these tasks use scatter too far."""
        used = {processor for item in prepared for processor in processors_of(item.task)}
        drifts = {p: drift.drift_of(self._anchors, p, batch.reference_ms) for p in used}
        return any(drifts[p].scatter > batch.tolerance.get(p, float("inf")) for p in used)

    def _drift(self, batch: MeasureBatch, task: Task) -> float:
        """How many times slower a task's processors were; the mean of both if it uses both."""
        sides = processors_of(task)
        return mean(drift.drift_of(self._anchors, p, batch.reference_ms).factor for p in sides)

    def _prepare(self, batch: MeasureBatch, seconds: float, emit: Emit) -> dict[int, Prepared]:
        """Build tasks until there is enough for `seconds`, or for the memory.

        Returns those that are ready by their indices. Tasks that fail are done; crashing ones fail.
        """
        prepared: dict[int, Prepared] = {}
        is_any_done = False
        planned = taken = large = 0.0
        # Devices and hosts with little memory get small batches.
        limit = min(MEMORY_SHARE * memory_of().total or MEMORY_BYTES, MEMORY_BYTES)
        begin = time.monotonic()
        for index, task in enumerate(batch.tasks):
            is_enough = planned >= seconds or time.monotonic() - begin >= seconds
            if is_enough and (prepared or is_any_done):
                break
            size = COPIES * _bytes(task)
            more = size if size > LARGE * limit else 0.0
            if prepared and (taken + size > limit or (more and large + more > ALL_LARGE * limit)):
                continue  # smaller ones may fit; it comes first in a later batch
            taken, large = taken + size, large + more
            emit("begin", index, None)
            crash = self._ahead.crashing_tasks.get(task)
            built = crash_row(task, batch.run, crash) if crash else self._bench.prepare(task)
            if isinstance(built, Prepared):
                prepared[index] = built
                planned += built.timed.seconds
            else:
                is_any_done = True
                emit("done", index, Measurement(task, built.under(self._read())))
        return prepared


def processors_of(task: Task) -> tuple[Processor, ...]:
    """The processors that a task's latency depends on."""
    return (task.processor,) if isinstance(task, OpTask | BatchTask) else PROCESSORS


def _bytes(task: Task) -> int:
    if isinstance(task, OpTask):
        return task.part.bytes
    if isinstance(task, StageTask):
        return task.bytes
    if isinstance(task, BatchTask):
        return (1 + task.images) * task.op.bytes
    return 2 * task.shape.bytes if isinstance(task, SharingTask) else 0


def time_together(
    runs: Mapping[str, TimedRun],
    effort: Effort,
    *,
    sensors: Sequence[Sensor] = (),
    anchors: Sequence[Prepared] = (),
    read: Callable[[], Conditions] | None = None,
    before_turn: Callable[[], object] = lambda: None,
    after_round: Callable[[], None] = lambda: None,
) -> TimedTogether:
    """Time several runs in turns; one that fails is left out, with its reason.

    Anchors are visited once a round, and `read` reads the machine's conditions.
    """
    failed: dict[str, CodlError] = {}
    readings = [] if read is None else [read()]

    def beside() -> None:
        if read is not None:
            readings.append(read())
        for anchor in anchors:
            anchor.timed.visit()
        after_round()

    taken_so_far: dict[str, timing.Turns] = {}
    is_cut_short = False
    try:
        turns = timing.interleave(
            runs,
            effort,
            before_turn=before_turn,
            after_round=beside,
            failed=failed,
            turns=taken_so_far,
        )
    except KeyboardInterrupt:
        turns = {name: taken for name, taken in taken_so_far.items() if taken.warm}
        if not (effort.keep_cut and turns):
            raise
        is_cut_short = True
        failed |= {name: InterruptedCommandError() for name in runs if name not in turns}
    energy: dict[str, float | None] = {}
    for name in turns if not is_cut_short else ():
        with suppress(CodlError):  # its latency is kept
            energy[name] = energy_mj(partial(runs[name], effort.turn), sensors)
    return TimedTogether(
        latency_ms={name: Latency.of(taken.warm) for name, taken in turns.items()},
        cold_ms={name: Latency.of(taken.cold) for name, taken in turns.items()},
        failed={name: str(error) for name, error in failed.items()},
        energy_mj={name: mj / effort.turn for name, mj in energy.items() if mj is not None},
        sensors=tuple(sensor.name for sensor in sensors),
        anchors=tuple(
            AnchorTime(*drift.key(anchor), 1e3 * level(anchor.timed.taken_s[WHOLE]))
            for anchor in anchors
            if anchor.timed.taken_s.get(WHOLE)
        ),
        conditions=Conditions.over(readings),
        runs_ms={name: tuple(1e3 * s for s in taken.every) for name, taken in turns.items()}
        if effort.keep_runs
        else {},
        is_cut_short=is_cut_short,
    )
