"""The fewest of some changes that are enough: delta debugging."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def smallest(
    items: Sequence[T],
    enough: Callable[[Sequence[T]], bool],
    is_over: Callable[[], bool] = lambda: False,
) -> list[T]:
    """Of items that are enough together, some that are too, none of which can be left out.

    The likeliest come first: at first a shortest run of them is looked for by bisection, which is
    right where more is never worse, and then pieces of that are left out, by halves down to single
    ones. Where `is_over` ends the search, what is left is enough but may be more than needed.
    """
    kept = _first_enough(items, enough, is_over)
    size = len(kept)
    while size > 1 and not is_over():
        size = (size + 1) // 2
        begin = 0
        while begin < len(kept) and not is_over():
            rest = kept[:begin] + kept[begin + size :]
            if len(kept) > 1 and rest and enough(rest):
                kept = rest
            else:
                begin += size
    return kept


def _first_enough(
    items: Sequence[T], enough: Callable[[Sequence[T]], bool], is_over: Callable[[], bool]
) -> list[T]:
    """The first items, as few as bisection finds to be enough."""
    low, high = 0, len(items)  # `high` are enough
    while high - low > 1 and not is_over():
        middle = (low + high) // 2
        if enough(items[:middle]):
            high = middle
        else:
            low = middle
    return list(items[:high])
