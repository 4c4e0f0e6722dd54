"""Sliding windows of convolution and pooling: sizes, and input rows of output rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from random import Random
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, Columns, FeatureColumns, ceil_div
from codl.ir.ops.base import (
    Dim,
    Op,
    Pad,
    SyntheticGroup,
    Values,
    Weights,
    channels,
    map_size,
    width,
)
from codl.ir.region import Region, Shape, Span


class Size2(NamedTuple):
    """A height and a width."""

    h: int
    w: int

    def __str__(self) -> str:
        return f"{self.h}x{self.w}"


def extent_of(kernel: Size2, dilation: Size2) -> Size2:
    """Rows and columns that a dilated window spans."""
    return Size2((kernel.h - 1) * dilation.h + 1, (kernel.w - 1) * dilation.w + 1)


@dataclass(frozen=True)
class WindowColumns(Columns):
    """Columns of window ops: input (`ih`, `iw`), kernel, stride, padding and dilation."""

    ic: Column
    ih: Column
    iw: Column
    kh: Column
    kw: Column
    sh: Column
    sw: Column
    top: Column
    left: Column
    bottom: Column
    right: Column
    dh: Column
    dw: Column

    @property
    def input_elements(self) -> Column:
        return self.images * self.ic * self.ih * self.iw

    @cached_property
    def padded_h(self) -> Column:
        return self.ih + self.top + self.bottom

    @cached_property
    def padded_w(self) -> Column:
        return self.iw + self.left + self.right

    @cached_property
    def extent_h(self) -> Column:
        return (self.kh - 1) * self.dh + 1

    @cached_property
    def extent_w(self) -> Column:
        return (self.kw - 1) * self.dw + 1

    @cached_property
    def oh(self) -> Column:
        return np.floor((self.padded_h - self.extent_h) / self.sh) + 1

    @cached_property
    def ow(self) -> Column:
        return np.floor((self.padded_w - self.extent_w) / self.sw) + 1

    @cached_property
    def pixels(self) -> Column:
        return self.oh * self.ow

    @cached_property
    def window(self) -> Column:
        return self.kh * self.kw

    @cached_property
    def is_padded(self) -> NDArray[np.bool_]:
        padded: NDArray[np.bool_] = self.top + self.left + self.bottom + self.right > 0
        return padded

    @cached_property
    def tap_rows(self) -> Column:
        """Window rows inside the input, summed over the windows of an output column."""
        inside = np.zeros_like(self.ih)
        for tap in range(int(self.kh.max())):
            offset = self.top - tap * self.dh
            first = np.maximum(ceil_div(offset, self.sh), 0)
            last = np.minimum(np.floor((offset + self.ih - 1) / self.sh), self.oh - 1)
            inside = inside + np.where(tap < self.kh, np.maximum(last - first + 1, 0), 0)
        return inside


@dataclass(frozen=True, kw_only=True)
class WindowOp(Op):
    """Base of ops whose output elements each depend on a window of the padded input."""

    kernel: Size2
    stride: Size2 = Size2(1, 1)
    pad: Pad = Pad(0, 0, 0, 0)
    dilation: Size2 = Size2(1, 1)

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
        """Rows are cut only if each window overlaps the input, and not padding alone."""
        widest = max(self.pad.top, self.pad.bottom)
        return ("H", "OC") if widest < self.extent.h else ("OC",)

    @property
    def extent(self) -> Size2:
        return extent_of(self.kernel, self.dilation)

    @property
    def synthetic_sizes(self) -> tuple[int, ...]:
        return (*super().synthetic_sizes, self.kernel.h)

    @property
    def out_hw(self) -> Size2:
        (_, _, height, width), (top, left, bottom, right) = self.inputs[0], self.pad
        high, wide = self.extent
        vertical, horizontal = self.stride
        return Size2(
            (height + top + bottom - high) // vertical + 1,
            (width + left + right - wide) // horizontal + 1,
        )

    @property
    def images(self) -> int:
        return self.inputs[0].n

    def input_rows(self, rows: Span) -> tuple[Span, int, int]:
        """Input rows for output `rows`, and the padding above and below this part.

        The paper's Eq. 1 without special cases: the windows of the first and last row, clipped to
        the input. The clipped rows are padding.
        """
        stride, top, size = self.stride.h, self.pad.top, self.inputs[0].h
        first = rows.start * stride - top
        last = (rows.stop - 1) * stride - top + (self.kernel.h - 1) * self.dilation.h + 1
        start, stop = min(max(first, 0), size), min(max(last, 0), size)
        return Span(start, stop), start - first, last - stop

    def windows(self, x: NDArray[np.float64], fill: float) -> NDArray[np.float64]:
        """A view of the padded input, shaped (n, c, out h, out w, kernel h, kernel w)."""
        pad = ((0, 0), (0, 0), (self.pad.top, self.pad.bottom), (self.pad.left, self.pad.right))
        padded = np.pad(x, pad, constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(padded, self.extent, axis=(2, 3))
        view = view[
            :, :, :: self.stride.h, :: self.stride.w, :: self.dilation.h, :: self.dilation.w
        ]
        return view[:, :, : self.out_hw.h, : self.out_hw.w]


#: Reads these attributes in one call per op.
_SIZES = attrgetter("inputs", "kernel", "stride", "pad", "dilation")


@dataclass(frozen=True)
class PoolColumns(WindowColumns):
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
    """Pooling; averages divide by the whole window if `count_pad`, else by its input elements."""

    mode: Literal["max", "avg"] = "max"
    count_pad: bool = False

    kind: ClassVar[str] = "pooling"
    examples: ClassVar[tuple[str, ...]] = (
        "pooling in=1x64x14x14 mode=avg kernel=2 stride=2",
        "pooling in=1x64x14x14 mode=avg kernel=14",
        "pooling in=1x64x14x14 kernel=3 stride=2 pad=1",
    )
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
