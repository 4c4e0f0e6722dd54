"""Which axes stay axes where the same elements are seen under other sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import NamedTuple

from codl.ir.ops.nd import Sizes
from codl.ir.region import Span


class Origin(NamedTuple):
    """The axis that a range of another one lies along, `scale` elements for each of its own."""

    axis: int
    scale: int

    def of(self, span: Span) -> Span:
        return Span(span.start * self.scale, span.stop * self.scale)


def origins(to: Sizes, given: Sizes) -> Mapping[int, Origin]:
    """By axis of `to`, where each range of it is a range of an axis of `given` too.

    Both are sizes of the same elements. So it is of the outermost of some axes that come from
    others, if each of its elements is whole ones of their outermost; axes of size 1 have none.
    """
    found = {}
    for own, theirs in _groups(to, given):
        inner, inner_given = (prod(s[a] for a in g[1:]) for s, g in ((to, own), (given, theirs)))
        if not inner % inner_given:
            found[own[0]] = Origin(theirs[0], inner // inner_given)
    return found


def _groups(to: Sizes, given: Sizes) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest runs of axes that hold the same elements, without those of size 1."""
    sides = (to, given)
    left = [[axis for axis, size in enumerate(sizes) if size > 1] for sizes in sides]
    if prod(to) != prod(given) or not prod(to):
        return
    while all(left):
        taken = [[own.pop(0)] for own in left]
        products = [sizes[axes[0]] for sizes, axes in zip(sides, taken, strict=True)]
        while products[0] != products[1]:
            less = int(products[1] < products[0])
            taken[less].append(left[less].pop(0))
            products[less] *= sides[less][taken[less][-1]]
        yield taken[0], taken[1]
