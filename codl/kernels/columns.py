"""The sizes of many ops of one kind, as columns: an entry for every op.

Features are written once, over columns: a planner gets those of a thousand parts at the price of a
few dozen array operations, and a single op is a column of one. All sizes are float64, which holds
such integers exactly and divides them fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import starmap
from operator import attrgetter
from struct import Struct
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.conv2d import Conv2d
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.pool2d import Pool2d
from codl.ir.soc import Soc

#: What is read of ops; together, and without a call for each.
_WINDOW = attrgetter("inputs", "kernel", "stride", "pad", "dilation")
_CONV = attrgetter("inputs", "kernel", "stride", "pad", "dilation", "out_channels", "groups")
_FC = attrgetter("inputs", "out_channels")

#: Shaped (ops); in arithmetic a plain number does too.
Column = NDArray[np.float64]
FeatureColumns = dict[str, Column]
C = TypeVar("C", bound="Columns")


def ceil_div(a: Column | float, b: Column | float) -> Column:
    """Exact for whole numbers below 2^53 / b."""
    result: Column = np.ceil(np.divide(a, b))
    return result


def round_up(a: Column | float, b: Column | float) -> Column:
    return ceil_div(a, b) * b


def rest(a: Column | float, b: Column | float) -> Column:
    """What is left of whole numbers after dividing; several times as fast as `np.mod`."""
    result: Column = a - np.floor(np.divide(a, b)) * b
    return result


def halvings(sizes: Column, width: int) -> Column:
    """Steps through `sizes` elements, `width` at a time and the rest by ever narrower vectors."""
    steps = np.floor(sizes / width)
    left = sizes - steps * width
    while width > 1:
        width //= 2
        fits = left >= width
        steps += fits
        left -= fits * float(width)
    return steps


def packed_vectors(channels: Column, width: int) -> Column:
    """Vectors of ncnn's packed layout: as wide as divides the channels, 4 at least, or 1."""
    vectors = channels
    for lanes in (4, 8, 16):
        if lanes <= width:
            vectors = np.where(rest(channels, lanes) == 0, channels / lanes, vectors)
    return vectors


#: Bytes of a core's first-level cache, and caches of the second level that the third is worth:
#: what is larger streams from memory. SoC files do not say; these are usual.
FIRST_LEVEL, THIRD_LEVEL = 1 << 15, 16


def beyond(amount: Column, cache_bytes: float) -> Column:
    """The bytes of something that is read again and again and does not stay in a cache.

    None where it fills half the cache, all where it is half as large again, or where the cache is
    not known (0).
    """
    result: Column = amount * np.clip(amount / max(cache_bytes, 1.0) - 0.5, 0.0, 1.0)
    return result


def by_level(name: str, amount: Column, cache_bytes: float) -> FeatureColumns:
    """Bytes, those from beyond the second-level cache, and those that are far away, in memory."""
    return {
        f"{name}_bytes": amount,
        f"{name}_beyond": beyond(amount, cache_bytes),
        f"{name}_far": beyond(amount, THIRD_LEVEL * cache_bytes),
    }


def gpu_cache_bytes(soc: Soc) -> float:
    """What a core, or the whole GPU, has before the memory or a cache that others share."""
    if soc.gpu.is_cpu:
        return float(soc.cpu.l2_cache_bytes)
    return float(max(soc.gpu.global_mem_cache_size, FIRST_LEVEL))


def single(features: Mapping[str, Column]) -> dict[str, float]:
    """The features of one op from columns of one."""
    return {name: float(values[0]) for name, values in features.items()}


@dataclass(frozen=True)
class Columns:
    """Base of the kinds' columns."""

    images: Column

    @staticmethod
    def _rows(ops: Sequence[Any]) -> list[tuple[int, ...]]:
        """The entries of every op, in the order of the fields."""
        raise NotImplementedError

    @classmethod
    def of(cls: type[C], ops: Sequence[Any]) -> C:
        """The columns of ops, at least one of them."""
        rows = cls._rows(ops)
        pack = Struct(f"{len(rows[0])}q").pack
        matrix = np.frombuffer(b"".join(starmap(pack, rows)), np.int64).reshape(len(rows), -1)
        return cls(*np.ascontiguousarray(matrix.T, np.float64))

    @property
    def input_elements(self) -> Column:
        """Elements of all inputs together."""
        raise NotImplementedError

    @property
    def weight_elements(self) -> Column:
        raise NotImplementedError

    @property
    def output_elements(self) -> Column:
        raise NotImplementedError

    @property
    def flops(self) -> Column:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.images)

    def take(self: C, places: NDArray[np.intp] | slice) -> C:
        """The columns of some of the ops."""
        return type(self)(*(getattr(self, field.name)[..., places] for field in fields(self)))


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
    found = np.zeros_like(size)
    for tap in range(int(taps.max())):
        offset = before - tap * dilation
        first = np.maximum(ceil_div(offset, stride), 0)
        last = np.minimum(np.floor((offset + size - 1) / stride), outs - 1)
        found = found + np.where(tap < taps, np.maximum(last - first + 1, 0), 0)
    return found


@dataclass(frozen=True)
class ConvColumns(WindowColumns):
    """Convolutions: also output channels (`oc`) and groups."""

    oc: Column
    groups: Column

    @staticmethod
    def _rows(ops: Sequence[Conv2d]) -> list[tuple[int, ...]]:
        return [
            (*shape, *kernel, *stride, *pad, *dilation, oc, groups)
            for (shape,), kernel, stride, pad, dilation, oc, groups in map(_CONV, ops)
        ]

    @cached_property
    def group_ic(self) -> Column:
        """Input channels of one group."""
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
    def flops(self) -> Column:
        return 2 * self.group_ic * self.window * self.output_elements


@dataclass(frozen=True)
class PoolColumns(WindowColumns):
    """Poolings: as many channels out as in."""

    @staticmethod
    def _rows(ops: Sequence[Pool2d]) -> list[tuple[int, ...]]:
        return [
            (*shape, *kernel, *stride, *pad, *dilation)
            for (shape,), kernel, stride, pad, dilation in map(_WINDOW, ops)
        ]

    @property
    def weight_elements(self) -> Column:
        return np.zeros_like(self.ic)

    @property
    def output_elements(self) -> Column:
        return self.images * self.ic * self.pixels

    @property
    def flops(self) -> Column:
        return self.window * self.output_elements


@dataclass(frozen=True)
class FcColumns(Columns):
    """Fully connected layers over an input of `ic` x `ih` x `iw`."""

    ic: Column
    ih: Column
    iw: Column
    oc: Column

    @staticmethod
    def _rows(ops: Sequence[FullyConnected]) -> list[tuple[int, ...]]:
        return [(*shape, oc) for (shape,), oc in map(_FC, ops)]

    @cached_property
    def in_features(self) -> Column:
        return self.ic * self.ih * self.iw

    @property
    def input_elements(self) -> Column:
        return self.images * self.in_features

    @property
    def weight_elements(self) -> Column:
        return self.oc * (self.in_features + 1)

    @property
    def output_elements(self) -> Column:
        return self.images * self.oc

    @property
    def flops(self) -> Column:
        return 2 * self.in_features * self.images * self.oc


#: Values of tuning parameters: a column for every op its own, a number for all ops the same.
ChoiceColumns = Mapping[str, Any]


def first_choice(choice: ChoiceColumns) -> dict[str, int]:
    """The choice of the first op of columns."""
    return {name: int(values[0]) for name, values in choice.items()}
