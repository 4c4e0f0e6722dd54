"""Budgets by a clock that moves when it is told to."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import pytest
from support.clocks import Hands

from codl.errors import InterruptedCommandError
from codl.measure.budget import Budget


def worked(seconds: float | None, takes: Iterable[float]) -> tuple[Budget, list[int], list[float]]:
    """Steps that take so many seconds each: those that were done, and what was said to be left."""
    clock, done, told = Hands(), [], []
    budget, takes = Budget(seconds, clock), list(takes)
    for at in budget.steps(range(len(takes)), lambda done, total, left_s: told.append(left_s)):
        clock.now += takes[at]
        done.append(at)
    return budget, done, told


def test_without_an_end_all_is_done_and_the_pace_says_how_long_it_takes() -> None:
    budget, done, told = worked(None, [2.0, 4.0, 3.0])
    assert (done, told, budget.ended) == ([0, 1, 2], [4.0, 3.0, 0.0], "done")
    assert (budget.left_s, budget.seconds, budget.share(2).seconds) == (inf, None, None)


def test_a_step_that_would_end_too_late_is_not_begun() -> None:
    budget, done, told = worked(10.0, [2.0, 4.0, 1.0, 1.0])
    assert (done, budget.ended) == ([0, 1, 2], "budget")  # 3 s are left, and a step took 4
    assert told == [6.0, 4.0, pytest.approx(7 / 3)]


def test_the_first_step_is_done_if_there_is_any_time_at_all() -> None:
    assert worked(0.1, [5.0, 5.0])[1] == [0]
    assert worked(0.0, [5.0, 5.0])[1] == []


def test_shares_are_of_what_is_left() -> None:
    clock = Hands()
    budget = Budget(10.0, clock)
    clock.now += 4
    part = budget.share(3)
    assert (part.seconds, part.left_s) == (2.0, 2.0)
    budget.skip(5)
    assert (budget.spent_s, budget.left_s) == (9.0, 1.0)
    clock.now += 20
    assert budget.left_s == 0
    assert budget.is_over()
    assert budget.share().seconds == 0


def test_ctrl_c_ends_what_has_kept_something() -> None:
    kept: list[int] = []
    budget = Budget()
    with budget.keeping(kept):
        for one in budget.steps([1, 2, 3]):
            kept.append(one)
            raise KeyboardInterrupt
    assert (kept, budget.ended) == ([1], "interrupted")
    with pytest.raises(InterruptedCommandError, match=r"Interrupted\. One is kept\."):
        budget.check("One is kept.")


def test_ctrl_c_before_anything_is_kept_is_raised() -> None:
    budget = Budget()
    with pytest.raises(KeyboardInterrupt), budget.keeping([]):
        raise KeyboardInterrupt
    budget.check("Nothing.")
