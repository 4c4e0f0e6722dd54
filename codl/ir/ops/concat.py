"""Concatenation along the channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter, itemgetter
from random import Random
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, Columns, FeatureColumns
from codl.ir.ops.base import Dim, Op, Weights
from codl.ir.region import Region, Shape, Span
from codl.ir.synthesis import SyntheticGroup, channels, map_size, width


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
        found: Column = np.cumsum(self.parts, axis=0) - self.parts
        return found

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

    @property
    def weight_elements(self) -> Column:
        return np.zeros_like(self.images)

    @cached_property
    def output_elements(self) -> Column:
        return self.images * self.oc * self.pixels

    @property
    def mulayer_features(self) -> FeatureColumns:
        return {"f0": self.input_elements, "f1": self.oc}

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

    @property
    def inner_dims(self) -> tuple[Dim, ...]:
        return ("H",)

    @property
    def output(self) -> Shape:
        return self.input._replace(c=sum(shape.c for shape in self.inputs))

    @property
    def flops(self) -> int:
        return 0

    def offset(self, index: int) -> int:
        """The first output channel of input `index`."""
        return sum(shape.c for shape in self.inputs[:index])

    @property
    def synthetic_group(self) -> SyntheticGroup:
        return SyntheticGroup("concat", 1)

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

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        return self.activation.reference(np.concatenate(inputs, axis=1))
