"""Concatenation along the channels or any axis, and slices taken by their index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import prod
from operator import attrgetter, itemgetter
from random import Random
from typing import ClassVar

import numpy as np

from codl.ir.columns import Column, Columns
from codl.ir.ops.base import Op, SyntheticGroup, Values, Weights, channels, map_size, width
from codl.ir.ops.nd import NdOp, Sizes
from codl.ir.region import Region, Shape, Span


@dataclass(frozen=True)
class ConcatColumns(Columns):
    """Inputs of one height and width; `parts` are their channels, shaped (inputs, ops).

    Ops with fewer inputs than others have parts of 0 channels at the end.
    """

    h: Column
    w: Column
    inputs: Column
    parts: Column

    @classmethod
    def of(cls, ops: Sequence[Concat]) -> ConcatColumns:
        shapes = list(map(attrgetter("inputs"), ops))
        counts = np.fromiter(map(len, shapes), np.intp, len(ops))
        channels = map(itemgetter(1), chain.from_iterable(shapes))
        flat = np.fromiter(channels, np.float64, int(counts.sum()))
        op = np.repeat(np.arange(len(ops)), counts)
        first = np.repeat(np.cumsum(counts) - counts, counts)
        parts = np.zeros((int(counts.max()), len(ops)))
        parts[np.arange(len(flat)) - first, op] = flat
        n, h, w = np.array([(n, h, w) for (n, _, h, w), *_ in shapes], np.float64).T
        return cls(n, h, w, counts.astype(np.float64), parts)

    @cached_property
    def offsets(self) -> Column:
        """The first output channel of every part."""
        offsets: Column = np.cumsum(self.parts, axis=0) - self.parts
        return offsets

    @cached_property
    def oc(self) -> Column:
        total: Column = self.parts.sum(axis=0)
        return total

    @cached_property
    def pixels(self) -> Column:
        """Pixels of one channel."""
        return self.h * self.w

    @property
    def input_elements(self) -> Column:
        return self.output_elements

    @cached_property
    def output_elements(self) -> Column:
        return self.images * self.oc * self.pixels

    @property
    def flops(self) -> Column:
        return np.zeros_like(self.images)


@dataclass(frozen=True, kw_only=True)
class Concat(Op):
    """All inputs share height and width; the output has the channels of one after the other."""

    kind: ClassVar[str] = "concat"
    examples: ClassVar[tuple[str, ...]] = ("concat in=1x64x14x14,1x32x14x14",)
    is_light: ClassVar[bool] = True
    is_batched: ClassVar[bool] = True
    size_columns: ClassVar[type[Columns]] = ConcatColumns
    inner_dims = ("H",)
    synthetic_group = SyntheticGroup("concat", 1)

    @property
    def output(self) -> Shape:
        return self.input._replace(c=sum(shape.c for shape in self.inputs))

    def offset(self, index: int) -> int:
        """The first output channel of input `index`."""
        return sum(shape.c for shape in self.inputs[:index])

    def synthesize(self, other: Op, dice: Random) -> Concat:
        h, w = map_size(self.input, dice)
        times = width(dice)
        shapes = (Shape(1, channels(shape.c * times), h, w) for shape in self.inputs)
        return replace(self, inputs=tuple(shapes))

    def needs(self, part: Region, index: int = 0) -> Region:
        channels = part.channels.since(self.offset(index))
        return part._replace(channels=channels.clip(self.inputs[index].c))

    def restrict(self, part: Region) -> Concat:
        if part.channels != Span(0, self.output.c):
            raise ValueError(f"a concat is split on H or N only, not to {part}")
        size = {"n": part.images.size, "h": part.rows.size}
        shapes = (shape._replace(**size) for shape in self.inputs)
        return replace(self, inputs=tuple(shapes))

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        return np.concatenate(inputs, axis=1)


@dataclass(frozen=True, kw_only=True)
class ConcatNd(NdOp):
    """The inputs one after the other along `axis`; other axes are alike."""

    axis: int

    kind: ClassVar[str] = "concat_nd"
    examples: ClassVar[tuple[str, ...]] = ("concat_nd in=7x5x1,7x5x2 axis=2",)
    flops = 0

    @property
    def out_sizes(self) -> Sizes:
        sizes = list(self.shapes[0])
        sizes[self.axis] = sum(shape[self.axis] for shape in self.shapes)
        return tuple(sizes)

    @property
    def free_axes(self) -> Iterable[int]:
        return (axis for axis in range(len(self.shapes[0])) if axis != self.axis)

    @property
    def rows(self) -> int:
        """Pieces that lie densely in every input."""
        return prod(self.shapes[0][: self.axis])

    def row_size(self, index: int) -> int:
        """Elements of such a piece of input `index`."""
        return prod(self.shapes[index][self.axis :])

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        return np.concatenate(inputs, self.axis)


@dataclass(frozen=True, kw_only=True)
class Gather(NdOp):
    """Slices of the first input along `axis`, by the indices in the second.

    Indices are whole numbers stored as float32, negative ones counted from the end; one that is
    out of range takes the first or the last slice.
    """

    axis: int

    kind: ClassVar[str] = "gather"
    examples: ClassVar[tuple[str, ...]] = ("gather in=100x17,5 axis=0",)
    flops = 0

    @property
    def free_axes(self) -> Iterable[int]:
        return range(len(self.out_sizes))

    def source(self, axis: int, index: int) -> int | None:
        """An axis of the output is one of the indices, or one of the data that stays."""
        behind = axis - self.axis
        axes = len(self.shapes[1])
        if index == 1:
            return behind if 0 <= behind < axes else None
        if behind < 0:
            return axis
        return None if behind < axes else axis - axes + 1

    @property
    def out_sizes(self) -> Sizes:
        data, indices = self.shapes
        return data[: self.axis] + indices + data[self.axis + 1 :]

    @property
    def read_elements(self) -> int:
        """The slices that are taken, and not the table that they are taken from."""
        data, indices = self.inputs
        return min(self.output.elements, data.elements) + indices.elements

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        data, places = inputs
        size = self.shapes[0][self.axis]
        indices = np.trunc(places).astype(np.int64)
        indices = np.clip(np.where(indices < 0, indices + size, indices), 0, size - 1)
        return np.take(data, indices, self.axis)
