"""The sizes of many ops of one kind, as columns: an entry for every op.

Features are written once, over columns: a planner gets those of a thousand parts at the price of a
few dozen array operations, and a single op is a column of one. All sizes are float64, which holds
such integers exactly and divides them fast. A kind of op has columns of its own where its kernels'
features need more than `GenericColumns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import starmap
from math import prod
from struct import Struct
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

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


@dataclass(frozen=True)
class Columns:
    """Base of the columns of every kind of op."""

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
        """None where a kind does not say otherwise."""
        return np.zeros_like(self.images)

    @property
    def output_elements(self) -> Column:
        raise NotImplementedError

    @property
    def flops(self) -> Column:
        raise NotImplementedError

    @property
    def mulayer_features(self) -> FeatureColumns:
        """What muLayer looks at: F0 = ih * iw * ic, F1 = (k / s)^2 * oc, FLOPs where they count."""
        columns: Any = self  # with `oc`, its output channels
        return {"f0": self.input_elements, "f1": columns.oc}

    def __len__(self) -> int:
        return len(self.images)

    def take(self: C, places: NDArray[np.intp] | slice) -> C:
        """The columns of some of the ops."""
        return type(self)(*(getattr(self, field.name)[..., places] for field in fields(self)))


@dataclass(frozen=True)
class GenericColumns(Columns):
    """Ops of any kind: what every op says of itself."""

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


def elements(ops: Sequence[Any]) -> tuple[Column, Column, Column]:
    """Elements of the inputs, the weights and the output of ops of any kinds, each shaped (ops)."""
    inputs, weights, output, _ = amounts(ops)
    return inputs, weights, output


def amounts(ops: Sequence[Any]) -> tuple[Column, Column, Column, Column]:
    """The same, and FLOPs."""
    inputs, weights, output, flops = ColumnsByType(ops).amounts
    return inputs, weights, output, flops


class OpsWithColumns(list[Any]):
    """Ops of one type, with their columns."""

    def __init__(self, ops: Iterable[Any], columns: Columns) -> None:
        super().__init__(ops)
        self.columns = columns


class ColumnsByType:
    """The sizes of ops of any kinds, read once however often some of the ops are asked about."""

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
        """Some of the ops, all of one type."""
        ops = [self._ops[at] for at in places]
        return OpsWithColumns(ops, self._columns[type(ops[0])].take(self._place[places]))


def columns_of(cls: type[Columns], ops: Sequence[Any]) -> Columns:
    """The columns of ops: those that are known, or read of each."""
    columns = ops.columns if isinstance(ops, OpsWithColumns) else None
    return columns if isinstance(columns, cls) else cls.of(ops)
