"""Timelines of inferences for traces: what each processor did when, by command; and sensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from codl.engine.engine import Engine
from codl.ir.executable import Command, Executable, Fill, Flush, Raise, RunNet
from codl.ir.plan import Plan
from codl.plan.cost_model import CostModel
from codl.plan.price import PlacedSpan, predicted_timeline, stage_times
from codl.plan.profile_feedback import spans_by_command
from codl.records.results import Conditions, TimeSpan
from codl.targets.base import Target


@dataclass(frozen=True)
class TracedInference:
    """An inference that began at `at_ms` of the trace."""

    at_ms: float
    spans: tuple[PlacedSpan, ...]


@dataclass(frozen=True)
class SensorReading:
    """What sensors showed at `at_ms` of the trace, by name with the unit."""

    at_ms: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Recording:
    """An executable that ran, or did not: inferences, what was predicted, and sensors in between.

    `predicted` is empty where no predictor is trained. `power_w` is the mean of plain runs, None
    where no sensor tells.
    """

    executable: Executable
    plan: Plan
    predicted: tuple[PlacedSpan, ...] = ()
    inferences: tuple[TracedInference, ...] = ()
    readings: tuple[SensorReading, ...] = ()
    power_w: float | None = None


def predict(executable: Executable, plan: Plan, cost: CostModel | None) -> Recording:
    """What is predicted alone; nothing runs."""
    if cost is None:
        return Recording(executable=executable, plan=plan)
    timeline = predicted_timeline(executable, stage_times(executable, cost))
    return Recording(executable=executable, plan=plan, predicted=timeline)


def record(
    engine: Engine,
    target: Target,
    cost: CostModel | None,
    *,
    runs: int,
    layers: bool = False,
    power_w: float | None = None,
) -> Recording:
    """Profile inferences of an engine that was fed, one by one, and read sensors in between.

    An inference begins when it is asked for. With `layers`, of nets, too, where a library computes
    them one by one. Raises `DeviceError` where one fails.
    """
    begin = perf_counter()
    inferences, readings = [], [_reading(target.conditions(), 0.0)]
    for _ in range(runs):
        at_ms = 1e3 * (perf_counter() - begin)
        spans = engine.profile(1, layers=layers)
        inferences.append(TracedInference(at_ms, tuple(measured(engine.executable, spans))))
        conditions = target.conditions()
        readings.append(_reading(conditions, 1e3 * (perf_counter() - begin)))
    foreseen = predict(engine.executable, engine.plan, cost)
    return Recording(
        executable=engine.executable,
        plan=engine.plan,
        predicted=foreseen.predicted,
        inferences=tuple(inferences),
        readings=tuple(reading for reading in readings if reading.values),
        power_w=power_w,
    )


def measured(executable: Executable, spans: Sequence[TimeSpan]) -> Iterator[PlacedSpan]:
    """The spans of a profile, by command."""
    nets: list[PlacedSpan] = []
    for stage, pairs in enumerate(spans_by_command(executable, spans)):
        for command, span in pairs:
            placed = _placed(command, span, stage)
            nets += [placed] if placed.net is not None else []
            yield placed
    for span in spans:
        if span.kind == "layer":
            net = next(net for net in nets if net.span.end_ms >= span.end_ms)
            yield PlacedSpan(span, net.stage)


def _placed(command: Command, span: TimeSpan, stage: int) -> PlacedSpan:
    if isinstance(command, RunNet):
        return PlacedSpan(span, stage, net=command.net)
    assert not isinstance(command, Fill | Flush | Raise)  # these have no span
    return PlacedSpan(span, stage, step=command.step)


def _reading(conditions: Conditions, at_ms: float) -> SensorReading:
    shown = {
        "temperature (C)": conditions.temperature_c,
        "CPU clock (MHz)": conditions.cpu_mhz,
        "GPU clock (MHz)": conditions.gpu_mhz,
        "battery (%)": conditions.battery_percent,
    }
    return SensorReading(at_ms, {name: value for name, value in shown.items() if value is not None})
