"""Benchmark of a user interface beside inference: late frames, and what they cost inference."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.measure.budget import Budget
from codl.measure.ui_frames import Drawn, Frames
from codl.records.gpu_limits import LimitedGpu
from codl.records.results import Latency
from codl.targets.base import Target

#: How many turns everybody has, one after the other.
TURNS = 3
#: What is drawn while an engine runs, and the seconds of its runs.
Beside: TypeAlias = tuple[Drawn, list[float]]


@dataclass(frozen=True)
class UiRow:
    """An interface beside an engine, or beside nothing: then there is no latency.

    `latency_ms` is of inferences right behind each other.
    """

    beside: str
    frames: Frames
    latency_ms: Latency | None = None
    predicted_ms: float | None = None
    limited: LimitedGpu | None = None


def bench_ui(
    engines: Mapping[str, Engine],
    probe: Target,
    inputs: Mapping[str, NDArray[Any]],
    *,
    seconds: float,
    budget: Budget | None = None,
) -> list[UiRow]:
    """Frames that `probe` draws beside nothing, and beside each of the engines, in turns.

    `probe` is on the same device in a process of its own; each has `seconds` in all. Ctrl-C behind
    the first round of turns ends it with what there is.
    """
    budget, turn_s = budget or Budget(), seconds / TURNS
    rounds: list[tuple[Drawn, dict[str, Beside]]] = []
    probe.draw_frames(0.0)  # opens the device and finds out what a frame takes
    for engine in engines.values():
        engine(inputs)
    with budget.keeping(rounds):
        for _ in range(TURNS):
            alone = probe.draw_frames(turn_s)
            beside = {name: _beside(engine, probe, turn_s) for name, engine in engines.items()}
            rounds.append((alone, beside))
    rows = [UiRow("nothing", Frames.of([alone for alone, _ in rounds]))]
    for name, engine in engines.items():
        turns = [beside[name] for _, beside in rounds]
        latency = Latency.of([second for _, samples in turns for second in samples])
        frames, predicted_ms = Frames.of([drawn for drawn, _ in turns]), engine.plan.predicted_ms
        rows.append(UiRow(name, frames, latency, predicted_ms, engine.limited))
    return rows


def _beside(engine: Engine, probe: Target, seconds: float) -> Beside:
    """What is drawn while an engine runs, and the seconds of its runs."""
    engine.run()
    samples: list[float] = []
    with ThreadPoolExecutor(1) as thread:
        drawing = thread.submit(probe.draw_frames, seconds)
        while not (samples and drawing.done()):
            begin = perf_counter()
            engine.run()
            samples.append(perf_counter() - begin)
        return drawing.result(), samples
