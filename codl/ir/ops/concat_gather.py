"""Concatenation along any axis, and rows taken by their index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Weights
from codl.ir.ops.nd import NdOp, Sizes


@dataclass(frozen=True, kw_only=True)
class ConcatNd(NdOp):
    """The inputs one after the other along `axis`; other axes are alike."""

    axis: int

    kind: ClassVar[str] = "concat_nd"
    examples: ClassVar[tuple[str, ...]] = ("concat_nd in=7x5x1,7x5x2 axis=2",)

    @property
    def out_sizes(self) -> Sizes:
        sizes = list(self.shapes[0])
        sizes[self.axis] = sum(shape[self.axis] for shape in self.shapes)
        return tuple(sizes)

    @property
    def flops(self) -> int:
        return 0

    @property
    def free_axes(self) -> Iterable[int]:
        return (axis for axis in range(len(self.shapes[0])) if axis != self.axis)

    @property
    def rows(self) -> int:
        """Pieces that lie densely in every input."""
        return prod(self.shapes[0][: self.axis])

    def row_size(self, index: int) -> int:
        """Elements of such a piece of input `index`."""
        return prod(self.shapes[index][self.axis :])

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        shaped = [x.reshape(sizes) for x, sizes in zip(inputs, self.shapes, strict=True)]
        joined = np.concatenate(shaped, self.axis)
        return self.activation.reference(joined.reshape(self.output))


@dataclass(frozen=True, kw_only=True)
class Gather(NdOp):
    """Slices of the first input along `axis`, by the indices in the second.

    Indices are whole numbers stored as float32, negative ones counted from the end; one that is
    out of range takes the first or the last slice.
    """

    axis: int

    kind: ClassVar[str] = "gather"
    examples: ClassVar[tuple[str, ...]] = ("gather in=100x17,5 axis=0",)

    @property
    def free_axes(self) -> Iterable[int]:
        return range(len(self.out_sizes))

    def source(self, axis: int, index: int) -> int | None:
        """An axis of the output is one of the indices, or one of the data that stays."""
        behind = axis - self.axis
        axes = len(self.shapes[1])
        if index == 1:
            return behind if 0 <= behind < axes else None
        if behind < 0:
            return axis
        return None if behind < axes else axis - axes + 1

    @property
    def out_sizes(self) -> Sizes:
        data, indices = self.shapes
        return data[: self.axis] + indices + data[self.axis + 1 :]

    @property
    def flops(self) -> int:
        return 0

    @property
    def read_elements(self) -> int:
        """The slices that are taken, and not the table that they are taken from."""
        data, indices = self.inputs
        return min(self.output.elements, data.elements) + indices.elements

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        data, given = (x.reshape(sizes) for x, sizes in zip(inputs, self.shapes, strict=True))
        size = self.shapes[0][self.axis]
        indices = np.trunc(given).astype(np.int64)
        indices = np.clip(np.where(indices < 0, indices + size, indices), 0, size - 1)
        taken = np.take(data, indices, self.axis)
        return self.activation.reference(taken.reshape(self.output))
