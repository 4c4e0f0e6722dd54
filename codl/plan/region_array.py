"""Arrays of tensor regions ("boxes"), to join and compare thousands of regions at once.

A box is (-n0, n1, -c0, c1, -y0, y1) for images n0 ... n1 - 1, channels c0 ... c1 - 1 and rows y0
... y1 - 1. With the negated starts, the smallest box around two boxes is their element-wise
maximum. The empty box has very small entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from operator import mul

import numpy as np
from numpy.typing import NDArray

from codl.ir import Region, Shape
from codl.ir.region import Span

#: Boxes, shaped (..., 6).
Boxes = NDArray[np.int64]
#: Numbers of boxes, parts or layers.
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]
#: Every entry of the empty box.
NOTHING = -(1 << 31)
#: The number of the empty region, and of the empty part.
NONE = 0


def box(region: Region | None) -> tuple[int, int, int, int, int, int]:
    """The box of a region; None and empty regions have the empty box."""
    if region is None or region.is_empty:
        return (NOTHING,) * 6
    (n0, n1), (c0, c1), (y0, y1) = region
    return -n0, n1, -c0, c1, -y0, y1


def region(row: Sequence[int]) -> Region:
    """The region of a box that is not empty."""
    n0, n1, c0, c1, y0, y1 = row
    return Region(Span(-n0, n1), Span(-c0, c1), Span(-y0, y1))


def is_something(boxes: Boxes) -> NDArray[np.bool_]:
    return np.asarray(boxes[..., 1] != NOTHING)


def sizes(boxes: Boxes) -> NDArray[np.int64]:
    """Images, channels and rows of boxes that are not empty, shaped (..., 3)."""
    return boxes[..., 0::2] + boxes[..., 1::2]


def missing_sizes(held: Boxes, needs: Boxes) -> NDArray[np.int64]:
    """The sizes of the regions that move to a processor, for all pairs of `held` and `needs`.

    Shaped (sizes, 3), with duplicates. `codl.lower.partition.missing_regions` has the rule: the
    pieces of the smallest box around both boxes, without the held one.
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
    """The vector whose product with a box of a tensor of this shape is a unique key."""
    radices = [size + 1 for size in shape[:3] for _ in (0, 1)]
    signs = (-1, 1) * 3
    return np.array([sign * prod(radices[at + 1 :]) for at, sign in enumerate(signs)], np.int64)


def count_of(shape: Shape) -> int:
    """An upper bound of the keys by `weights_of`."""
    return prod((size + 1) ** 2 for size in shape[:3])


class RegionTable:
    """Numbers regions of tensors with notes, from 1 on; tensors of one shape share numbers.

    By number, `wholes` has the tensor's shape, `boxes` the box, and `notes` an integer of the
    caller, here a storage order.
    """

    def __init__(self, shapes: Iterable[Shape]) -> None:
        self._shapes = list(dict.fromkeys(shapes))
        self.shapes = {shape: at for at, shape in enumerate(self._shapes)}
        #: A box of shape i has the unique key `weights[i] @ box + first_key[i]`.
        self._weights = np.array([weights_of(shape) for shape in self._shapes])
        self._first_key = np.cumsum([0, *map(count_of, self._shapes)])
        self._known: dict[tuple[int, int], int] = {}
        self.wholes: list[Shape] = [Shape(0, 0, 0, 0)]
        self.boxes: list[tuple[int, ...]] = [(NOTHING,) * 6]
        self.notes: list[int] = [0]

    def of(self, shapes: Numbers, boxes: Boxes, notes: Numbers) -> Numbers:
        """The numbers (items) of non-empty boxes (items, 6) with notes (items).

        `shapes` (items) are the numbers of the tensors' shapes.
        """
        box_keys = (boxes * self._weights[shapes]).sum(axis=1) + self._first_key[shapes]
        keys = list(zip(box_keys.tolist(), notes.tolist(), strict=True))
        numbers, places = self._known, dict(zip(keys, range(len(keys)), strict=True))
        for key, at in places.items():
            if key not in numbers:
                self._add(self._shapes[shapes[at]], key, tuple(boxes[at].tolist()))
        return np.array([numbers[key] for key in keys], np.int64)

    def one(self, shape: Shape, row: tuple[int, ...], note: int = 0) -> int:
        """The number of one box of a tensor of a shape; `NONE` for the empty box."""
        if row[1] == NOTHING:
            return NONE
        at = self.shapes[shape]
        key = sum(map(mul, self._weights[at].tolist(), row), int(self._first_key[at])), note
        return self._known.get(key) or self._add(shape, key, row)

    def noted(self, number: int, note: int) -> int:
        """The number of a numbered region with another note."""
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
        """The region of a number other than `NONE`."""
        return region(self.boxes[number])

    def shape(self, number: int) -> Shape:
        """The shape of the region of a number other than `NONE`."""
        return self.region(number).shape(self.wholes[number])
