"""Arrays of tensor regions, for searches that join and compare thousands at once.

A box is a region's first and last images, channels and rows, the first ones with their sign turned:
the smallest box around two is then the larger number in every place, and nothing is a box of very
small ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from operator import mul

import numpy as np
from numpy.typing import NDArray

from codl.ir import Region, Shape
from codl.ir.region import Span

#: Shaped (..., 6).
Boxes = NDArray[np.int64]
#: Shaped like boxes without their last axis.
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
#: What stands in every place of a box of nothing.
NOTHING = -(1 << 31)
#: The number of nothing.
NONE = 0


def box(region: Region | None) -> tuple[int, int, int, int, int, int]:
    """A region's box; of None and of an empty one that of nothing."""
    if region is None or region.is_empty:
        return (NOTHING,) * 6
    (n0, n1), (c0, c1), (y0, y1) = region
    return -n0, n1, -c0, c1, -y0, y1


def region(row: Sequence[int]) -> Region:
    """The region of a box that is not of nothing."""
    n0, n1, c0, c1, y0, y1 = row
    return Region(Span(-n0, n1), Span(-c0, c1), Span(-y0, y1))


def is_something(boxes: Boxes) -> NDArray[np.bool_]:
    return np.asarray(boxes[..., 1] != NOTHING)


def sizes(boxes: Boxes) -> NDArray[np.int64]:
    """Images, channels and rows of boxes that are not of nothing, shaped (..., 3)."""
    return boxes[..., 0::2] + boxes[..., 1::2]


def missing_sizes(held: Boxes, needs: Boxes) -> NDArray[np.int64]:
    """The sizes of what moves to a processor that holds one of `held` and needs one of `needs`.

    For all pairs, as `codl.lower.partition.missing_regions` has it where only what is missing moves:
    (sizes, 3), with duplicates. These are the pieces of the smallest box around both.
    """
    is_held = is_something(held)
    pieces = [] if is_held.all() else [sizes(needs)]
    held = held[is_held, None]
    more = np.maximum(held, needs) - held  # at either end of every axis
    held_sizes = np.broadcast_to(sizes(held), (len(held), len(needs), 3))
    whole = held_sizes + more[..., 0::2] + more[..., 1::2]
    for axis in range(3):
        size = np.concatenate([held_sizes[..., :axis], whole[..., axis:]], axis=-1)
        for end in (0, 1):
            extra = more[..., 2 * axis + end]
            piece = size.copy()
            piece[..., axis] = extra
            pieces.append(piece[extra > 0])
    return np.concatenate(pieces)


def weights_of(shape: Shape) -> NDArray[np.int64]:
    """What a box of a tensor is multiplied by for a number that no other box of it has."""
    radices = [size + 1 for size in shape[:3] for _ in (0, 1)]
    signs = (-1, 1) * 3
    return np.array([sign * prod(radices[at + 1 :]) for at, sign in enumerate(signs)], np.int64)


def count_of(shape: Shape) -> int:
    """More than the number of any box of a tensor, by `weights_of`."""
    return prod((size + 1) ** 2 for size in shape[:3])


class RegionTable:
    """Numbers for regions of tensors, from 1 on, each with a note of how it is stored.

    Tensors of one shape share them. `wholes`, which are the tensors' shapes, `boxes` and `notes`
    are those of every number; a note is a number of the caller's.
    """

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self._shapes = list(dict.fromkeys(shapes))
        self.shapes = {shape: at for at, shape in enumerate(self._shapes)}
        #: What a shape's box is multiplied by, and what is added, for a key that no other has.
        self._weights = np.array([weights_of(shape) for shape in self._shapes])
        self._first_key = np.cumsum([0, *map(count_of, self._shapes)])
        self._known: dict[tuple[int, int], int] = {}
        self.wholes: list[Shape] = [Shape(0, 0, 0, 0)]
        self.boxes: list[tuple[int, ...]] = [(NOTHING,) * 6]
        self.notes: list[int] = [0]

    def of(self, shapes: Numbers, boxes: Boxes, notes: Numbers) -> Numbers:
        """The numbers of boxes (items, 6), none of nothing, with their notes; (items).

        They are of tensors of numbered `shapes` (items).
        """
        box_keys = (boxes * self._weights[shapes]).sum(axis=1) + self._first_key[shapes]
        keys = list(zip(box_keys.tolist(), notes.tolist(), strict=True))
        numbers, places = self._known, dict(zip(keys, range(len(keys)), strict=True))
        for key, at in places.items():
            if key not in numbers:
                self._add(self._shapes[shapes[at]], key, tuple(boxes[at].tolist()))
        return np.array([numbers[key] for key in keys], np.int64)

    def one(self, shape: Shape, row: tuple[int, ...], note: int = 0) -> int:
        """The number of a box of a tensor of a shape; of nothing `NONE`."""
        if row[1] == NOTHING:
            return NONE
        at = self.shapes[shape]
        key = sum(map(mul, self._weights[at].tolist(), row), int(self._first_key[at])), note
        return self._known.get(key) or self._add(shape, key, row)

    def noted(self, number: int, note: int) -> int:
        """The number of the same region with another note."""
        if self.notes[number] == note:
            return number
        return self.one(self.wholes[number], self.boxes[number], note)

    def _add(self, shape: Shape, key: tuple[int, int], row: tuple[int, ...]) -> int:
        self._known[key] = number = len(self.boxes)
        self.wholes.append(shape)
        self.boxes.append(row)
        self.notes.append(key[1])
        return number

    def region(self, number: int) -> Region:
        """A numbered region, which must not be of nothing."""
        return region(self.boxes[number])

    def shape(self, number: int) -> Shape:
        """The shape of such a region."""
        return self.region(number).shape(self.wholes[number])
