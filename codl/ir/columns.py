"""Sizes of many ops of one kind as columns, one entry an op.

Features are formulas over columns. A few dozen array operations give a planner the features of a
thousand parts; a single op is a column of one. Sizes are float64: exact for these integers, and
fast to divide. A kind has its own columns where its kernels' features need more than
`GenericColumns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import starmap
from math import prod
from struct import Struct
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

#: An array shaped (ops); arithmetic takes a plain number in its place.
Column = NDArray[np.float64]
FeatureColumns = dict[str, Column]
C = TypeVar("C", bound="Columns")


@overload
def ceil_div(a: int, b: int) -> int: ...
@overload
def ceil_div(a: Column | float, b: Column | float) -> Column: ...
def ceil_div(a: Column | float, b: Column | float) -> Column | int:
    """Quotient rounded up; of columns, exact for whole numbers below 2^53 / b."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    result: Column = np.ceil(np.divide(a, b))
    return result


@overload
def round_up(a: int, b: int) -> int: ...
@overload
def round_up(a: Column | float, b: Column | float) -> Column: ...
def round_up(a: Column | float, b: Column | float) -> Column | int:
    return ceil_div(a, b) * b


def rest(a: Column | float, b: Column | float) -> Column:
    """Remainder of whole numbers; several times as fast as `np.mod`."""
    result: Column = a - np.floor(np.divide(a, b)) * b
    return result


@dataclass(frozen=True)
class Columns:
    """Base of all columns."""

    images: Column

    @staticmethod
    def _rows(ops: Sequence[Any]) -> list[tuple[int, ...]]:
        """One row of sizes for each op, in the order of the fields."""
        raise NotImplementedError

    @classmethod
    def of(cls: type[C], ops: Sequence[Any]) -> C:
        rows = cls._rows(ops)
        pack = Struct(f"{len(rows[0])}q").pack
        matrix = np.frombuffer(b"".join(starmap(pack, rows)), np.int64).reshape(len(rows), -1)
        return cls(*np.ascontiguousarray(matrix.T, np.float64))

    @property
    def input_elements(self) -> Column:
        raise NotImplementedError

    @property
    def weight_elements(self) -> Column:
        """Elements of all weights; 0 unless a subclass overrides it."""
        return np.zeros_like(self.images)

    @property
    def output_elements(self) -> Column:
        raise NotImplementedError

    @property
    def flops(self) -> Column:
        raise NotImplementedError

    @property
    def mulayer_features(self) -> FeatureColumns:
        """muLayer's f0 = ih * iw * ic and f1 = (k / s)^2 * oc; products add FLOPs."""
        columns: Any = self  # with `oc`, its output channels
        return {"f0": self.input_elements, "f1": columns.oc}

    def __len__(self) -> int:
        return len(self.images)

    def take(self: C, places: NDArray[np.intp] | slice) -> C:
        return type(self)(*(getattr(self, field.name)[..., places] for field in fields(self)))


@dataclass(frozen=True)
class GenericColumns(Columns):
    """Sizes of ops of any kind, from the properties of `Op`."""

    of_inputs: Column
    of_weights: Column
    of_output: Column
    oc: Column
    of_flops: Column

    @staticmethod
    def _rows(ops: Sequence[Any]) -> list[tuple[int, ...]]:
        rows: list[tuple[int, ...]] = []
        for op in ops:
            output, inputs = op.output, op.read_elements
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


class OpsWithColumns(list[Any]):
    def __init__(self, ops: Iterable[Any], columns: Columns) -> None:
        super().__init__(ops)
        self.columns = columns


class ColumnsByType:
    """Columns of ops of several types, computed once and then indexed."""

    def __init__(self, ops: Sequence[Any]) -> None:
        self._ops = ops
        self._of_type: dict[type[Any], list[int]] = {}
        for at, op in enumerate(ops):
            self._of_type.setdefault(type(op), []).append(at)
        self._place = np.empty(len(ops), np.intp)
        self._columns: dict[type[Any], Columns] = {}
        for cls, places in self._of_type.items():
            self._place[places] = np.arange(len(places))
            self._columns[cls] = cls.size_columns.of([ops[at] for at in places])

    @property
    def amounts(self) -> Column:
        """Elements of inputs, weights and output, and FLOPs, shaped (4, ops)."""
        rows = np.empty((4, len(self._ops)))
        for cls, places in self._of_type.items():
            held = self._columns[cls]
            sizes = held.input_elements, held.weight_elements, held.output_elements, held.flops
            rows[:, places] = sizes
        return rows

    def some(self, places: Sequence[int]) -> OpsWithColumns:
        ops = [self._ops[at] for at in places]
        return OpsWithColumns(ops, self._columns[type(ops[0])].take(self._place[places]))


def columns_of(cls: type[Columns], ops: Sequence[Any]) -> Columns:
    """The columns of ops, reused where `ops` are `OpsWithColumns`."""
    columns = ops.columns if isinstance(ops, OpsWithColumns) else None
    return columns if isinstance(columns, cls) else cls.of(ops)
