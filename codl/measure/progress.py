"""How far something long has come."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

#: Called now and then: things that are done, things in all, seconds left as far as can be told.
Progress: TypeAlias = Callable[[int, int, float], None]


def nobody(done: int, total: int, left_s: float) -> None:
    """Where nobody listens."""
