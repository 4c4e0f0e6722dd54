"""Pieces of launches: each work-item once, whole work-groups, and sources that see the whole."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codl.runtime.limited import cut, for_pieces, most, refusal

DIMENSION = st.tuples(st.integers(1, 7), st.integers(1, 4))


@given(st.lists(DIMENSION, min_size=1, max_size=3), st.integers(1, 60), st.booleans())
@settings(deadline=None, derandomize=True)
def test_pieces_have_every_work_item_once(
    dimensions: list[tuple[int, int]], count: int, is_grouped: bool
) -> None:
    local = tuple(step for _, step in dimensions)
    size = tuple(n * step for n, step in dimensions)
    pieces = cut(size, local if is_grouped else None, count)
    seen = [
        item
        for piece in pieces
        for item in product(
            *(range(at, at + n) for at, n in zip(piece.offset, piece.size, strict=True))
        )
    ]
    assert sorted(seen) == sorted(product(*map(range, size)))
    assert all(n > 0 for piece in pieces for n in piece.size)
    if is_grouped:
        for piece in pieces:
            for at, n, step in zip(piece.offset, piece.size, local, strict=True):
                assert at % step == n % step == 0
    possible = most(size, local if is_grouped else None)
    assert min(count, possible) <= len(pieces) <= possible


def test_the_outermost_dimension_is_cut_first() -> None:
    pieces = cut((64, 6), (8, 1), 3)
    assert [(one.offset, one.size) for one in pieces] == [
        ((0, 0), (64, 2)),
        ((0, 2), (64, 2)),
        ((0, 4), (64, 2)),
    ]
    inner = cut((64, 2), (8, 1), 4)
    assert [one.offset for one in inner] == [(0, 0), (32, 0), (0, 1), (32, 1)]
    assert [one.size for one in inner] == [(32, 1)] * 4


def test_sources_that_ask_for_more_than_their_ids_see_the_whole() -> None:
    plain = "kernel void f() { int i = get_global_id(0); }"
    assert for_pieces(plain, (64,), (8,)) is plain
    text = "kernel void f() { int i = get_group_id(1) + get_num_groups(0); }"
    seen = for_pieces(text, (64, 6), (8, 2))
    assert seen.endswith(text)
    assert "get_global_size(d) ((size_t)((d) == 0 ? 64 : (d) == 1 ? 6 : 1))" in seen
    assert "get_num_groups(d) ((size_t)((d) == 0 ? 8 : (d) == 1 ? 3 : 1))" in seen


@pytest.mark.parametrize(
    ("asks", "local", "is_refused"),
    [
        ("get_global_id", None, False),
        ("get_group_id", (8,), False),
        ("get_group_id", None, True),
        ("get_local_id", None, True),
        ("get_global_offset", (8,), True),
        ("get_global_linear_id", (8,), True),
    ],
)
def test_what_cannot_be_split(asks: str, local: tuple[int, ...] | None, is_refused: bool) -> None:
    reason = refusal(f"x = {asks}(0);", local)
    assert reason == (f"its source asks for {asks}" if is_refused else None)
