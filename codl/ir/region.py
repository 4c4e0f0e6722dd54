"""Shapes of tensors, and box-shaped regions of tensors.

A split gives each processor a `Region` of an operator's output, which needs a `Region` of each
input. Halos, chains and data sharing are arithmetic on regions.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple


class Shape(NamedTuple):
    """A tensor's shape: batch, channels, height, width (nchw)."""

    n: int
    c: int
    h: int
    w: int

    @property
    def elements(self) -> int:
        return self.n * self.c * self.h * self.w

    @property
    def bytes(self) -> int:
        """Size in bytes as float32."""
        return 4 * self.elements

    def __str__(self) -> str:
        return "x".join(str(v) for v in self)


def as_nchw(sizes: tuple[int, ...]) -> Shape:
    """Sizes as nchw in the same order: ones appended, axes past the fourth merged.

    A single axis becomes channels, as images would each take a launch.
    """
    if len(sizes) == 1:
        return Shape(1, sizes[0], 1, 1)
    n, c, h = (*sizes, 1, 1, 1)[:3]
    return Shape(n, c, h, prod(sizes[3:]))


class Span(NamedTuple):
    """A half-open range of indices."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return max(self.stop - self.start, 0)

    def clip(self, size: int) -> Span:
        """The part within 0 ... size."""
        return Span(min(max(self.start, 0), size), min(max(self.stop, 0), size))

    def since(self, first: int) -> Span:
        """The same indices, counted from `first`."""
        return Span(self.start - first, self.stop - first)


class Region(NamedTuple):
    """Images, channels and rows of a tensor; columns are always whole."""

    images: Span
    channels: Span
    rows: Span

    @classmethod
    def whole(cls, shape: Shape) -> Region:
        return cls(Span(0, shape.n), Span(0, shape.c), Span(0, shape.h))

    @property
    def is_empty(self) -> bool:
        (n0, n1), (c0, c1), (y0, y1) = self  # searches ask a hundred thousand times
        return n0 >= n1 or c0 >= c1 or y0 >= y1

    def shape(self, of: Shape) -> Shape:
        (n0, n1), (c0, c1), (y0, y1) = self
        return Shape(max(n1 - n0, 0), max(c1 - c0, 0), max(y1 - y0, 0), of.w)

    @property
    def slices(self) -> tuple[slice, slice, slice]:
        """Slices of this region in an array shaped (images, channels, rows, columns)."""
        return slice(*self.images), slice(*self.channels), slice(*self.rows)

    def join(self, other: Region) -> Region:
        """The smallest region that covers both."""
        if self.is_empty:
            return other
        if other.is_empty:
            return self
        (n0, n1), (c0, c1), (y0, y1) = self
        (m0, m1), (d0, d1), (z0, z1) = other
        return Region(
            Span(min(n0, m0), max(n1, m1)),
            Span(min(c0, d0), max(c1, d1)),
            Span(min(y0, z0), max(y1, z1)),
        )

    def meet(self, other: Region) -> Region:
        """The intersection, which may be empty."""
        (n0, n1), (c0, c1), (y0, y1) = self
        (m0, m1), (d0, d1), (z0, z1) = other
        n0, c0, y0 = max(n0, m0), max(c0, d0), max(y0, z0)
        return Region(
            Span(n0, max(n0, min(n1, m1))),
            Span(c0, max(c0, min(c1, d1))),
            Span(y0, max(y0, min(y1, z1))),
        )

    def covers(self, other: Region) -> bool:
        return other.is_empty or self.meet(other) == other

    def minus(self, other: Region) -> tuple[Region, ...]:
        """The region without `other`, as disjoint boxes (at most six)."""
        common = self.meet(other)
        if common.is_empty:
            return () if self.is_empty else (self,)
        (n0, n1), (c0, c1), (y0, y1) = self
        images, channels, rows = common
        pieces = []
        for first, last in ((n0, images.start), (images.stop, n1)):
            if first < last:
                pieces.append(Region(Span(first, last), self.channels, self.rows))
        for first, last in ((c0, channels.start), (channels.stop, c1)):
            if first < last:
                pieces.append(Region(images, Span(first, last), self.rows))
        for first, last in ((y0, rows.start), (rows.stop, y1)):
            if first < last:
                pieces.append(Region(images, channels, Span(first, last)))
        return tuple(pieces)

    def within(self, outer: Region) -> Region:
        """The same region, counted from the first image, channel and row of `outer`."""
        return Region(*(mine.since(its.start) for mine, its in zip(self, outer, strict=True)))

    def __str__(self) -> str:
        (n0, n1), (c0, c1), (y0, y1) = self
        images = "" if (n0, n1) == (0, 1) else f"images {n0}:{n1}, "
        return f"{images}channels {c0}:{c1}, rows {y0}:{y1}"
