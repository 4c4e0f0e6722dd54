"""Ops on whole tensors as columns: element-wise, concatenation, and those of any other kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import prod
from operator import attrgetter, itemgetter

import numpy as np

from codl.ir.ops.base import Op
from codl.ir.ops.concat import Concat
from codl.ir.ops.conv2d import Conv2d
from codl.ir.ops.eltwise import Eltwise
from codl.ir.ops.fully_connected import FullyConnected
from codl.ir.ops.pool2d import Pool2d
from codl.kernels.columns import Column, Columns, ConvColumns, FcColumns, PoolColumns

_INPUTS = attrgetter("inputs")
_ELTWISE = attrgetter("inputs", "activation.kind")


@dataclass(frozen=True)
class _Tensors(Columns):
    """Ops without weights whose output has images, channels, rows and columns of its own."""

    @property
    def weight_elements(self) -> Column:
        return np.zeros_like(self.images)


@dataclass(frozen=True)
class EltwiseColumns(_Tensors):
    """One input or two: `n`, `c`, `h` and `w` of either, the first again where there is one."""

    c0: Column
    h0: Column
    w0: Column
    n1: Column
    c1: Column
    h1: Column
    w1: Column
    inputs: Column
    is_active: Column

    @staticmethod
    def _rows(ops: Sequence[Eltwise]) -> list[tuple[int, ...]]:
        return [
            (*shapes[0], *shapes[-1], len(shapes), kind != "none")
            for shapes, kind in map(_ELTWISE, ops)
        ]

    @property
    def n0(self) -> Column:
        return self.images

    @cached_property
    def oc(self) -> Column:
        return np.maximum(self.c0, self.c1)

    @cached_property
    def oh(self) -> Column:
        return np.maximum(self.h0, self.h1)

    @cached_property
    def ow(self) -> Column:
        return np.maximum(self.w0, self.w1)

    @cached_property
    def pixels(self) -> Column:
        """Output pixels of one channel."""
        return self.oh * self.ow

    @cached_property
    def stretched(self) -> Column:
        """Inputs whose pixels and the output's differ."""
        first = (self.h0 != self.oh) | (self.w0 != self.ow)
        second = (self.h1 != self.oh) | (self.w1 != self.ow)
        found: Column = first * 1.0 + second * (self.inputs > 1)
        return found

    @cached_property
    def input_elements(self) -> Column:
        second = self.n1 * self.c1 * self.h1 * self.w1 * (self.inputs > 1)
        return self.n0 * self.c0 * self.h0 * self.w0 + second

    @property
    def output_elements(self) -> Column:
        return np.maximum(self.n0, self.n1) * self.oc * self.pixels

    @property
    def flops(self) -> Column:
        return self.output_elements


@dataclass(frozen=True)
class ConcatColumns(_Tensors):
    """Inputs of one height and width; `parts` are their channels, shaped (inputs, ops).

    Ops with fewer inputs than others have parts of 0 channels at the end.
    """

    h: Column
    w: Column
    inputs: Column
    parts: Column

    @classmethod
    def of(cls, ops: Sequence[Concat]) -> ConcatColumns:
        shapes = list(map(_INPUTS, ops))
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

    @cached_property
    def output_elements(self) -> Column:
        return self.images * self.oc * self.pixels

    @property
    def flops(self) -> Column:
        return np.zeros_like(self.images)


@dataclass(frozen=True)
class OtherColumns(Columns):
    """Ops of a kind without columns of its own: what every op says of itself."""

    of_inputs: Column
    of_weights: Column
    of_output: Column
    oc: Column
    of_flops: Column

    @staticmethod
    def _rows(ops: Sequence[Op]) -> list[tuple[int, ...]]:
        rows: list[tuple[int, ...]] = []
        for op in ops:
            output, inputs = op.output, sum(shape.elements for shape in op.inputs)
            weights = sum(prod(shape) for shape in op.weight_shapes.values())
            rows.append((op.input.n, inputs, weights, output.elements, output.c, op.flops))
        return rows

    @property
    def input_elements(self) -> Column:
        return self.of_inputs

    @property
    def weight_elements(self) -> Column:
        return self.of_weights

    @property
    def output_elements(self) -> Column:
        return self.of_output

    @property
    def flops(self) -> Column:
        return self.of_flops


OP_COLUMNS: Mapping[type[Op], type[Columns]] = {
    Conv2d: ConvColumns,
    Pool2d: PoolColumns,
    FullyConnected: FcColumns,
    Eltwise: EltwiseColumns,
    Concat: ConcatColumns,
}


def elements(ops: Sequence[Op]) -> tuple[Column, Column, Column]:
    """Elements of the inputs, the weights and the output of ops of any kinds, each shaped (ops)."""
    inputs, weights, output, _ = amounts(ops)
    return inputs, weights, output


def amounts(ops: Sequence[Op]) -> tuple[Column, Column, Column, Column]:
    """The same, and FLOPs."""
    inputs, weights, output, flops = Sizes(ops).amounts
    return inputs, weights, output, flops


class Sized(list[Op]):
    """Ops of one type, with their columns."""

    def __init__(self, ops: Iterable[Op], columns: Columns) -> None:
        super().__init__(ops)
        self.columns = columns


class Sizes:
    """The sizes of ops of any kinds, read once however often some of the ops are asked about."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._of_type: dict[type[Op], list[int]] = {}
        for at, op in enumerate(ops):
            self._of_type.setdefault(type(op), []).append(at)
        self._place = np.empty(len(ops), np.intp)
        self._columns: dict[type[Op], Columns] = {}
        for cls, places in self._of_type.items():
            self._place[places] = np.arange(len(places))
            self._columns[cls] = OP_COLUMNS.get(cls, OtherColumns).of([ops[at] for at in places])

    @property
    def amounts(self) -> Column:
        """Elements of inputs, weights and output, and FLOPs, shaped (4, ops)."""
        found = np.empty((4, len(self._ops)))
        for cls, places in self._of_type.items():
            own = self._columns[cls]
            sizes = own.input_elements, own.weight_elements, own.output_elements, own.flops
            found[:, places] = sizes
        return found

    def some(self, places: Sequence[int]) -> Sized:
        """Some of the ops, all of one type."""
        ops = [self._ops[at] for at in places]
        return Sized(ops, self._columns[type(ops[0])].take(self._place[places]))


def columns_of(cls: type[Columns], ops: Sequence[Op]) -> Columns:
    """The columns of ops: those that are known, or read of each."""
    known = ops.columns if isinstance(ops, Sized) else None
    return known if isinstance(known, cls) else cls.of(ops)
