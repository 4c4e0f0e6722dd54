"""One measured run of a plan: outputs, latency, energy, a profile by op, and timelines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.ir.executable import Executable, Fill, Flush, RunNet
from codl.ir.plan import Plan
from codl.ir.records.results import Conditions, Latency, TimeSpan
from codl.measure.timing import Effort, TimedTogether
from codl.plan import op_placement
from codl.plan.op_placement import OpPlacement
from codl.plan.price import PlacedSpan, predicted_timeline, spans_by_command, stage_times
from codl.report.recording import Recording, SensorReading, TracedInference
from codl.runtime.loaded import totals_ms
from codl.targets.base import Target

if TYPE_CHECKING:
    from codl.plan.cost_model import CostModel


@dataclass(frozen=True)
class RunReport:
    """The results of measuring one engine.

    `energy_mj` is per inference, by `energy_sensors`; None without sensors. `spans` are of one
    inference; `placed` has the processor and milliseconds of each op in it. `conditions` are of the
    timed runs.
    """

    outputs: Mapping[str, NDArray[Any]]
    latency_ms: Latency
    energy_mj: float | None
    energy_sensors: tuple[str, ...]
    spans: list[TimeSpan]
    placed: list[OpPlacement]
    conditions: Conditions


def measure(
    engine: Engine,
    target: Target,
    inputs: Mapping[str, NDArray[Any]],
    cost: CostModel | None,
    *,
    rounds: int,
) -> RunReport:
    """Run an engine on inputs by name: one untimed run, then `rounds` timed runs.

    The time of a net or kernel is divided among its ops in proportion to the predictions of `cost`,
    or equally without it. An engine that adapts first serves as many inferences; then its plan is
    timed.
    """
    outputs = engine(inputs)
    for _ in range(rounds if engine.adaptation is not None else 0):
        engine.run()
    effort = Effort(min_rounds=1, min_seconds=0, warm=rounds)
    try:
        times = _timed(engine, target, effort)
    except DeviceError as error:
        engine.recover(error)
        times = _timed(engine, target, effort)
    spans = engine.profile()
    planned = op_placement.predicted(engine.network, engine.plan, engine.soc, cost)
    placed = op_placement.standing_in(planned, engine.fallbacks)
    return RunReport(
        outputs=outputs,
        latency_ms=times.latency_ms["run"],
        energy_mj=times.energy_mj.get("run"),
        energy_sensors=times.sensors,
        spans=spans,
        placed=op_placement.measured(
            placed, totals_ms(spans), {"cpu": engine.nets, "gpu": engine.fused}
        ),
        conditions=times.conditions,
    )


def _timed(engine: Engine, target: Target, effort: Effort) -> TimedTogether:
    times = target.time({"run": engine.loaded}, effort, with_energy=True)
    if times.failed:
        raise DeviceError(times.failed["run"])
    return times


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
    inferences, readings = [], [_reading(target.conditions(), 0.0)]
    for _ in range(runs):
        at_ms = 1e3 * (perf_counter() - begin)
        spans = engine.profile(1, layers=layers)
        inferences.append(TracedInference(at_ms, tuple(measured(engine.executable, spans))))
        conditions = target.conditions()
        readings.append(_reading(conditions, 1e3 * (perf_counter() - begin)))
    return replace(
        predict(engine.executable, engine.plan, cost),
        inferences=tuple(inferences),
        readings=tuple(reading for reading in readings if reading.values),
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


def _reading(conditions: Conditions, at_ms: float) -> SensorReading:
    shown = {
        "temperature (C)": conditions.temperature_c,
        "CPU clock (MHz)": conditions.cpu_mhz,
        "GPU clock (MHz)": conditions.gpu_mhz,
        "battery (%)": conditions.battery_percent,
    }
    return SensorReading(at_ms, {name: value for name, value in shown.items() if value is not None})
