"""A model that runs on and on, on a device that becomes slower: times are of a clock that steps."""

from __future__ import annotations

from typing import Any

import pytest

from codl.errors import DeviceError
from codl.measure.batch import time_together
from codl.measure.sustained import WINDOW_S, Window, summary, sustain
from codl.measure.timing import Effort, TimedTogether, interleave, timed
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
