"""One measured run of a plan: outputs, latency, energy, and a profile by op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.ir.records.results import Conditions, Latency, TimeSpan
from codl.measure.timing import Effort, TimedTogether
from codl.plan import op_placement
from codl.plan.op_placement import OpPlacement
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
            placed, totals_ms(spans), {"cpu": engine.nets, "gpu": engine.executable.fused}
        ),
        conditions=times.conditions,
    )


def _timed(engine: Engine, target: Target, effort: Effort) -> TimedTogether:
    times = target.time({"run": engine.loaded}, effort, with_energy=True)
    if times.failed:
        raise DeviceError(times.failed["run"])
    return times
