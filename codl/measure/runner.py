"""Turns a task into a row: builds what it measures, and makes a row of the samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from codl.errors import DeviceError
from codl.ir import Op, Shape, to_text
from codl.ir.ops.pooling import Pool2d
from codl.ir.ops.window import Size2
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower import pieces
from codl.measure.dataset import OpRow, Row, RowT, SharingRow, StageRow
from codl.measure.op_runner import GpuWork, cpu_work, filler
from codl.measure.signals import SignalTimer
from codl.measure.stages import VISITS, StageTimer
from codl.measure.surroundings import Surroundings
from codl.measure.tasks import (
    BatchTask,
    DispatchTask,
    OpTask,
    SharingTask,
    SignalTask,
    StageTask,
    SurroundingsTask,
    Task,
)
from codl.measure.timing import WHOLE, Rounds, Samples, Seconds, Timed
from codl.records.results import Latency
from codl.records.statistic import level
from codl.runtime.actions import Action
from codl.runtime.host_handles import HostSession
from codl.runtime.loaded import Timeline
from codl.runtime.opencl import OpenClDevice
from codl.runtime.session import Session

if TYPE_CHECKING:  # a device may have the GPU's package alone
    from codl.runtime.ncnn_net import NcnnSession

#: All samples of something in seconds, by part.
#: Waiting for a queue that is idle.
SYNC = "sync"
#: How the reason of a row ends that another run leaves alone.
DEADLY = "No other run tries it again."
#: What comes before an exchange inside a network: other tensors go through the caches, and then a
#: processor writes what is shared.
AWAY, FRESH = "away", "fresh"


@dataclass(frozen=True)
class Prepared:
    """A task that is built and warm: `timed` takes samples, `fill` makes a row of them."""

    task: Task
    blank: Row
    timed: Timed
    fill: Callable[[Samples], Row]

    def row(self, drift: float = 1.0) -> Row:
        """The row of the samples so far, from a machine that was so many times slower.

        What they do not allow becomes a failed one.
        """
        found = self.timed.found.items()
        try:
            return self.fill({part: [each / drift for each in own] for part, own in found})
        except DeviceError as error:
            return _failed(self.blank, error)


class Bench:
    """Builds tasks on an OpenCL device and its CPU."""

    def __init__(
        self,
        gpu: OpenClDevice,
        run: str,
        rounds: Rounds | None = None,
        tuning: Tuning = Tuning(),
    ) -> None:
        self.soc, self.tuning = gpu.soc, tuning
        self.rounds = rounds or Rounds()
        self._run = run
        self._gpu = gpu
        self._surroundings = Surroundings(gpu, tuning)

    def prepare(self, task: Task) -> Prepared | Row:
        """Build a task and run it; whatever goes wrong becomes a failed row with its reason."""
        blank, rounds = blank_row(task, self._run), self.rounds
        try:
            if isinstance(task, SharingTask) and isinstance(blank, SharingRow):
                sample, fill = self._exchange(task, blank)
            elif isinstance(task, BatchTask):
                return replace(self._surroundings.batch(task), run=self._run)
            elif isinstance(task, StageTask) and isinstance(blank, StageRow):
                timer, rounds = self._stage(task), replace(rounds, least=VISITS)
                sample, fill = timer.sample, partial(timer.row, blank)
            elif isinstance(task, SignalTask):
                sample, fill = SignalTimer(self._gpu).sample(task), _positive(blank)
            elif isinstance(task, DispatchTask):
                sample, fill = _timed(self._surroundings.dispatch(task)), _whole(blank)
            else:
                assert isinstance(task, OpTask)
                sample, fill = _timed(self.work(task)), _whole(blank)
            return Prepared(task, blank, Timed(sample, rounds), fill)
        except Exception as error:  # a failed configuration is a result, not the end
            return _failed(blank, error)

    def compile(self, task: Task) -> None:
        """Build and run what a task has on the GPU, so that its kernels lie in the caches.

        What goes wrong here goes wrong in `prepare` too, which reports it.
        """
        blank = blank_row(task, "")
        with suppress(Exception):
            if isinstance(task, SharingTask) and isinstance(blank, SharingRow):
                sample, _ = self._exchange(task, blank)
                sample(1)
            elif isinstance(task, BatchTask):
                self._surroundings.compile(task)
            elif isinstance(task, StageTask):
                self._stage(task)
            elif isinstance(task, OpTask) and task.processor == "gpu":
                self.work(task)

    def work(self, task: OpTask) -> Callable[[int], None]:
        """The op as it runs inside a chain.

        A net of its own whose tensors stay packed (see `load` and `store`), or its kernels in their
        tuned choice, enqueued back to back.
        """
        variant: Any = registry.find(task.part, task.variant)
        if task.processor == "cpu":
            return cpu_work(task.part, variant, self.soc)
        plan = self.tuning.plan(variant, task.part, self.soc)
        return GpuWork(self._gpu, task.part, plan, filler(task.part))

    def _stage(self, task: StageTask) -> StageTimer:
        return StageTimer(task, self._gpu, self.tuning, self._surroundings.evict)

    def _exchange(self, task: SharingTask, blank: SharingRow) -> _Exchange:
        if task.direction == "load":
            return self._load(task.shape, blank)
        if task.direction == "store":
            return self._store(task.shape, blank)
        if task.direction == "relayout":
            return self._relayout(task, blank)
        return self._transfer(task, blank)

    def _relayout(self, task: SharingTask, blank: SharingRow) -> _Exchange:
        """The kernels that copy, enqueued back to back, as in a chain."""
        usual = registry.storages(self.soc)[0]
        copy = pieces.relayout(task.shape, usual, task.storage, self.soc)
        kernels = Session(copy, self._gpu).kernels(pieces.WORK)

        def fill(samples: Samples) -> Row:
            row = _filled(blank, samples[WHOLE])
            return replace(row, transform_ms=row.latency_ms)

        return _timed(lambda repeats: self._gpu.run(kernels * repeats)), fill

    def _transfer(self, task: SharingTask, blank: SharingRow) -> _Exchange:
        """As the co-executor does it, of what the other processor has just written."""
        session = Session(
            pieces.exchange(task.direction, task.shape, task.storage, self.soc), self._gpu
        )
        if task.direction == "to_gpu":
            array, fresh = session.inputs[pieces.OUTPUT], np.zeros(task.shape, np.float32)
            before = self._inside(lambda: np.copyto(array, fresh))
        else:
            before = self._inside(lambda: self._gpu.run(session.kernels(pieces.FEED)))
        parts = [(self._part(action), action) for action in session.stage(pieces.WORK)]
        steps = [(part, self._step(part, action)) for part, action in parts if part]
        return self._in_steps(steps, before), _shared(blank)

    @staticmethod
    def _part(action: Action) -> str:
        """The part of an exchange that an action is; "" of one that takes no time of its own."""
        if action.kind in ("kernel", "transform"):
            return "transform"
        return "" if action.kind == "sync" else action.kind

    def _step(self, part: str, action: Action) -> Step:
        """One part of an exchange, to its end; kernels by the device's clock."""

        def timed_by_device() -> Told:
            timeline = Timeline()
            action.profile(timeline)
            self._gpu.queue.finish()
            return lambda: self._told(timeline)

        def to_its_end() -> None:
            action.run()
            if part != "copy":
                self._gpu.queue.finish()

        return timed_by_device if part == "transform" else to_its_end

    def _told(self, timeline: Timeline) -> float:
        self._gpu.finish()
        return timeline.gpu_s()

    def _load(self, shape: Shape, blank: SharingRow) -> _Exchange:
        """Packing what a net reads; with the call, which is what counts where nothing is packed.

        Where both processors work on the CPU's arrays, the GPU has just written this one.
        """
        if not self.soc.gpu.sees_host_memory:
            return _as_copy(self._passing_on(shape).packed, {}, blank)
        op, variant = self._passing(shape)
        executable = pieces.net_alone([op], variant, [{}], self.soc, is_shared=True)
        session = Session(executable, self._gpu, own_memory=True)
        net = cast("NcnnSession", session.nets[0])
        fresh = session.stage(pieces.FEED)

        def write() -> None:
            for action in fresh:
                action.run()

        return _as_copy(net.packed, {FRESH: write}, blank)

    def _store(self, shape: Shape, blank: SharingRow) -> _Exchange:
        """Unpacking a net's result to its home; most of it is of no interest to the GPU."""
        net = self._passing_on(shape)
        net.pack_inputs()
        results = net.compute()
        return _as_copy(lambda: net.unpack(results), {}, blank)

    def _inside(self, fresh: Step) -> dict[str, Step]:
        """What makes the caches as they are inside a network; `fresh` writes what is shared."""
        return {AWAY: self._surroundings.evict, FRESH: fresh}

    def _in_steps(self, steps: Sequence[Named], before: Mapping[str, Step]) -> _Sample:
        """Seconds of the steps of an exchange, and of waiting for a queue that is idle."""

        def sample(repeats: int) -> Seconds:
            with self._gpu.profiling():
                return _seconds(repeats, [*steps, (SYNC, self._gpu.queue.finish)], before)

        return sample

    def _passing(self, shape: Shape) -> tuple[Op, Any]:
        """A pooling of one element, which passes its input on, and its variant."""
        op = Pool2d(inputs=(shape,), kernel=Size2(1, 1))
        return op, registry.variants(op, "cpu", self.soc)[0]

    def _passing_on(self, shape: Shape) -> NcnnSession:
        op, variant = self._passing(shape)
        executable = pieces.net_alone([op], variant, [{}], self.soc)
        (net,) = HostSession(executable, self.soc, own_memory=True).nets
        return cast("NcnnSession", net)


#: Seconds, of somebody who knows better than a clock around a step; what follows is done by then,
#: since to ask may hold it up.
Told = Callable[[], float]
#: Does something; gives such a one where there is one.
Step = Callable[[], object]
Named = tuple[str, Step]
_Sample = Callable[[int], Seconds]
_Exchange = tuple[_Sample, Callable[[Samples], Row]]


def _timed(work: Callable[[int], None]) -> _Sample:
    """Seconds of one of the repeats of some work."""

    def sample(repeats: int) -> Seconds:
        start = perf_counter()
        work(repeats)
        return {WHOLE: (perf_counter() - start) / repeats}

    return sample


def _seconds(repeats: int, steps: Sequence[Named], before: Mapping[str, Step]) -> Seconds:
    """Seconds of steps by name, and of all of them, each time after others."""
    seconds = dict.fromkeys((name for name, _ in steps), 0.0)
    for _ in range(repeats):
        for step in before.values():
            step()
        told: list[tuple[str, Told]] = []
        for name, step in steps:
            start = perf_counter()
            known = step()
            if callable(known):
                told.append((name, known))
            else:
                seconds[name] += (perf_counter() - start) / repeats
        for name, asked in told:
            seconds[name] += asked() / repeats
    return {WHOLE: sum(seconds.values()), **seconds}


def _whole(blank: Row) -> Callable[[Samples], Row]:
    """A row of something that has no parts."""
    return lambda samples: _filled(blank, samples[WHOLE])


def _positive(blank: Row) -> Callable[[Samples], Row]:
    """A row of a wait, of which no less than nothing is left.

    Raises `DeviceError` where the device's clock explains more than all of it.
    """

    def fill(samples: Samples) -> Row:
        row = _filled(blank, samples[WHOLE])
        if row.latency_ms <= 0:
            raise DeviceError(
                f"By the device's clock it was over {-1e3 * row.latency_ms:.3f} us too early."
            )
        return row

    return fill


def _shared(blank: SharingRow) -> Callable[[Samples], Row]:
    """A row of a whole exchange and its parts."""

    def fill(samples: Samples) -> Row:
        levels = {part: 1e3 * level(own) for part, own in samples.items()}
        parts: Any = {f"{part}_ms": ms for part, ms in levels.items() if part != WHOLE}
        return replace(_filled(blank, samples[WHOLE]), **parts)

    return fill


def _as_copy(step: Step, before: Mapping[str, Step], blank: SharingRow) -> _Exchange:
    """One step that only copies, after others that are not timed."""

    def fill(samples: Samples) -> Row:
        row = _filled(blank, samples[WHOLE])
        return replace(row, copy_ms=row.latency_ms)

    return lambda repeats: _seconds(repeats, [("copy", step)], before), fill


def blank_row(task: Task, run: str) -> Row:
    """The task's row, without numbers."""
    if isinstance(task, SurroundingsTask):
        return replace(task.blank, run=run)
    if isinstance(task, SharingTask):
        return SharingRow(
            direction=task.direction, shape=str(task.shape), layout=str(task.storage), run=run
        )
    op, part = to_text(task.op), to_text(task.part)
    return OpRow(op=op, dim=task.dim, share=task.share, part=part, run=run)


def failed_row(task: Task, run: str, reason: str) -> Row:
    """The row of a task that failed, or must not be tried."""
    return _failed(blank_row(task, run), DeviceError(reason))


def deadly_row(task: Task, run: str, reason: str) -> Row:
    """The row of a task that takes processes down, which other runs leave alone."""
    row = failed_row(task, run, reason)
    return replace(row, reason=f"{row.reason.rstrip('.')}. {DEADLY}")


def _failed(row: Row, error: Exception) -> Row:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return replace(row, status="failed", reason=reason)


def _filled(row: RowT, samples_s: Sequence[float]) -> RowT:
    found = Latency.of(samples_s)
    return replace(row, latency_ms=found.level, p20_ms=found.p20, p80_ms=found.p80, runs=found.runs)
