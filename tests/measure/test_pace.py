"""The pace of a machine: the last rounds against the first."""

from __future__ import annotations

import pytest

from codl.measure.cool_down import held, pace, tolerance
from codl.measure.timing import TOLERANCE


def test_rounds_last_as_long_as_they_were_asked_to() -> None:
    samples = pace(0.0)
    assert len(samples) >= 3
    assert min(samples) > 0


def test_half_the_pace_at_the_end_is_half() -> None:
    falling = [1.0] * 30 + [2.0] * 30
    assert held(falling) == pytest.approx(0.5)
    assert tolerance(falling) == TOLERANCE


def test_a_clock_that_falls_bit_by_bit_does_not_hold() -> None:
    falling = [1.02**index for index in range(60)]
    assert held(falling) < 1 - tolerance(falling)


def test_single_rounds_that_are_slow_do_not_matter() -> None:
    disturbed = [5.0 if index % 2 else 1.0 for index in range(60)]
    assert held(disturbed) == pytest.approx(1.0)
    assert tolerance(disturbed) == TOLERANCE


def test_a_machine_that_is_never_quiet_may_differ_more() -> None:
    restless = [1.0 + 0.2 * (index // 6 % 2) for index in range(54)]
    assert tolerance(restless) > 0.3
