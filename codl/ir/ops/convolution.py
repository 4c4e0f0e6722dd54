"""Two-dimensional convolution and its transpose, with groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from random import Random
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, Columns, FeatureColumns
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
from codl.ir.ops.window import Size2, WindowColumns, WindowOp, extent_of
from codl.ir.region import Region, Shape, Span


@dataclass(frozen=True, kw_only=True)
class GroupedOp(Op):
    """Base of ops with groups of channels; cuts through OC leave groups whole."""

    kernel: Size2
    out_channels: int
    groups: int = 1

    @property
    def problem(self) -> str | None:
        if self.groups < 1:
            return f"groups must be at least 1, got {self.groups}."
        if not self.input.c % self.groups and not self.out_channels % self.groups:
            return None
        return (
            f"groups={self.groups} must divide the {self.input.c} input and "
            f"{self.out_channels} output channels."
        )

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.input.c == self.out_channels

    @property
    def carries_channels(self) -> bool:
        return self.is_depthwise

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        weight = (self.out_channels, self.input.c // self.groups, *self.kernel)
        return {"weight": weight, "bias": (self.out_channels,)}

    @property
    def channel_step(self) -> int:
        return 1 if self.groups == 1 else self.out_channels // self.groups

    def group_span(self, channels: Span) -> Span:
        per_group = self.out_channels // self.groups
        return Span(channels.start // per_group, -(-channels.stop // per_group))

    def group_inputs(self, channels: Span) -> Span:
        """The input channels of the output channels' groups."""
        if self.groups == 1 and channels.start < channels.stop:
            return Span(0, self.input.c)
        groups, per_group = self.group_span(channels), self.input.c // self.groups
        return Span(groups.start * per_group, groups.stop * per_group)


#: Standard deviation of the power of 2 that changes output channels of synthetic ops.
OWN_WIDTH = 0.4
#: Largest synthetic ratio of channels in and out, unless the model's is larger. Inputs of up to
#: `IMAGE` channels keep their number.
CHANNEL_RATIO, IMAGE = 8.0, 4
#: Reads these attributes in one call per op.
_SIZES = attrgetter("inputs", "kernel", "stride", "pad", "dilation", "out_channels", "groups")


@dataclass(frozen=True)
class ConvColumns(WindowColumns):
    oc: Column
    groups: Column

    @staticmethod
    def _rows(ops: Sequence[Conv2d]) -> list[tuple[int, ...]]:
        return [
            (*shape, *kernel, *stride, *pad, *dilation, oc, groups)
            for (shape,), kernel, stride, pad, dilation, oc, groups in map(_SIZES, ops)
        ]

    @cached_property
    def group_ic(self) -> Column:
        return np.floor(self.ic / self.groups)

    @cached_property
    def is_depthwise(self) -> NDArray[np.bool_]:
        depthwise: NDArray[np.bool_] = (
            (self.groups > 1) & (self.groups == self.ic) & (self.groups == self.oc)
        )
        return depthwise

    @property
    def weight_elements(self) -> Column:
        return self.oc * (self.group_ic * self.window + 1)

    @property
    def output_elements(self) -> Column:
        return self.images * self.oc * self.pixels

    @property
    def mulayer_features(self) -> FeatureColumns:
        f1 = self.oc * self.window / (self.sh * self.sw)
        return {"flops": self.flops, "f0": self.input_elements, "f1": f1}

    @property
    def flops(self) -> Column:
        return 2 * self.group_ic * self.window * self.output_elements


@dataclass(frozen=True, kw_only=True)
class Conv2d(GroupedOp, WindowOp):
    """Convolution with zero padding and groups.

    `weight` is (out_channels, in_channels / groups, kernel h, kernel w), `bias` (out_channels).
    """

    kind: ClassVar[str] = "conv2d"
    examples: ClassVar[tuple[str, ...]] = (
        "conv2d in=1x64x14x14 oc=64 kernel=3 pad=1",
        "conv2d in=1x64x14x14 oc=64 kernel=3 pad=1 groups=64",
        "conv2d in=1x64x14x14 oc=64 kernel=3 pad=1 groups=8",
        "conv2d in=1x64x14x14 oc=64 kernel=1",
        "conv2d in=1x64x14x14 oc=64 kernel=7 pad=3",
        "conv2d in=1x64x14x14 oc=2 kernel=3 pad=1",
        "conv2d in=1x64x14x14 oc=32 kernel=5 pad=2",
    )
    is_product: ClassVar[bool] = True
    size_columns: ClassVar[type[Columns]] = ConvColumns

    @property
    def output(self) -> Shape:
        return Shape(self.input.n, self.out_channels, *self.out_hw)

    @property
    def synthetic_group(self) -> SyntheticGroup:
        """Groups by window, since most kernel variants take certain windows only."""
        is_strided = max(self.stride) > 1
        if self.groups > 1:
            name, weight = "groups", 4
        elif self.kernel == (1, 1):
            name, weight = "1x1", 3
        elif self.kernel == (3, 3) and not is_strided:
            name, weight = "3x3", 9
        else:
            name, weight = "other", 4
        return SyntheticGroup(f"conv2d, {name}", weight, is_strided)

    def synthesize(self, other: Op, dice: Random) -> Conv2d:
        h, w = map_size(self.input, dice)
        times = width(dice)
        if self.groups > 1:
            return self._grouped_like(h, w, times)
        is_image = self.input.c <= IMAGE
        c = self.input.c if is_image else channels(self.input.c * times)
        out = channels(self.out_channels * times * 2 ** dice.gauss(0, OWN_WIDTH))
        if not is_image:
            widening = self.out_channels / self.input.c
            most = max(CHANNEL_RATIO, widening, 1 / widening)
            out = channels(min(max(out, c / most), c * most))
        return replace(self, inputs=(Shape(1, c, h, w),), out_channels=out)

    def _grouped_like(self, h: int, w: int, times: float) -> Conv2d:
        """A grouped convolution of other sizes, with equal channels per group."""
        per_group = self.input.c // self.groups
        c = max(1, channels(self.input.c * times) // per_group) * per_group
        groups = c // per_group
        out = self.out_channels // self.groups * groups
        return replace(self, inputs=(Shape(1, c, h, w),), out_channels=out, groups=groups)

    def needs(self, part: Region, index: int = 0) -> Region:
        rows = self.input_rows(part.rows)[0]
        return Region(part.images, self.group_inputs(part.channels), rows)

    def restrict(self, part: Region) -> Conv2d:
        rows, above, below = self.input_rows(part.rows)
        needed = Region(part.images, self.group_inputs(part.channels), rows)
        _, left, _, right = self.pad
        return self._with(
            inputs=(needed.shape(self.inputs[0]),),
            out_channels=part.channels.size,
            groups=self.group_span(part.channels).size,
            pad=Pad(above, left, below, right),
        )

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        taps = self.windows(inputs[0], 0.0)
        n, groups, pixels = self.input.n, self.groups, self.out_hw.h * self.out_hw.w
        weight = weights["weight"].astype(np.float64).transpose(2, 3, 0, 1)
        weight = weight.reshape(*self.kernel, groups, self.out_channels // groups, -1)
        # A matrix product per tap: all taps at once would take as many times the memory.
        sums = np.zeros((n, groups, self.out_channels // groups, pixels))
        for y, x in np.ndindex(*self.kernel):
            sums += weight[y, x] @ taps[..., y, x].reshape(n, groups, -1, pixels)
        out = sums.reshape(self.output)
        out += weights["bias"].astype(np.float64)[None, :, None, None]
        return out


@dataclass(frozen=True, kw_only=True)
class ConvTranspose2d(GroupedOp):
    """Input pixel (y, x) and tap (ky, kx) add to row `y * stride + ky * dilation - crop`.

    `size` are the output's rows and columns. `crop` are rows and columns of the full result before
    the output, negative if the output begins earlier. `weight` is (out_channels, in_channels /
    groups, kernel h, kernel w), unlike ONNX's; `bias` (out_channels).
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
        """Rows are cut only if windows cover all rows, with no stride beyond the extent."""
        return ("H", "OC") if self.extent.h >= self.stride.h else ("OC",)

    @property
    def extent(self) -> Size2:
        return extent_of(self.kernel, self.dilation)

    @property
    def output(self) -> Shape:
        return Shape(self.input.n, self.out_channels, *self.size)

    @property
    def flops(self) -> int:
        """Operations of all input pixels, cropped ones included."""
        taps = self.kernel.h * self.kernel.w
        return 2 * self.input.elements * self.out_channels // self.groups * taps

    def needs(self, part: Region, index: int = 0) -> Region:
        """Input rows with a tap in `part`; at least one row.

        With a stride beyond the window, the first row lies at the part's first row or before it.
        """
        top = part.rows.start + self.crop.h
        first = min(-(-(top - self.extent.h + 1) // self.stride.h), top // self.stride.h)
        first = min(max(first, 0), self.input.h - 1)
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

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        n, c, h, w = self.input
        x = inputs[0].reshape(n, self.groups, c // self.groups, h, w)
        weight = weights["weight"].astype(np.float64)
        weight = weight.reshape(self.groups, -1, c // self.groups, *self.kernel)
        spread = np.einsum("ngihw,goikl->ngohwkl", x, weight)
        spread = spread.reshape(n, self.out_channels, h, w, *self.kernel)
        lengths = zip((h, w), self.stride, self.extent, strict=True)
        full = np.zeros((n, self.out_channels, *((m - 1) * step + e for m, step, e in lengths)))
        for ky, kx in np.ndindex(*self.kernel):
            y, x0 = ky * self.dilation.h, kx * self.dilation.w
            rows = slice(y, y + (h - 1) * self.stride.h + 1, self.stride.h)
            columns = slice(x0, x0 + (w - 1) * self.stride.w + 1, self.stride.w)
            full[:, :, rows, columns] += spread[..., ky, kx]
        ends = zip(self.crop, self.size, full.shape[2:], strict=True)
        room = [(max(-crop, 0), max(crop + size - m, 0)) for crop, size, m in ends]
        top, left = max(self.crop.h, 0), max(self.crop.w, 0)
        out = np.pad(full, ((0, 0), (0, 0), *room))
        out = out[:, :, top : top + self.size.h, left : left + self.size.w]
        bias = weights["bias"].astype(np.float64)[None, :, None, None]
        return out + bias
