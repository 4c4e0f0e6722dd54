"""Loops of tests that cannot be empty: an assert inside one that is would never be reached."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def some(values: Iterable[T]) -> list[T]:
    """All of the values; fails where there are none."""
    found = [*values]
    assert found, "nothing is left to check"
    return found
