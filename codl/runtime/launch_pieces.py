"""A launch in pieces: several launches that together have each of its work-items once.

`get_global_id` counts on from a launch's offset. `get_group_id`, `get_num_groups` and
`get_global_size` do not: they answer for the piece. A kernel that asks for them is compiled for its
launch, with answers for the whole of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import ceil, prod

#: What answers for a piece, and what of it there is no answer for without a work-group's size.
BY_PIECE = re.compile(r"\bget_(group_id|num_groups|global_size)\b")
BY_GROUP = re.compile(r"\bget_(group_id|num_groups|local_id|local_size|local_linear_id)\b")
#: What no answer is made for.
UNKNOWN = re.compile(r"\bget_(global_linear_id|global_offset|enqueued_local_size)\b")

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """Where a piece begins, and its size, in work-items."""

    offset: Sizes
    size: Sizes


def cut(global_size: Sizes, local_size: Sizes | None, count: int) -> list[Piece]:
    """About `count` pieces of a launch, of whole work-groups; fewer where it has no more of those.

    The outermost dimension is cut first, since work-items that differ there alone share the least;
    a further one only where the groups along that are too few.
    """
    group = local_size or (1,) * len(global_size)
    bounds: list[list[tuple[int, int]]] = []
    left = count
    for size, step in zip(reversed(global_size), reversed(group), strict=True):
        groups = size // step
        parts = max(1, min(left, groups))
        left = ceil(left / parts)
        ends = [groups * part // parts * step for part in range(parts + 1)]
        bounds.insert(0, [(a, b - a) for a, b in pairwise(ends)])
    # In the order of the whole: the outermost dimension changes last.
    every = (tuple(reversed(own)) for own in product(*reversed(bounds)))
    return [Piece(tuple(at for at, _ in own), tuple(n for _, n in own)) for own in every]


def most(global_size: Sizes, local_size: Sizes | None) -> int:
    """How many pieces a launch can have: its work-groups."""
    return prod(global_size) // prod(local_size or (1,))


def refusal(text: str, local_size: Sizes | None) -> str | None:
    """Why a kernel cannot be split that is in a program of this text; None where it can."""
    found = UNKNOWN.search(text)
    if found is None and local_size is None:
        found = BY_GROUP.search(text)
    return None if found is None else f"its source asks for {found[0]}"


def for_pieces(text: str, global_size: Sizes, local_size: Sizes | None) -> str:
    """The text of a program whose work-items see the whole launch from each piece of it."""
    if not BY_PIECE.search(text):
        return text
    groups = [n // step for n, step in zip(global_size, local_size or global_size, strict=True)]
    return (
        "#define get_group_id(d) ((get_global_id(d) - get_local_id(d)) / get_local_size(d))\n"
        f"#define get_global_size(d) {_by_dimension(global_size)}\n"
        f"#define get_num_groups(d) {_by_dimension(groups)}\n{text}"
    )


def _by_dimension(sizes: Sequence[int]) -> str:
    chosen = "1"
    for number, size in reversed(list(enumerate(sizes))):
        chosen = f"(d) == {number} ? {size} : {chosen}"
    return f"((size_t)({chosen}))"
