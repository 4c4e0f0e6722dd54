"""The timeline that a plan is predicted to have, as spans like those of a profiled inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from codl.ir.executable import Executable, Relayout, Transfer
from codl.ir.types import Direction, Processor
from codl.plan.price import StageTimes
from codl.records.results import SpanKind, TimeSpan
from codl.records.span_names import transform_label

#: The parts of a transfer that its processor does, in the order in which it does them.
OF_GPU: tuple[SpanKind, ...] = ("transform", "map")
OF_CPU: tuple[SpanKind, ...] = ("copy", "unmap")


@dataclass(frozen=True)
class PlacedSpan:
    """A span with what it is of: a stage, and a net or a step, by their numbers in the executable.

    A layer is of a net, and of no step.
    """

    span: TimeSpan
    stage: int
    net: int | None = None
    step: int | None = None


def predicted_spans(executable: Executable, times: Sequence[StageTimes]) -> tuple[TimeSpan, ...]:
    """What each processor is predicted to do when, in milliseconds since the start.

    The order is that of `codl.plan.price.after_stage`. Every stage ends where `walk` ends it.
    """
    return tuple(placed.span for placed in predicted_timeline(executable, times))


def predicted_timeline(
    executable: Executable, times: Sequence[StageTimes]
) -> tuple[PlacedSpan, ...]:
    """The same with what each span is of."""
    course = _Course(executable)
    for number, stage in enumerate(times):
        course.add(number, stage)
    return tuple(placed for placed in course.spans if placed.span.end_ms > placed.span.start_ms)


class _Course:
    """An inference so far: spans, and when each processor is done with what it was given."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self.spans: list[PlacedSpan] = []
        self._stage = 0
        self._clocks: dict[Processor, float] = {"cpu": 0.0, "gpu": 0.0}
        self._first_launch_ms = 0.0

    def add(self, number: int, stage: StageTimes) -> None:
        self._stage, self._first_launch_ms = number, stage.first_launch_ms
        transfers = stage.transfers_ms.items()
        arrivals = [self._sent(*each) for each in transfers if self._way(each[0]) == "to_cpu"]
        for step, parts in transfers:
            if self._way(step) == "to_gpu":
                self._share("cpu", step, parts, OF_CPU)
                self._enqueued()
                self._share("gpu", step, parts, OF_GPU)
        if any(stage.kernels_ms.values()):
            self._enqueued()
        for step, ms in stage.kernels_ms.items():
            self._step("gpu", "kernel", step, ms)
        self._clocks["cpu"] += stage.launches_ms
        for step, parts, arrival in arrivals:
            self._step("cpu", "sync", step, arrival - self._clocks["cpu"])
            self._share("cpu", step, parts, OF_CPU)
        for net, ms in stage.nets_ms.items():
            span = self._work("cpu", "net", self._executable.nets[net].label, ms)
            self.spans.append(PlacedSpan(span, self._stage, net=net))

    def _way(self, step: int) -> Direction:
        transfer = self._executable.steps[step]
        assert isinstance(transfer, Transfer)
        return transfer.direction

    def _sent(
        self, step: int, parts: Mapping[str, float]
    ) -> tuple[int, Mapping[str, float], float]:
        """What the GPU sends behind its last shard; and when the CPU can have it."""
        self._share("gpu", step, parts, OF_GPU[:1])
        return step, parts, self._clocks["gpu"] + parts.get("sync", 0.0) + parts.get("map", 0.0)

    def _enqueued(self) -> None:
        """The GPU goes on no sooner than what it is given has reached it."""
        cpu, gpu = self._clocks["cpu"], self._clocks["gpu"]
        self._clocks["gpu"] = max(gpu, cpu + self._first_launch_ms)

    def _share(
        self, side: Processor, step: int, parts: Mapping[str, float], kinds: Sequence[SpanKind]
    ) -> None:
        for kind in kinds:
            self._step(side, kind, step, parts.get(kind, 0.0))

    def _step(self, side: Processor, kind: SpanKind, number: int, ms: float) -> None:
        step = self._executable.steps[number]
        label = step.label
        if isinstance(step, Relayout) or (isinstance(step, Transfer) and kind == "transform"):
            label = transform_label(self._executable, step)
        span = self._work(side, kind, label, ms)
        self.spans.append(PlacedSpan(span, self._stage, step=number))

    def _work(self, side: Processor, kind: SpanKind, label: str, ms: float) -> TimeSpan:
        start = self._clocks[side]
        self._clocks[side] = start + max(ms, 0.0)
        return TimeSpan(side, kind, label, start, self._clocks[side])
