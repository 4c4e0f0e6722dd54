"""Frames of an interface, by a clock that is not real."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from codl.measure.ui_frames import PERIOD_MS, Drawn, Frames, draw, is_sound


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
