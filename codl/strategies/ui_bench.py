"""An interface beside inference: whether its frames are on time, and what that costs inference."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from numpy.typing import NDArray

from codl.ir.gpu_limits import LimitedGpu
from codl.ir.results import Latency
from codl.measure.ui_frames import Drawn, Frames
from codl.runtime.engine import Engine
from codl.targets.base import Target

#: Everybody has so many turns, one after the other.
TURNS = 3


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
) -> list[UiRow]:
    """Frames that `probe` draws beside nothing, and beside each of the engines, in turns.

    `probe` is on the same device in a process of its own; each has `seconds` in all.
    """
    turn_s = seconds / TURNS
    alone: list[Drawn] = []
    drawn: dict[str, list[Drawn]] = {name: [] for name in engines}
    samples: dict[str, list[float]] = {name: [] for name in engines}
    probe.draw_frames(0.0)  # opens the device and finds out what a frame takes
    for engine in engines.values():
        engine(inputs)
    for _ in range(TURNS):
        alone.append(probe.draw_frames(turn_s))
        for name, engine in engines.items():
            frames, own = _beside(engine, probe, turn_s)
            drawn[name].append(frames)
            samples[name] += own
    rows = [UiRow("nothing", Frames.of(alone))]
    for name, engine in engines.items():
        latency, predicted_ms = Latency.of(samples[name]), engine.plan.predicted_ms
        row = UiRow(name, Frames.of(drawn[name]), latency, predicted_ms, engine.limited)
        rows.append(row)
    return rows


def _beside(engine: Engine, probe: Target, seconds: float) -> tuple[Drawn, list[float]]:
    """What is drawn while an engine runs, and the seconds of its runs."""
    engine.run()
    samples = []
    with ThreadPoolExecutor(1) as thread:
        drawing = thread.submit(probe.draw_frames, seconds)
        while not drawing.done():
            begin = perf_counter()
            engine.run()
            samples.append(perf_counter() - begin)
        return drawing.result(), samples
