"""Max and average pooling, and where the maxima lie; a global one's window is the whole input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from random import Random
from typing import ClassVar, Literal

import numpy as np

from codl.ir.columns import Column, Columns, FeatureColumns
from codl.ir.ops.base import Op, Pad, SyntheticGroup, Values, Weights, channels, map_size, width
from codl.ir.ops.nd import NdOp, Sizes
from codl.ir.ops.window import Size2, WindowColumns, WindowOp
from codl.ir.region import Region, Shape, as_nchw

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
    size_columns: ClassVar[type[Columns]] = PoolColumns
    carries_channels = True

    @property
    def flavor(self) -> str:
        return self.mode

    @property
    def output(self) -> Shape:
        return Shape(self.input.n, self.input.c, *self.out_hw)

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

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        if self.mode == "max":
            most: Values = self.windows(inputs[0], -np.inf).max(axis=(4, 5))
            return most
        total: Values = self.windows(inputs[0], 0.0).sum(axis=(4, 5))
        ones = np.ones(self.input, np.float64)
        counts = self.windows(ones, 1.0 if self.count_pad else 0.0).sum(axis=(4, 5))
        total /= counts
        return total


@dataclass(frozen=True, kw_only=True)
class MaxIndices(NdOp):
    """Indices into the whole input, of the first maximum of each window.

    Elements of an image's channel are counted row by row, or `by_columns`. Indices are stored as
    float32, which is exact up to 2^24.
    """

    kernel: Size2
    stride: Size2 = Size2(1, 1)
    pad: Pad = Pad(0, 0, 0, 0)
    dilation: Size2 = Size2(1, 1)
    by_columns: bool = False

    kind: ClassVar[str] = "max_indices"
    examples: ClassVar[tuple[str, ...]] = ("max_indices in=1x8x14x14 kernel=2 stride=2",)

    @property
    def pooling(self) -> Pool2d:
        """The pooling whose maxima these are."""
        shape = as_nchw(self.shapes[0])
        return Pool2d(
            inputs=(shape,),
            kernel=self.kernel,
            stride=self.stride,
            pad=self.pad,
            dilation=self.dilation,
        )

    @property
    def out_sizes(self) -> Sizes:
        return tuple(self.pooling.output)

    @property
    def flops(self) -> int:
        return self.pooling.flops

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        pooling, (n, c, h, w) = self.pooling, as_nchw(self.shapes[0])
        order = np.arange(h * w, dtype=np.float64).reshape((w, h) if self.by_columns else (h, w))
        places = np.broadcast_to(order.T if self.by_columns else order, (n, c, h, w))
        places = places + np.arange(n * c).reshape(n, c, 1, 1) * (h * w)
        values = pooling.windows(inputs[0].reshape(n, c, h, w), -np.inf)
        first = values.reshape(*self.out_sizes, -1).argmax(-1)
        seen = pooling.windows(places, -1.0).reshape(*self.out_sizes, -1)
        taken: Values = np.take_along_axis(seen, first[..., None], -1)[..., 0]
        return taken
