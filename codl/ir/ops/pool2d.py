"""Max and average pooling; a global pooling is one whose window is the whole input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from random import Random
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, Columns, FeatureColumns
from codl.ir.ops.base import Op, Pad, Weights
from codl.ir.ops.window import Size2, WindowColumns, WindowOp
from codl.ir.region import Region, Shape
from codl.ir.synthesis import SyntheticGroup, channels, map_size, width

#: What is read of ops, together, and without a call for each.
_SIZES = attrgetter("inputs", "kernel", "stride", "pad", "dilation")


@dataclass(frozen=True)
class PoolColumns(WindowColumns):
    """Poolings: as many channels out as in."""

    @staticmethod
    def _rows(ops: Sequence[Pool2d]) -> list[tuple[int, ...]]:
        return [
            (*shape, *kernel, *stride, *pad, *dilation)
            for (shape,), kernel, stride, pad, dilation in map(_SIZES, ops)
        ]

    @property
    def weight_elements(self) -> Column:
        return np.zeros_like(self.ic)

    @property
    def output_elements(self) -> Column:
        return self.images * self.ic * self.pixels

    @property
    def mulayer_features(self) -> FeatureColumns:
        f1 = self.ic * self.window / (self.sh * self.sw)
        return {"f0": self.input_elements, "f1": f1}

    @property
    def flops(self) -> Column:
        return self.window * self.output_elements


@dataclass(frozen=True, kw_only=True)
class Pool2d(WindowOp):
    """`count_pad`: whether an average divides by the whole window or by what lies in the input."""

    mode: Literal["max", "avg"] = "max"
    count_pad: bool = False

    kind: ClassVar[str] = "pooling"
    examples: ClassVar[tuple[str, ...]] = (
        "pooling in=1x64x14x14 mode=avg kernel=2 stride=2",
        "pooling in=1x64x14x14 mode=avg kernel=14",
        "pooling in=1x64x14x14 kernel=3 stride=2 pad=1",
    )
    is_batched: ClassVar[bool] = True
    is_mulayer: ClassVar[bool] = True
    size_columns: ClassVar[type[Columns]] = PoolColumns

    @property
    def carries_channels(self) -> bool:
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

    @property
    def synthetic_group(self) -> SyntheticGroup:
        return SyntheticGroup(f"pooling, {self.mode}", 4 if self.mode == "max" else 3)

    def synthesize(self, other: Op, dice: Random) -> Pool2d:
        is_global = self.kernel == self.input[2:]
        h, w = map_size(self.input, dice, least=1 if is_global else max(self.kernel))
        shape = Shape(1, channels(self.input.c * width(dice)), h, w)
        return replace(self, inputs=(shape,), kernel=Size2(h, w) if is_global else self.kernel)

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
