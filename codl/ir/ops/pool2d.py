"""Max and average pooling; a global pooling is one whose window is the whole input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Pad, Weights
from codl.ir.ops.window import WindowOp
from codl.ir.region import Region, Shape


@dataclass(frozen=True, kw_only=True)
class Pool2d(WindowOp):
    """`count_pad`: whether an average divides by the whole window or by what lies in the input."""

    mode: Literal["max", "avg"] = "max"
    count_pad: bool = False

    kind: ClassVar[str] = "pooling"

    @property
    def acts_on_channels_alone(self) -> bool:
        return True

    @property
    def flavor(self) -> str:
        return self.mode

    @property
    def output(self) -> Shape:
        return Shape(self.input.n, self.input.c, *self.out_hw)

    @property
    def flops(self) -> int:
        return self.kernel.h * self.kernel.w * self.output.elements

    def needs(self, part: Region, index: int = 0) -> Region:
        return part._replace(rows=self.input_rows(part.rows)[0])

    def restrict(self, part: Region) -> Pool2d:
        rows, above, below = self.input_rows(part.rows)
        _, left, _, right = self.pad
        needed = Region(part.images, part.channels, rows)
        return self._with(
            inputs=(needed.shape(self.inputs[0]),), pad=Pad(above, left, below, right)
        )

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        if self.mode == "max":
            return self.activation.reference(self.windows(inputs[0], -np.inf).max(axis=(4, 5)))
        total = self.windows(inputs[0], 0.0).sum(axis=(4, 5))
        ones = np.ones(self.input, np.float64)
        counts = self.windows(ones, 1.0 if self.count_pad else 0.0).sum(axis=(4, 5))
        return self.activation.reference(total / counts)
