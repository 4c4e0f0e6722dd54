"""Sliding windows: the arithmetic that convolution and pooling share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, Columns, ceil_div
from codl.ir.ops.base import Dim, Op, Pad
from codl.ir.region import Span


class Size2(NamedTuple):
    """A height and a width."""

    h: int
    w: int

    def __str__(self) -> str:
        return f"{self.h}x{self.w}"


def extent_of(kernel: Size2, dilation: Size2) -> Size2:
    """Rows and columns from the first to the last element of a window."""
    return Size2((kernel.h - 1) * dilation.h + 1, (kernel.w - 1) * dilation.w + 1)


@dataclass(frozen=True)
class WindowColumns(Columns):
    """What slides a window: input (`ih`, `iw`), kernel, stride, padding and dilation."""

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
        """Rows from the first to the last element of a window."""
        return (self.kh - 1) * self.dh + 1

    @cached_property
    def extent_w(self) -> Column:
        return (self.kw - 1) * self.dw + 1

    @cached_property
    def oh(self) -> Column:
        """Rows of the output."""
        return np.floor((self.padded_h - self.extent_h) / self.sh) + 1

    @cached_property
    def ow(self) -> Column:
        return np.floor((self.padded_w - self.extent_w) / self.sw) + 1

    @cached_property
    def pixels(self) -> Column:
        """Output pixels of one channel."""
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
        """Rows of windows that lie in the input, of the windows of one output column."""
        return _inside(self.oh, self.ih, self.kh, (self.sh, self.dh, self.top))

    @cached_property
    def tap_columns(self) -> Column:
        """Columns of windows that lie in the input, of the windows of one output row."""
        return _inside(self.ow, self.iw, self.kw, (self.sw, self.dw, self.left))


def _inside(
    outs: Column, size: Column, taps: Column, step: tuple[Column, Column, Column]
) -> Column:
    """Taps of the windows of `outs` outputs that lie in an input of `size`.

    `step`: the stride, the dilation, and the padding in front.
    """
    stride, dilation, before = step
    inside = np.zeros_like(size)
    for tap in range(int(taps.max())):
        offset = before - tap * dilation
        first = np.maximum(ceil_div(offset, stride), 0)
        last = np.minimum(np.floor((offset + size - 1) / stride), outs - 1)
        inside = inside + np.where(tap < taps, np.maximum(last - first + 1, 0), 0)
    return inside


@dataclass(frozen=True, kw_only=True)
class WindowOp(Op):
    """An op whose output element looks at a window of the padded input."""

    kernel: Size2
    stride: Size2 = Size2(1, 1)
    pad: Pad = Pad(0, 0, 0, 0)
    dilation: Size2 = Size2(1, 1)

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
        """Rows are cut only where every window sees some of the input, and none padding alone."""
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
        """Input rows for output `rows`, and the padding that this part needs above and below.

        The paper's Eq. 1, without a special case: the window of the first and of the last row,
        clipped to the input; what was clipped off is padding.
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
