"""Benchmarks of a running engine: beside a user interface, and for minutes on end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil
from statistics import fmean
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.measure.budget import Budget
from codl.measure.timing import Effort, TimedTogether
from codl.measure.ui_frames import Drawn, Frames
from codl.records.gpu_limits import LimitedGpu
from codl.records.results import Conditions, Latency
from codl.targets.base import Target

#: How many turns each engine has, one after the other.
TURNS = 3
#: What is drawn while an engine runs, and the seconds of its runs.
Beside: TypeAlias = tuple[Drawn, list[float]]


@dataclass(frozen=True)
class UiRow:
    """An interface beside an engine, or beside nothing, without a latency.

    `latency_ms` is that of inferences without pauses.
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

    `probe` is on the same device in a process of its own; each engine has `seconds` in all. Ctrl-C
    after the first round of turns ends it early.
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
    """Frames drawn while an engine runs, and the seconds of its runs."""
    engine.run()
    samples: list[float] = []
    with ThreadPoolExecutor(1) as thread:
        drawing = thread.submit(probe.draw_frames, seconds)
        while not (samples and drawing.done()):
            begin = perf_counter()
            engine.run()
            samples.append(perf_counter() - begin)
        return drawing.result(), samples


#: For about this time a model runs without a pause, then clocks and temperature are read.
WINDOW_S = 5.0
#: A short run has about this many windows.
LEAST_WINDOWS = 10
#: The first and the last of these are compared; of a shorter run its halves.
MINUTE_S = 60.0
NAME = "run"


@dataclass(frozen=True)
class Window:
    """Runs one behind the other, from `begin_s` to `end_s` after the beginning."""

    begin_s: float
    end_s: float
    runs_ms: tuple[float, ...]
    conditions: Conditions


@dataclass(frozen=True)
class Stretch:
    """What runs took in a while, the median and the 95th percentile, and how the machine was."""

    begin_s: float
    end_s: float
    p50_ms: float
    p95_ms: float
    runs: int
    conditions: Conditions

    @classmethod
    def of(cls, windows: Sequence[Window]) -> Stretch:
        runs_ms = [ms for window in windows for ms in window.runs_ms]
        p50, p95 = np.percentile(runs_ms, (50, 95))
        conditions = Conditions.over([window.conditions for window in windows])
        begin_s, end_s = windows[0].begin_s, windows[-1].end_s
        return cls(begin_s, end_s, float(p50), float(p95), len(runs_ms), conditions)


@dataclass(frozen=True)
class Sustained:
    """A sustained run: all of it, its first and its last minute, and all in between.

    `drop` is the part of its first speed that it has lost at the end, by the medians.
    """

    whole: Stretch
    first_minute: Stretch
    last_minute: Stretch
    drop: float
    stretches: tuple[Stretch, ...]


def sustain(
    time: Callable[[dict[str, Any], Effort], TimedTogether],
    model: object,
    seconds: float,
    *,
    clock: Callable[[], float] = perf_counter,
) -> Iterator[Window]:
    """Run what a target has loaded, by its `time`, for `seconds`; windows as they end.

    Raises `DeviceError` where a run fails.
    """
    effort, begin = Effort(min_rounds=1, min_seconds=0.0, warm=1, keep_runs=True), clock()
    while (now_s := clock() - begin) < seconds:
        times = time({NAME: model}, effort)
        if times.failed:
            raise DeviceError(times.failed[NAME])
        runs_ms = times.runs_ms[NAME]
        yield Window(now_s, clock() - begin, runs_ms, times.conditions)
        left_s = min(WINDOW_S, seconds / LEAST_WINDOWS, seconds - (clock() - begin))
        runs = ceil(1e3 * left_s / max(fmean(runs_ms), 1e-6))
        effort = replace(effort, warm=max(1, runs - 1))


def summary(windows: Sequence[Window], every_s: float = MINUTE_S) -> Sustained:
    """What became of the latency, with a stretch for `every_s` seconds; there is a window."""
    end_s = windows[-1].end_s
    while_s = min(MINUTE_S, end_s / 2)
    first = Stretch.of([window for window in windows if window.begin_s < while_s])
    last = Stretch.of([window for window in windows if window.end_s > end_s - while_s])
    parts = groupby(windows, lambda window: int(window.begin_s / every_s))
    return Sustained(
        whole=Stretch.of(windows),
        first_minute=first,
        last_minute=last,
        drop=1 - first.p50_ms / last.p50_ms,
        stretches=tuple(Stretch.of(list(part)) for _, part in parts),
    )
