"""`codl bench --minutes`: a model that runs on and on."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from codl.cli.deployed import adapted, context_of, deployment_of, plan_of
from codl.cli.output import progress
from codl.cli.recorded import digests_of, recorded
from codl.engine.engine import Engine
from codl.errors import CodlError
from codl.frontend.convert import load_network
from codl.measure.budget import Budget
from codl.measure.inputs import random_inputs
from codl.measure.sustained import Window, summary, sustain
from codl.report.terminal import Table
from codl.runtime.placement import LocalSoc
from codl.targets.base import Target
from codl.targets.connect import connect

#: A table has at most so many lines.
MOST_LINES = 20
UNREADABLE = "not readable"


def sustained_result(
    model: str,
    described: LocalSoc,
    serial: str,
    *,
    strategy: str | None,
    dataset: Path,
    minutes: float,
    budget: Budget,
) -> dict[str, Any]:
    """Runs a model for so long, or until Ctrl-C behind the first window: the `budget` says which.

    Raises `CodlError` for a time that is not above 0.
    """
    if not 0 < minutes < float("inf"):
        raise CodlError(f"--minutes must be above 0, got {minutes:g}.")
    deployed = deployment_of(model)
    asked = context_of(described, dataset)
    network, seconds = load_network(model), 60 * minutes
    with closing(connect(serial, described)) as target:
        context = adapted(replace(asked, target=target), deployed)
        plan = plan_of(None, strategy, deployed, network=network, context=context)
        with Engine(network, plan, target, context.tuning) as engine:
            engine.feed(random_inputs(network))
            windows = _windows(engine, target, seconds, budget)
        of = digests_of(context, network, plans={network.name: plan})
        origin = recorded(target, of, minutes=minutes)
    found = summary(windows, every_s=max(seconds / MOST_LINES, min(60.0, seconds / 4)))
    return {
        "model": network.name,
        "soc": described.name,
        "serial": serial,
        "source": "measured",
        "strategy": plan.strategy,
        "minutes": windows[-1].end_s / 60,
        "interrupted": budget.ended == "interrupted",
        **asdict(found),
        **origin,
    }


def _windows(engine: Engine, target: Target, seconds: float, budget: Budget) -> list[Window]:
    """All windows until the time is over, or Ctrl-C ends it."""
    windows: list[Window] = []
    with progress(f"Running {engine.network.name}") as update, budget.keeping(windows):
        for window in sustain(target, engine.loaded, seconds):
            windows.append(window)
            done = min(window.end_s, seconds)
            update(round(done), round(seconds), seconds - done)
    return windows


def sustained_table(result: Mapping[str, Any]) -> Table:
    """A line for every while, the first and the last minute below."""
    columns = ("from", "to", "p50 ms", "p95 ms", "runs", "CPU MHz", "GPU MHz", "°C", "held down")
    table = Table(*columns, title=f"{result['model']} by {result['strategy']}, on and on")
    for part in result["stretches"]:
        table.add_row(*_cells(part))
    first, last = result["first_minute"], result["last_minute"]
    table.add_section()
    for part in (first, last, result["whole"]):
        table.add_row(*_cells(part))
    drop = 100 * result["drop"]
    change = f"{drop:.1f} % slower" if drop >= 0 else f"{-drop:.1f} % faster"
    table.caption = (
        f"below: the first minute, the last one (halves of a shorter run), and all. Its speed in "
        f"the end is {change} than in the beginning, by medians; measured on {result['soc']}"
    )
    return table


def _cells(part: Mapping[str, Any]) -> tuple[str, ...]:
    now = part["conditions"]
    clocks = (_told(now[key]) for key in ("cpu_mhz", "gpu_mhz", "temperature_c"))
    times = (_time(part["begin_s"]), _time(part["end_s"]))
    latency = (f"{part['p50_ms']:.4g}", f"{part['p95_ms']:.4g}", str(part["runs"]))
    return (*times, *latency, *clocks, ", ".join(now["throttled"]))


def _told(value: float | None) -> str:
    return UNREADABLE if value is None else f"{value:.0f}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
