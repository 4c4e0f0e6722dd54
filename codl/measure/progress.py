"""How far something long has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

#: Called now and then: things that are done, things in all, seconds left as far as can be told.
Progress: TypeAlias = Callable[[int, int, float], None]


def nobody(done: int, total: int, left_s: float) -> None:
    """Where nobody listens."""


def seconds_left(done: int, total: int, spent_s: float, budget_s: float | None = None) -> float:
    """As long as the rest takes at this pace, but not longer than what is left of a budget."""
    expected = spent_s / max(done, 1) * (total - done)
    return expected if budget_s is None else min(expected, max(budget_s - spent_s, 0.0))
