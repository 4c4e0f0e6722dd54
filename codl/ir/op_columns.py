"""The sizes of ops of any kinds, as columns: each kind's read once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from codl.ir.columns import Column, Columns
from codl.ir.ops.base import Op


def elements(ops: Sequence[Op]) -> tuple[Column, Column, Column]:
    """Elements of the inputs, the weights and the output of ops of any kinds, each shaped (ops)."""
    inputs, weights, output, _ = amounts(ops)
    return inputs, weights, output


def amounts(ops: Sequence[Op]) -> tuple[Column, Column, Column, Column]:
    """The same, and FLOPs."""
    inputs, weights, output, flops = ColumnsByType(ops).amounts
    return inputs, weights, output, flops


class OpsWithColumns(list[Op]):
    """Ops of one type, with their columns."""

    def __init__(self, ops: Iterable[Op], columns: Columns) -> None:
        super().__init__(ops)
        self.columns = columns


class ColumnsByType:
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
            self._columns[cls] = cls.size_columns.of([ops[at] for at in places])

    @property
    def amounts(self) -> Column:
        """Elements of inputs, weights and output, and FLOPs, shaped (4, ops)."""
        rows = np.empty((4, len(self._ops)))
        for cls, places in self._of_type.items():
            own = self._columns[cls]
            sizes = own.input_elements, own.weight_elements, own.output_elements, own.flops
            rows[:, places] = sizes
        return rows

    def some(self, places: Sequence[int]) -> OpsWithColumns:
        """Some of the ops, all of one type."""
        ops = [self._ops[at] for at in places]
        return OpsWithColumns(ops, self._columns[type(ops[0])].take(self._place[places]))


def columns_of(cls: type[Columns], ops: Sequence[Op]) -> Columns:
    """The columns of ops: those that are known, or read of each."""
    known = ops.columns if isinstance(ops, OpsWithColumns) else None
    return known if isinstance(known, cls) else cls.of(ops)
