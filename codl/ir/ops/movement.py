"""Ops that only move elements: an output element is an input element or a constant.

All are separable: an input index depends on one output axis alone. So one table per axis
(`offsets`) describes each op, and one kernel does all. A reshape moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import prod
from operator import attrgetter, itemgetter
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, Columns
from codl.ir.ops.base import (
    Activation,
    Op,
    SyntheticGroup,
    Values,
    Weights,
    channels,
    map_size,
    width,
)
from codl.ir.ops.nd import NdOp, Sizes, resized
from codl.ir.region import Region, Shape, Span


class Origin(NamedTuple):
    """A source axis, with `scale` of its elements for each element of the target axis."""

    axis: int
    scale: int

    def of(self, span: Span) -> Span:
        return Span(span.start * self.scale, span.stop * self.scale)


def origins(to: Sizes, seen: Sizes) -> Mapping[int, Origin]:
    """Axes of `to` whose ranges are ranges of an axis of `seen`, with that source axis.

    `to` and `seen` are two shapes of the same elements. In each smallest group of axes, the
    outermost of `to` maps to the outermost of `seen` if the sizes divide. Axes of size 1 have no
    source.
    """
    ways = {}
    for axes, seen_axes in _groups(to, seen):
        inner, inner_given = (prod(s[a] for a in g[1:]) for s, g in ((to, axes), (seen, seen_axes)))
        if not inner % inner_given:
            ways[axes[0]] = Origin(seen_axes[0], inner // inner_given)
    return ways


def _groups(to: Sizes, seen: Sizes) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest runs of axes of both shapes with equal products, without axes of size 1."""
    sides = (to, seen)
    left = [[axis for axis, size in enumerate(sizes) if size > 1] for sizes in sides]
    if prod(to) != prod(seen) or not prod(to):
        return
    while all(left):
        taken = [[run.pop(0)] for run in left]
        products = [sizes[axes[0]] for sizes, axes in zip(sides, taken, strict=True)]
        while products[0] != products[1]:
            less = int(products[1] < products[0])
            taken[less].append(left[less].pop(0))
            products[less] *= sides[less][taken[less][-1]]
        yield taken[0], taken[1]


#: Input offset, in elements, for each index along one output axis; -1 for none.
Offsets = NDArray[np.int64]

PadMode = Literal["constant", "edge", "reflect", "wrap"]


class Movement(NdOp):
    """Base of ops that move elements; a subclass gives `offsets`."""

    flops = 0

    @property
    def offsets(self) -> tuple[Offsets, ...]:
        """One table for each axis of the output, whose axes may be split further.

        Output element (i, j, ...) is input element `offsets[0][i] + offsets[1][j] + ...`, or `fill`
        where a summand is negative.
        """
        raise NotImplementedError

    @property
    def fill(self) -> float:
        """The value of output elements without an input element."""
        return 0.0


def axis_offsets(sizes: Sizes) -> list[Offsets]:
    """The tables of a dense tensor in its own order."""
    return [np.arange(size) * prod(sizes[axis + 1 :]) for axis, size in enumerate(sizes)]


@dataclass(frozen=True, kw_only=True)
class Transpose(Movement):
    """Output axis i is input axis `perm[i]`.

    `axes` are sizes under which the input is viewed, if not its own. `to` are sizes under which the
    output is viewed. With these, depth-to-space or a channel shuffle is a single transpose.
    """

    perm: Sizes
    axes: Sizes = ()
    to: Sizes = ()

    kind: ClassVar[str] = "transpose"
    examples: ClassVar[tuple[str, ...]] = ("transpose in=100x17 perm=1x0",)

    @property
    def seen(self) -> Sizes:
        return self.axes or self.shapes[0]

    @property
    def out_sizes(self) -> Sizes:
        return self.to or tuple(self.seen[axis] for axis in self.perm)

    @property
    def keeps_order(self) -> bool:
        """Whether only axes of size 1 move."""
        moved = [axis for axis in self.perm if self.seen[axis] > 1]
        return moved == sorted(moved) and self.activation == Activation()

    @cached_property
    def _axis_origins(self) -> Mapping[int, tuple[Origin, Origin]]:
        """For each free output axis, its axis of `seen`, and that axis's axis of the input."""
        moved = tuple(self.seen[axis] for axis in self.perm)
        before, ways = origins(self.seen, self.shapes[0]), {}
        for axis, (place, scale) in origins(self.out_sizes, moved).items():
            if self.perm[place] in before:
                ways[axis] = Origin(self.perm[place], scale), before[self.perm[place]]
        return ways

    @property
    def free_axes(self) -> Iterable[int]:
        return self._axis_origins

    def source(self, axis: int, index: int) -> int:
        return self._axis_origins[axis][1].axis

    def needed(self, axis: int, span: Span) -> Span:
        seen, source = self._axis_origins[axis]
        return source.of(seen.of(span))

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        ways = [(self._axis_origins[axis][0], span) for axis, span in cuts.items()]
        axes = resized(self.axes, {seen.axis: seen.of(span) for seen, span in ways})
        return {"axes": axes, "to": resized(self.to, cuts)}

    @property
    def offsets(self) -> tuple[Offsets, ...]:
        tables = axis_offsets(self.seen)
        return tuple(tables[axis] for axis in self.perm)

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        return np.transpose(inputs[0].reshape(self.seen), self.perm)


@dataclass(frozen=True, kw_only=True)
class SliceNd(Movement):
    """`to` elements along each axis, from `starts` on, in `steps` of any sign.

    `exact` marks integers, which need at least float32's precision.
    """

    starts: Sizes
    steps: Sizes
    to: Sizes
    exact: bool = False

    kind: ClassVar[str] = "slice"
    examples: ClassVar[tuple[str, ...]] = ("slice in=100x100 starts=9x0 steps=1x3 to=20x34",)

    @property
    def out_sizes(self) -> Sizes:
        return self.to

    @property
    def free_axes(self) -> Iterable[int]:
        return range(len(self.to))

    def source(self, axis: int, index: int) -> int:
        return axis

    def needed(self, axis: int, span: Span) -> Span:
        """Input range from the lowest to the highest element of a span of outputs."""
        start, step = self.starts[axis], self.steps[axis]
        ends = (start + step * span.start, start + step * (span.stop - 1))
        return Span(min(ends), max(ends) + 1)

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        starts = list(self.starts)
        for axis, span in cuts.items():
            starts[axis] = 0 if self.steps[axis] > 0 else self.needed(axis, span).size - 1
        return {"starts": tuple(starts), "to": resized(self.to, cuts)}

    @property
    def offsets(self) -> tuple[Offsets, ...]:
        axes = zip(axis_offsets(self.shapes[0]), self.starts, self.steps, self.to, strict=True)
        return tuple(table[start + step * np.arange(n)] for table, start, step, n in axes)

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        x, axes = inputs[0], zip(self.starts, self.steps, self.to, strict=True)
        for axis, (start, step, count) in enumerate(axes):
            x = np.take(x, [start + step * i for i in range(count)], axis)
        return x


@dataclass(frozen=True, kw_only=True)
class TileNd(Movement):
    """The input repeated along each axis, which also broadcasts axes of size 1."""

    repeats: Sizes

    kind: ClassVar[str] = "tile"
    examples: ClassVar[tuple[str, ...]] = ("tile in=1x3x1x40 repeats=2x1x50x1",)

    @property
    def out_sizes(self) -> Sizes:
        return tuple(n * r for n, r in zip(self.shapes[0], self.repeats, strict=True))

    @property
    def free_axes(self) -> Iterable[int]:
        pairs = enumerate(zip(self.shapes[0], self.repeats, strict=True))
        return (axis for axis, (size, repeat) in pairs if 1 in (size, repeat))

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        stretched = {axis: span for axis, span in cuts.items() if self.repeats[axis] > 1}
        return {"repeats": resized(self.repeats, stretched)}

    @property
    def offsets(self) -> tuple[Offsets, ...]:
        # An input axis and its repetitions are two axes of the output.
        pairs = zip(axis_offsets(self.shapes[0]), self.repeats, strict=True)
        tables = [(np.zeros(repeat, np.int64), table) for table, repeat in pairs]
        return tuple(table for pair in tables for table in pair)

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        return np.tile(inputs[0], self.repeats)


@dataclass(frozen=True, kw_only=True)
class PadNd(Movement):
    """Padding with `before` and `after` elements along each axis; negative numbers crop."""

    before: Sizes
    after: Sizes
    mode: PadMode = "constant"
    value: float = 0.0

    kind: ClassVar[str] = "pad"
    examples: ClassVar[tuple[str, ...]] = ("pad in=5x20 before=1x3 after=1x40",)

    @property
    def flavor(self) -> str:
        return self.mode

    @property
    def fill(self) -> float:
        return self.value

    @property
    def out_sizes(self) -> Sizes:
        sides = zip(self.shapes[0], self.before, self.after, strict=True)
        return tuple(size + before + after for size, before, after in sides)

    @property
    def free_axes(self) -> Iterable[int]:
        sides = enumerate(zip(self.before, self.after, strict=True))
        return (axis for axis, ends in sides if ends == (0, 0))

    @property
    def offsets(self) -> tuple[Offsets, ...]:
        tables = []
        sides = zip(axis_offsets(self.shapes[0]), self.before, self.after, strict=True)
        for table, before, after in sides:
            kept = table[max(-before, 0) : table.size - max(-after, 0)]
            wide = (max(before, 0), max(after, 0))
            value: dict[str, Any] = {"constant_values": -1} if self.mode == "constant" else {}
            tables.append(np.pad(kept, wide, self.mode, **value))
        return tuple(tables)

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        x, sides = inputs[0], list(zip(self.before, self.after, strict=True))
        kept = x[tuple(slice(max(-b, 0), n - max(-a, 0))
                       for n, (b, a) in zip(x.shape, sides, strict=True))]  # fmt: skip
        value: dict[str, Any] = {"constant_values": self.value} if self.mode == "constant" else {}
        wide = [(max(before, 0), max(after, 0)) for before, after in sides]
        return np.pad(kept, wide, self.mode, **value)


@dataclass(frozen=True, kw_only=True)
class Reshape(NdOp):
    """The input under the sizes `to`, of equally many elements."""

    to: Sizes

    kind: ClassVar[str] = "reshape"
    examples: ClassVar[tuple[str, ...]] = ("reshape in=1x64x14x14 to=1x12544",)
    is_light: ClassVar[bool] = True
    flops = 0

    @property
    def out_sizes(self) -> Sizes:
        return self.to

    @property
    def keeps_order(self) -> bool:
        return self.activation == Activation()

    @cached_property
    def _origins(self) -> Mapping[int, Origin]:
        return origins(self.to, self.shapes[0])

    @property
    def free_axes(self) -> Iterable[int]:
        return self._origins

    def source(self, axis: int, index: int) -> int:
        return self._origins[axis].axis

    def needed(self, axis: int, span: Span) -> Span:
        return self._origins[axis].of(span)

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        return {"to": resized(self.to, cuts)}

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        return inputs[0]


@dataclass(frozen=True)
class ConcatColumns(Columns):
    """Columns of concatenations; `parts` are channels (inputs, ops), with zeros at the end."""

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
        """The first output channel of each part."""
        offsets: Column = np.cumsum(self.parts, axis=0) - self.parts
        return offsets

    @cached_property
    def oc(self) -> Column:
        total: Column = self.parts.sum(axis=0)
        return total

    @cached_property
    def pixels(self) -> Column:
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
    """Concatenation of channels; inputs have equal height and width."""

    kind: ClassVar[str] = "concat"
    examples: ClassVar[tuple[str, ...]] = ("concat in=1x64x14x14,1x32x14x14",)
    is_light: ClassVar[bool] = True
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
    """Concatenation along `axis`; all other axes are equal."""

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
        """Number of contiguous pieces of each input."""
        return prod(self.shapes[0][: self.axis])

    def row_size(self, index: int) -> int:
        """Elements of a contiguous piece of input `index`."""
        return prod(self.shapes[index][self.axis :])

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        return np.concatenate(inputs, self.axis)


@dataclass(frozen=True, kw_only=True)
class Gather(NdOp):
    """Slices of the first input along `axis`, at the second input's indices.

    Indices are whole numbers in float32; negative ones count from the end. An index out of range
    takes the first or last slice.
    """

    axis: int

    kind: ClassVar[str] = "gather"
    examples: ClassVar[tuple[str, ...]] = ("gather in=100x17,5 axis=0",)
    flops = 0

    @property
    def free_axes(self) -> Iterable[int]:
        return range(len(self.out_sizes))

    def source(self, axis: int, index: int) -> int | None:
        """An output axis is an axis of the indices, or one that stays from the data."""
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
        """Elements of the gathered slices and the indices, not of the whole table."""
        data, indices = self.inputs
        return min(self.output.elements, data.elements) + indices.elements

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        data, places = inputs
        size = self.shapes[0][self.axis]
        indices = np.trunc(places).astype(np.int64)
        indices = np.clip(np.where(indices < 0, indices + size, indices), 0, size - 1)
        return np.take(data, indices, self.axis)
