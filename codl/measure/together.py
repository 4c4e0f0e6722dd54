"""Several models timed in one run, in turns, with what else the target can tell meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from codl.errors import CodlError
from codl.measure import drift
from codl.measure.batch import ReadsConditions
from codl.measure.interleave import AnchorTime, Effort, Timed, TimedTogether, interleave
from codl.measure.runner import Prepared
from codl.measure.timing import WHOLE
from codl.records.results import Conditions, Latency
from codl.records.statistic import level
from codl.runtime.sensors import Sensor, energy_mj


def time_together(
    runs: Mapping[str, Timed],
    effort: Effort,
    *,
    sensors: Sequence[Sensor] = (),
    anchors: Sequence[Prepared] = (),
    machine: ReadsConditions | None = None,
    before_turn: Callable[[], object] = lambda: None,
    after_round: Callable[[], None] = lambda: None,
) -> TimedTogether:
    """Time all in turns; what fails leaves, with its reason.

    Anchors are visited once a round, and the `machine` is looked at.
    """
    failed: dict[str, CodlError] = {}
    readings: list[Conditions] = []

    def beside() -> None:
        if machine is not None:
            readings.append(machine.read())
        for anchor in anchors:
            anchor.timed.visit()
        after_round()

    found = interleave(runs, effort, before_turn=before_turn, after_round=beside, failed=failed)
    energy: dict[str, float | None] = {}
    for name in found:
        with suppress(CodlError):  # its latency is kept
            energy[name] = energy_mj(partial(runs[name], effort.turn), sensors)
    return TimedTogether(
        latency_ms={name: Latency.of(turns.warm) for name, turns in found.items()},
        cold_ms={name: Latency.of(turns.cold) for name, turns in found.items()},
        failed={name: str(error) for name, error in failed.items()},
        energy_mj={name: mj / effort.turn for name, mj in energy.items() if mj is not None},
        sensors=tuple(sensor.name for sensor in sensors),
        anchors=tuple(
            AnchorTime(*drift.key(one), 1e3 * level(one.timed.found[WHOLE]))
            for one in anchors
            if one.timed.found.get(WHOLE)
        ),
        conditions=Conditions.over(readings),
        runs_ms={name: tuple(1e3 * s for s in turns.every) for name, turns in found.items()}
        if effort.keep_runs
        else {},
    )


def slowdown(
    anchors: Sequence[AnchorTime], usual_ms: Mapping[tuple[str, str], float]
) -> dict[str, float] | None:
    """By processor, how many times longer its anchors take than usual.

    None where no anchor has a usual latency: a dataset was imported, or there is none. Where other
    programs or the heat slow a processor down by a tenth, its plans take a tenth longer than
    predicted, and no predictor is to blame.
    """
    ratios: dict[str, list[float]] = {}
    for one in anchors:
        if (one.op, one.processor) in usual_ms:
            own = ratios.setdefault(one.processor, [])
            own.append(one.latency_ms / usual_ms[one.op, one.processor])
    return {processor: drift.Drift.of(own).factor for processor, own in ratios.items()} or None
