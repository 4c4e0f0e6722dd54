"""Models that run on and on, and the frames of an interface beside them, by simulated clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from codl.errors import DeviceError
from codl.evaluation.benchmarks import WINDOW_S, Window, summary, sustain
from codl.measure.batch import time_together
from codl.measure.timing import Effort, TimedTogether, interleave, timed
from codl.measure.ui_frames import PERIOD_MS, Drawn, Frames, draw, is_sound
from codl.records.results import Conditions, Latency


class Phone:
    """Takes 10 ms, and 20 ms once it is hot, after 200 s."""

    def __init__(self, hot_s: float = 200.0) -> None:
        self.now_s, self.hot_s = 0.0, hot_s
        self.turns: list[int] = []

    def time(self, models: dict[str, Any], effort: Effort) -> TimedTogether:
        (name,) = models
        runs = []
        for _ in range(effort.turn):
            runs.append(10.0 if self.now_s < self.hot_s else 20.0)
            self.now_s += 1e-3 * runs[-1]
        self.turns.append(effort.turn)
        hot = self.now_s > self.hot_s
        now = Conditions(temperature_c=70.0 if hot else 40.0, throttled=("gpu",) if hot else ())
        return TimedTogether({name: Latency.of([1.0])}, conditions=now, runs_ms={name: tuple(runs)})


def test_the_last_minute_is_held_against_the_first() -> None:
    phone = Phone()
    windows = list(sustain(phone.time, "model", 600.0, clock=lambda: phone.now_s))
    assert 600 <= phone.now_s < 600 + WINDOW_S
    assert all(own.end_s - own.begin_s < 2.5 * WINDOW_S for own in windows)
    found = summary(windows)
    assert (found.first_minute.p50_ms, found.last_minute.p50_ms) == (10.0, 20.0)
    assert found.drop == pytest.approx(0.5)
    assert found.first_minute.conditions.temperature_c == 40.0
    assert found.last_minute.conditions.throttled == ("gpu",)
    assert (found.whole.p50_ms, found.whole.p95_ms) == (10.0, 20.0) or found.whole.p50_ms == 20.0
    assert len(found.stretches) in (10, 11)
    assert sum(own.runs for own in found.stretches) == found.whole.runs == sum(phone.turns)


def test_a_short_run_is_divided_in_halves() -> None:
    windows = [
        Window(0.0, 5.0, (1.0, 1.0, 3.0), Conditions()),
        Window(5.0, 10.0, (2.0,), Conditions()),
    ]
    found = summary(windows)
    assert (found.first_minute.runs, found.last_minute.runs) == (3, 1)
    assert found.drop == pytest.approx(0.5)
    assert summary(windows[:1]).drop == 0
    assert found.first_minute.p95_ms == pytest.approx(2.8)


def test_a_run_that_fails_ends_it() -> None:
    class Lost(Phone):
        def time(self, models: dict[str, Any], effort: Effort) -> TimedTogether:
            return TimedTogether({}, failed=dict.fromkeys(models, "the GPU is lost"))

    with pytest.raises(DeviceError, match="the GPU is lost"):
        list(sustain(Lost().time, "model", 600.0))


def test_every_run_is_told_where_it_is_wanted() -> None:
    runs = {"one": timed(lambda: None), "other": timed(lambda: None)}
    effort = Effort(min_rounds=2, min_seconds=0.0, warm=3)
    assert time_together(runs, effort).runs_ms == {}
    kept = time_together(runs, Effort(min_rounds=2, min_seconds=0.0, warm=3, keep_runs=True))
    assert {name: len(own) for name, own in kept.runs_ms.items()} == {"one": 8, "other": 8}
    assert len(interleave(runs, effort)["one"].every) == 8


@dataclass
class Screen:
    """A clock in seconds, and what the next frames take."""

    frames_ms: list[float]
    now: float = 5.0
    begun: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def frame(self) -> None:
        self.begun.append(self.now)
        self.now += 1e-3 * self.frames_ms[len(self.begun) - 1]

    def draw(self, refreshes: float) -> Drawn:
        seconds = 1e-3 * PERIOD_MS * refreshes
        return draw(self.frame, seconds, clock=lambda: self.now, sleep=self.sleep)


def test_short_frames_are_all_on_time() -> None:
    frames = Frames.of([Screen([3.0] * 20).draw(9.5)])
    assert frames.refreshes == 10
    assert frames.on_time == 1.0
    assert frames.worst_stall_ms == pytest.approx(PERIOD_MS)
    assert frames.frame_ms.median == pytest.approx(3.0)


def test_a_late_frame_costs_the_refreshes_that_it_misses() -> None:
    drawn = Screen([3.0, 40.0, 3.0, 3.0]).draw(5.5)
    assert [refresh for refresh, _ in drawn] == [0, 1, 4, 5]
    frames = Frames.of([drawn])
    assert (frames.refreshes, frames.on_time) == (6, pytest.approx(4 / 6))
    assert frames.worst_stall_ms == pytest.approx(3 * PERIOD_MS)
    assert frames.worst_frame_ms == pytest.approx(40.0)


def test_turns_are_taken_together() -> None:
    frames = Frames.of([((0, 3.0), (1, 20.0)), ((0, 3.0),)])
    assert (frames.refreshes, frames.on_time) == (4, pytest.approx(3 / 4))
    assert frames.worst_stall_ms == pytest.approx(2 * PERIOD_MS)


def test_frames_that_cannot_be() -> None:
    assert is_sound(((0, 3.0), (1, 20.0), (3, 1.0)))
    assert not is_sound(())
    assert not is_sound(((1, 3.0), (1, 3.0)))
    assert not is_sound(((0, 40.0), (1, 3.0)))
