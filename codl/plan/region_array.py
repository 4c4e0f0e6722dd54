"""Regions of tensors as rows of numbers, so that thousands are joined at once.

A box is a region's first and last images, channels and rows, the first ones with their sign turned:
the smallest box around two is then the larger number in every place, and nothing is a box of very
small ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    found: NDArray[np.bool_] = boxes[..., 1] != NOTHING
    return found


def sizes(boxes: Boxes) -> NDArray[np.int64]:
    """Images, channels and rows of boxes that are not of nothing, shaped (..., 3)."""
    return boxes[..., 0::2] + boxes[..., 1::2]


def added(held: Sequence[int], joined: Sequence[int], width: int) -> list[Shape]:
    """The shapes of what is in a joined box and not in the one held, of tensors of a width.

    As `Region.minus` has them: before and behind what is held in images, then channels, then rows.
    """
    whole = [first + last for first, last in zip(joined[0::2], joined[1::2], strict=True)]
    if held[1] == NOTHING:
        return [Shape._make((*whole, width))]
    own = [first + last for first, last in zip(held[0::2], held[1::2], strict=True)]
    extra = [more - mine for more, mine in zip(joined, held, strict=True)]
    return [
        Shape._make((*own[: end // 2], extra[end], *whole[end // 2 + 1 :], width))
        for end in range(6)
        if extra[end]
    ]


def weights_of(shape: Shape) -> NDArray[np.int64]:
    """What a box of a tensor is multiplied by for a number that no other box of it has."""
    radices = [size + 1 for size in shape[:3] for _ in (0, 1)]
    signs = (-1, 1) * 3
    return np.array([sign * prod(radices[at + 1 :]) for at, sign in enumerate(signs)], np.int64)


def count_of(shape: Shape) -> int:
    """More than the number of any box of a tensor, by `weights_of`."""
    return prod((size + 1) ** 2 for size in shape[:3])


class Numbering:
    """Numbers for the boxes of some tensors, from 1 on; a tensor's box has one number.

    `tensors` and `boxes` are those of every number.
    """

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self._shapes = shapes
        self._weights = {tensor: weights_of(shape) for tensor, shape in shapes.items()}
        self._known: dict[str, dict[int, int]] = {tensor: {} for tensor in shapes}
        self.tensors: list[str] = [""]
        self.boxes: list[tuple[int, ...]] = [(NOTHING,) * 6]

    def of(self, tensor: str, boxes: Boxes) -> list[int]:
        """The numbers of a tensor's boxes (boxes, 6), none of nothing."""
        known = self._known[tensor]
        keys = (boxes @ self._weights[tensor]).tolist()
        found = [known.get(key, NONE) for key in keys]
        if NONE in found:
            for at, key in enumerate(keys):
                if key not in known:
                    self._add(tensor, key, tuple(boxes[at].tolist()))
                found[at] = known[key]
        return found

    def one(self, tensor: str, row: tuple[int, ...]) -> int:
        """The number of a tensor's box; of nothing `NONE`."""
        if row[1] == NOTHING:
            return NONE
        key = sum(map(mul, self._weights[tensor].tolist(), row))
        return self._known[tensor].get(key) or self._add(tensor, key, row)

    def _add(self, tensor: str, key: int, row: tuple[int, ...]) -> int:
        self._known[tensor][key] = number = len(self.boxes)
        self.tensors.append(tensor)
        self.boxes.append(row)
        return number

    def shape(self, number: int) -> Shape:
        """The shape of a numbered box, which must not be of nothing."""
        n0, n1, c0, c1, y0, y1 = self.boxes[number]
        return Shape(n0 + n1, c0 + c1, y0 + y1, self._shapes[self.tensors[number]].w)
