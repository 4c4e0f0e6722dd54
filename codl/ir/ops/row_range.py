"""The least and the largest element of each row: what rounding a tensor to few bits goes by."""

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
class RowRange(NdOp):
    """Of each row along the last axis the least element and the largest: (..., k) to (..., 2).

    The range of the whole tensor is that of its rows' ranges, so each processor finds those of the
    rows that it has.
    """

    kind: ClassVar[str] = "row_range"
    examples: ClassVar[tuple[str, ...]] = ("row_range in=5x37", "row_range in=2x3x64")
    is_light: ClassVar[bool] = True

    @property
    def problem(self) -> str | None:
        if len(self.shapes[0]) < 2:
            return f"it takes a tensor of at least two axes, got {self.shapes[0]}."
        return None

    @property
    def rows(self) -> int:
        return prod(self.shapes[0][:-1])

    @property
    def size(self) -> int:
        """Elements of a row."""
        return self.shapes[0][-1]

    @property
    def out_sizes(self) -> Sizes:
        return (*self.shapes[0][:-1], 2)

    @property
    def free_axes(self) -> Iterable[int]:
        return range(len(self.shapes[0]) - 1)

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.size

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        x = inputs[0].reshape(self.shapes[0])
        value = np.stack([x.min(axis=-1), x.max(axis=-1)], axis=-1)
        return self.activation.reference(value.reshape(self.output))
