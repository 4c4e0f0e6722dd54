"""Transposed convolution in two dimensions: every input pixel is spread over a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Dim, Weights
from codl.ir.ops.grouped import GroupedOp
from codl.ir.ops.window import Size2
from codl.ir.region import Region, Shape, Span


@dataclass(frozen=True, kw_only=True)
class ConvTranspose2d(GroupedOp):
    """Input pixel (y, x) and tap (ky, kx) add to row `y * stride + ky * dilation - crop`.

    `size` are the output's rows and columns; `crop` those of the whole result before them, which
    are negative where the output begins before it. `weight` is (out_channels, in_channels / groups,
    kernel h, kernel w), with the output channels first unlike ONNX's; `bias` (out_channels).
    """

    size: Size2
    stride: Size2 = Size2(1, 1)
    crop: Size2 = Size2(0, 0)
    dilation: Size2 = Size2(1, 1)

    kind: ClassVar[str] = "conv_transpose2d"
    examples: ClassVar[tuple[str, ...]] = (
        "conv_transpose2d in=1x64x14x14 oc=32 kernel=4 stride=2 size=28x28 crop=1",
    )
    is_product: ClassVar[bool] = True

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
        """Rows are cut only where no stride jumps over the window."""
        return ("H", "OC") if self.extent.h >= self.stride.h else ("OC",)

    @property
    def extent(self) -> Size2:
        """Rows and columns from the first to the last tap of a window."""
        return Size2(
            (self.kernel.h - 1) * self.dilation.h + 1, (self.kernel.w - 1) * self.dilation.w + 1
        )

    @property
    def output(self) -> Shape:
        return Shape(self.input.n, self.out_channels, *self.size)

    @property
    def flops(self) -> int:
        """Counted per input pixel, as if nothing were cropped."""
        return 2 * self.input.elements * self.out_channels // self.groups * self._taps

    @property
    def _taps(self) -> int:
        return self.kernel.h * self.kernel.w

    def needs(self, part: Region, index: int = 0) -> Region:
        """Rows of which some tap falls on the part; one where there are none."""
        top = part.rows.start + self.crop.h - self.extent.h + 1
        first = min(max(-(-top // self.stride.h), 0), self.input.h - 1)
        last = (part.rows.stop - 1 + self.crop.h) // self.stride.h
        stop = min(max(last + 1, first + 1), self.input.h)
        return Region(part.images, self.group_inputs(part.channels), Span(first, stop))

    def restrict(self, part: Region) -> ConvTranspose2d:
        need = self.needs(part)
        above = self.crop.h + part.rows.start - need.rows.start * self.stride.h
        return replace(
            self,
            inputs=(need.shape(self.input),),
            out_channels=part.channels.size,
            groups=self.group_span(part.channels).size,
            size=Size2(part.rows.size, self.size.w),
            crop=Size2(above, self.crop.w),
        )

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        n, c, h, w = self.input
        x = inputs[0].reshape(n, self.groups, c // self.groups, h, w)
        weight = weights["weight"].astype(np.float64)
        weight = weight.reshape(self.groups, -1, c // self.groups, *self.kernel)
        spread = np.einsum("ngihw,goikl->ngohwkl", x, weight)
        spread = spread.reshape(n, self.out_channels, h, w, *self.kernel)
        # Everything lies in the middle of enough room on all sides.
        lengths = zip(self.crop, self.size, (h, w), self.stride, self.extent, strict=True)
        room = [abs(crop) + size + n * stride + extent for crop, size, n, stride, extent in lengths]
        before = [abs(min(crop, 0)) for crop in self.crop]
        whole = np.zeros((n, self.out_channels, *room))
        for ky in range(self.kernel.h):
            for kx in range(self.kernel.w):
                y = before[0] + ky * self.dilation.h
                x0 = before[1] + kx * self.dilation.w
                rows = slice(y, y + (h - 1) * self.stride.h + 1, self.stride.h)
                columns = slice(x0, x0 + (w - 1) * self.stride.w + 1, self.stride.w)
                whole[:, :, rows, columns] += spread[..., ky, kx]
        top, left = max(self.crop.h, 0), max(self.crop.w, 0)
        out = whole[:, :, top : top + self.size.h, left : left + self.size.w]
        bias = weights["bias"].astype(np.float64)[None, :, None, None]
        return self.activation.reference(out + bias)
