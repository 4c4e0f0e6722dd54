"""A recording of single inferences: predicted and measured timelines, and sensor readings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from codl.engine.engine import Engine
from codl.ir.executable import Executable, Fill, Flush, RunNet
from codl.ir.plan import Plan
from codl.ir.records.results import Conditions, TimeSpan
from codl.plan.cost_model import CostModel
from codl.plan.price import PlacedSpan, predicted_timeline, spans_by_command, stage_times
from codl.targets.base import Target


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Inferences of an executable, its predicted timeline, and sensor readings by name with unit.

    Inferences and readings have the milliseconds since the trace began. `predicted` is empty
    without a trained predictor. `power_w` is the mean of plain runs, None without a sensor.
    """

    executable: Executable
    plan: Plan
    predicted: tuple[PlacedSpan, ...] = ()
    inferences: tuple[tuple[float, tuple[PlacedSpan, ...]], ...] = ()
    readings: tuple[tuple[float, Mapping[str, float]], ...] = ()
    power_w: float | None = None


def predict(executable: Executable, plan: Plan, cost: CostModel | None) -> Recording:
    """The predicted timeline; nothing runs."""
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
    """Profile single inferences of an engine with fed inputs; read sensors in between.

    With `layers`, layers of nets are profiled too, if the library runs them one by one. Raises
    `DeviceError` if an inference fails.
    """
    begin = perf_counter()
    inferences, readings = [], [(0.0, _reading(target.conditions()))]
    for _ in range(runs):
        at_ms = 1e3 * (perf_counter() - begin)
        spans = engine.profile(1, layers=layers)
        inferences.append((at_ms, tuple(measured(engine.executable, spans))))
        reading = _reading(target.conditions())
        readings.append((1e3 * (perf_counter() - begin), reading))
    return replace(
        predict(engine.executable, engine.plan, cost),
        inferences=tuple(inferences),
        readings=tuple(readings),
        power_w=power_w,
    )


def measured(executable: Executable, spans: Sequence[TimeSpan]) -> Iterator[PlacedSpan]:
    """The spans of a profile, by command."""
    nets: list[PlacedSpan] = []
    for stage, pairs in enumerate(spans_by_command(executable, spans)):
        for command, span in pairs:
            if isinstance(command, RunNet):
                nets.append(placed := PlacedSpan(span, stage, net=command.net))
            else:
                assert not isinstance(command, Fill | Flush)  # these have no span
                placed = PlacedSpan(span, stage, step=command.step)
            yield placed
    for span in spans:
        if span.kind == "layer":
            net = next(net for net in nets if net.span.end_ms >= span.end_ms)
            yield PlacedSpan(span, net.stage)


def _reading(conditions: Conditions) -> dict[str, float]:
    shown = {
        "temperature (C)": conditions.temperature_c,
        "CPU clock (MHz)": conditions.cpu_mhz,
        "GPU clock (MHz)": conditions.gpu_mhz,
        "battery (%)": conditions.battery_percent,
    }
    return {name: value for name, value in shown.items() if value is not None}
