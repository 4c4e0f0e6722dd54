"""The timeline that a plan is predicted to have, as spans like those of a profiled inference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from codl.ir.executable import Executable, GpuOp, Transfer
from codl.ir.types import Processor
from codl.plan.price import StageTimes
from codl.records.results import SpanKind, TimeSpan
from codl.records.span_names import transform_label

#: The parts of a transfer that its processor does, in the order in which it does them.
OF_GPU: tuple[SpanKind, ...] = ("transform", "map")
OF_CPU: tuple[SpanKind, ...] = ("copy", "unmap")


def predicted_spans(executable: Executable, times: Sequence[StageTimes]) -> tuple[TimeSpan, ...]:
    """What each processor is predicted to do when, in milliseconds since the start.

    The order is that of `codl.plan.price.after_stage`. Every stage ends where `walk` ends it.
    """
    course = _Course(executable)
    for stage in times:
        course.add(stage)
    return tuple(span for span in course.spans if span.end_ms > span.start_ms)


class _Course:
    """An inference so far: spans, and when each processor is done with what it was given."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self.spans: list[TimeSpan] = []
        self._clocks: dict[Processor, float] = {"cpu": 0.0, "gpu": 0.0}
        self._first_launch_ms = 0.0

    def add(self, stage: StageTimes) -> None:
        self._first_launch_ms = stage.first_launch_ms
        transfers = list(self._transfers(stage))
        arrivals = [self._sent(*each) for each in transfers if each[0].direction == "to_cpu"]
        self._clocks["cpu"] += stage.launches_ms[0]
        for step, parts in transfers:
            if step.direction == "to_gpu":
                self._share("cpu", step, parts, OF_CPU)
                self._enqueued()
                self._share("gpu", step, parts, OF_GPU)
        self._kernels(stage.kernels_ms)
        self._clocks["cpu"] += stage.launches_ms[1]
        for step, parts, arrival in arrivals:
            self._work("cpu", "sync", step.label, arrival - self._clocks["cpu"])
            self._share("cpu", step, parts, OF_CPU)
        for number, ms in stage.nets_ms.items():
            self._work("cpu", "net", self._executable.nets[number].label, ms)

    def _transfers(self, stage: StageTimes) -> Iterator[tuple[Transfer, Mapping[str, float]]]:
        for number, parts in stage.transfers_ms.items():
            step = self._executable.steps[number]
            assert isinstance(step, Transfer)
            yield step, parts

    def _sent(
        self, step: Transfer, parts: Mapping[str, float]
    ) -> tuple[Transfer, Mapping[str, float], float]:
        """What the GPU has, on its way; and when the CPU can have it."""
        self._enqueued()
        self._share("gpu", step, parts, OF_GPU[:1])
        return step, parts, self._clocks["gpu"] + parts.get("sync", 0.0) + parts.get("map", 0.0)

    def _kernels(self, kernels_ms: Mapping[int, float]) -> None:
        if any(kernels_ms.values()):
            self._enqueued()
        for number, ms in kernels_ms.items():
            step = self._executable.steps[number]
            if isinstance(step, GpuOp):
                self._work("gpu", "kernel", step.label, ms)
            else:
                self._work("gpu", "kernel", transform_label(self._executable, step), ms)

    def _enqueued(self) -> None:
        """The GPU goes on no sooner than what it is given has reached it."""
        cpu, gpu = self._clocks["cpu"], self._clocks["gpu"]
        self._clocks["gpu"] = max(gpu, cpu + self._first_launch_ms)

    def _share(
        self,
        side: Processor,
        step: Transfer,
        parts: Mapping[str, float],
        kinds: Sequence[SpanKind],
    ) -> None:
        for kind in kinds:
            self._work(side, kind, step.label, parts.get(kind, 0.0))

    def _work(self, side: Processor, kind: SpanKind, label: str, ms: float) -> None:
        start = self._clocks[side]
        self._clocks[side] = start + max(ms, 0.0)
        self.spans.append(TimeSpan(side, kind, label, start, self._clocks[side]))
