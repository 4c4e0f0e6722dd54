"""Delta debugging: what is found is enough, and nothing of it can be left out."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from codl.validate.smallest import smallest


@given(st.sets(st.integers(0, 30), min_size=1), st.permutations(range(31)))
def test_exactly_what_is_needed_is_found(needed: set[int], items: list[int]) -> None:
    assert set(smallest(items, needed.issubset)) == needed


@given(st.sets(st.integers(0, 12), min_size=1, max_size=4), st.sets(st.integers(0, 12), min_size=1))
def test_nothing_of_what_is_found_can_be_left_out(one: set[int], two: set[int]) -> None:
    """Where there are two ways, it is one of them."""

    def enough(some: Sequence[int]) -> bool:
        return one.issubset(some) or two.issubset(some)

    found = smallest(range(13), enough)
    assert enough(found)
    for item in found:
        assert len(found) == 1 or not enough([other for other in found if other != item])


def test_the_likeliest_come_first() -> None:
    asked: list[Sequence[int]] = []

    def enough(some: Sequence[int]) -> bool:
        asked.append(some)
        return 0 in some

    assert smallest(range(64), enough) == [0]
    assert len(asked) <= 8


def test_what_is_left_is_enough_when_the_time_is_over() -> None:
    assert smallest(range(5), lambda some: 3 in some, lambda: True) == list(range(5))
