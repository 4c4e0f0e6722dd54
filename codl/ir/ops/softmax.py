"""Softmax along adjacent axes, and its logarithm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Weights
from codl.ir.ops.nd import AxisBlock, NdOp, Sizes


@dataclass(frozen=True, kw_only=True)
class Softmax(NdOp):
    """`axes` are adjacent and ascending; their elements are one distribution."""

    axes: Sizes
    log: bool = False

    kind: ClassVar[str] = "softmax"
    examples: ClassVar[tuple[str, ...]] = (
        "softmax in=64x32 axes=1",
        "softmax in=1x8x14 axes=1 log=1",
    )

    @property
    def flavor(self) -> str:
        return "log" if self.log else ""

    @property
    def rows(self) -> AxisBlock:
        return AxisBlock.around(self.shapes[0], self.axes)

    @property
    def out_sizes(self) -> Sizes:
        return self.shapes[0]

    @property
    def free_axes(self) -> Iterable[int]:
        return (axis for axis in range(len(self.shapes[0])) if axis not in self.axes)

    @property
    def flops(self) -> int:
        """A maximum, a difference, an exponential, a sum and a product for each element."""
        return 5 * self.rows.elements

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        x = inputs[0].reshape(self.rows)
        x = x - x.max(axis=1, keepdims=True)
        total = np.exp(x).sum(axis=1, keepdims=True)
        value = x - np.log(total) if self.log else np.exp(x) / total
        return self.activation.reference(value.reshape(self.output))
