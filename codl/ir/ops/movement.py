"""Ops that only move elements: every output element is one input element, or a constant.

All are separable: along each axis of the output, an index of the input depends on that axis alone.
So each op is one table an axis (`offsets`), and one kernel does them all. A reshape moves none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from codl.ir.ops.base import Activation, Values, Weights
from codl.ir.ops.nd import NdOp, Sizes, resized
from codl.ir.region import Span


class Origin(NamedTuple):
    """The axis that a range of another one lies along, `scale` elements for each of its own."""

    axis: int
    scale: int

    def of(self, span: Span) -> Span:
        return Span(span.start * self.scale, span.stop * self.scale)


def origins(to: Sizes, seen: Sizes) -> Mapping[int, Origin]:
    """By axis of `to`, where each range of it is a range of an axis of `given` too.

    Both are sizes of the same elements. So it is of the outermost of some axes that come from
    others, if each of its elements is whole ones of their outermost; axes of size 1 have none.
    """
    ways = {}
    for axes, seen_axes in _groups(to, seen):
        inner, inner_given = (prod(s[a] for a in g[1:]) for s, g in ((to, axes), (seen, seen_axes)))
        if not inner % inner_given:
            ways[axes[0]] = Origin(seen_axes[0], inner // inner_given)
    return ways


def _groups(to: Sizes, seen: Sizes) -> Iterator[tuple[list[int], list[int]]]:
    """The smallest runs of axes that hold the same elements, without those of size 1."""
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


#: For every index along one output axis: input elements to go from the first, or -1 for none.
Offsets = NDArray[np.int64]

PadMode = Literal["constant", "edge", "reflect", "wrap"]


class Movement(NdOp):
    """What such ops share: a subclass gives `offsets` and, for the reference, `moved`."""

    flops = 0

    @property
    def offsets(self) -> tuple[Offsets, ...]:
        """One table for every axis of the output as it is written, which may be split further.

        Output element (i, j, ...) is input element `offsets[0][i] + offsets[1][j] + ...`; where
        one of them is negative it is `fill`.
        """
        raise NotImplementedError

    @property
    def fill(self) -> float:
        """The value of elements that come from nowhere."""
        return 0.0

    def moved(self, x: Values) -> Values:
        """The output of an input shaped as in the model."""
        raise NotImplementedError

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        return self.moved(inputs[0])


def axis_offsets(sizes: Sizes) -> list[Offsets]:
    """The tables of a dense tensor in its own order."""
    return [np.arange(size) * prod(sizes[axis + 1 :]) for axis, size in enumerate(sizes)]


@dataclass(frozen=True, kw_only=True)
class Transpose(Movement):
    """Output axis i is input axis `perm[i]`.

    `axes`: the sizes under which the input is seen, where these are not its own; `to`: the sizes
    under which the output is left. So depth-to-space and channel shuffle are one transpose each.
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
        """Where nothing but axes of one element changes its place."""
        moved = [axis for axis in self.perm if self.seen[axis] > 1]
        return moved == sorted(moved) and self.activation == Activation()

    @cached_property
    def _ways(self) -> Mapping[int, tuple[Origin, Origin]]:
        """From a free axis of the output to one of `seen`, and on to one of the input."""
        moved = tuple(self.seen[axis] for axis in self.perm)
        before, ways = origins(self.seen, self.shapes[0]), {}
        for axis, (place, scale) in origins(self.out_sizes, moved).items():
            if self.perm[place] in before:
                ways[axis] = Origin(self.perm[place], scale), before[self.perm[place]]
        return ways

    @property
    def free_axes(self) -> Iterable[int]:
        return self._ways

    def source(self, axis: int, index: int) -> int:
        return self._ways[axis][1].axis

    def needed(self, axis: int, span: Span) -> Span:
        seen, source = self._ways[axis]
        return source.of(seen.of(span))

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        ways = [(self._ways[axis][0], span) for axis, span in cuts.items()]
        axes = resized(self.axes, {seen.axis: seen.of(span) for seen, span in ways})
        return {"axes": axes, "to": resized(self.to, cuts)}

    @property
    def offsets(self) -> tuple[Offsets, ...]:
        tables = axis_offsets(self.seen)
        return tuple(tables[axis] for axis in self.perm)

    def moved(self, x: Values) -> Values:
        return np.transpose(x.reshape(self.seen), self.perm)


@dataclass(frozen=True, kw_only=True)
class SliceNd(Movement):
    """Along every axis `to` elements, the first at `starts`, each `steps` (any sign) further.

    `exact`: they are integers, which no type that is less exact than float32 may hold.
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
        """From the first to the last element that is taken, whichever comes first."""
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

    def moved(self, x: Values) -> Values:
        axes = zip(self.starts, self.steps, self.to, strict=True)
        for axis, (start, step, count) in enumerate(axes):
            x = np.take(x, [start + step * i for i in range(count)], axis)
        return x


@dataclass(frozen=True, kw_only=True)
class TileNd(Movement):
    """The input repeated along every axis; stretching an axis of size 1 is the same."""

    repeats: Sizes

    kind: ClassVar[str] = "tile"
    examples: ClassVar[tuple[str, ...]] = ("tile in=1x3x1x40 repeats=2x1x50x1",)

    @property
    def out_sizes(self) -> Sizes:
        return tuple(n * r for n, r in zip(self.shapes[0], self.repeats, strict=True))

    @property
    def free_axes(self) -> Iterable[int]:
        """Those that are not repeated, and those of one element."""
        pairs = enumerate(zip(self.shapes[0], self.repeats, strict=True))
        return (axis for axis, (size, repeat) in pairs if 1 in (size, repeat))

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        stretched = {axis: span for axis, span in cuts.items() if self.repeats[axis] > 1}
        return {"repeats": resized(self.repeats, stretched)}

    @property
    def offsets(self) -> tuple[Offsets, ...]:
        # An axis of the input and its repetitions are two axes of the output.
        pairs = zip(axis_offsets(self.shapes[0]), self.repeats, strict=True)
        tables = [(np.zeros(repeat, np.int64), table) for table, repeat in pairs]
        return tuple(table for pair in tables for table in pair)

    def moved(self, x: Values) -> Values:
        return np.tile(x, self.repeats)


@dataclass(frozen=True, kw_only=True)
class PadNd(Movement):
    """`before` and `after` are elements added along every axis; negative ones are cut off."""

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
        """Those that nothing is added to or taken from."""
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

    def moved(self, x: Values) -> Values:
        sides = list(zip(self.before, self.after, strict=True))
        kept = x[tuple(slice(max(-b, 0), n - max(-a, 0))
                       for n, (b, a) in zip(x.shape, sides, strict=True))]  # fmt: skip
        value: dict[str, Any] = {"constant_values": self.value} if self.mode == "constant" else {}
        wide = [(max(before, 0), max(after, 0)) for before, after in sides]
        return np.pad(kept, wide, self.mode, **value)


@dataclass(frozen=True, kw_only=True)
class Windows(Movement):
    """All windows along the third of four axes, as (image, window, channel, tap, inner).

    There are `count` of them; windows and taps are seen as images and channels by readers.
    """

    count: int
    kernel: int
    stride: int = 1
    dilation: int = 1

    kind: ClassVar[str] = "windows"
    examples: ClassVar[tuple[str, ...]] = ("windows in=1x8x14x5 count=6 kernel=3 stride=2",)

    @property
    def out_sizes(self) -> Sizes:
        n, c, _, inner = self.shapes[0]
        return (n * self.count, c * self.kernel, inner, 1)

    @property
    def offsets(self) -> tuple[Offsets, ...]:
        images, channels, rows, inner = axis_offsets(self.shapes[0])
        first = np.arange(self.count) * self.stride
        taps = np.arange(self.kernel) * self.dilation
        return (images, rows[first], channels, rows[taps], inner)

    def moved(self, x: Values) -> Values:
        taps = [
            x[:, :, w * self.stride : w * self.stride + (self.kernel - 1) * self.dilation + 1]
            for w in range(self.count)
        ]
        return np.stack([tap[:, :, :: self.dilation] for tap in taps], 1)


@dataclass(frozen=True, kw_only=True)
class Reshape(NdOp):
    """`to` has as many elements as the input."""

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
