"""Sliding windows: the arithmetic that convolution and pooling share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Dim, Op, Pad
from codl.ir.region import Span


class Size2(NamedTuple):
    """A height and a width."""

    h: int
    w: int

    def __str__(self) -> str:
        return f"{self.h}x{self.w}"


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
        """Rows and columns from the first to the last element of a window."""
        return Size2(
            (self.kernel.h - 1) * self.dilation.h + 1, (self.kernel.w - 1) * self.dilation.w + 1
        )

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
