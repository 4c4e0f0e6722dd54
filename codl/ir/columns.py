"""The sizes of many ops of one kind, as columns: an entry for every op.

Features are written once, over columns: a planner gets those of a thousand parts at the price of a
few dozen array operations, and a single op is a column of one. All sizes are float64, which holds
such integers exactly and divides them fast. A kind of op has columns of its own where its kernels'
features need more than `GenericColumns`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        raise NotImplementedError

    @property
    def output_elements(self) -> Column:
        raise NotImplementedError

    @property
    def flops(self) -> Column:
        raise NotImplementedError

    @property
    def mulayer_features(self) -> FeatureColumns:
        """What muLayer looks at: F0 = ih * iw * ic, F1 = (k / s)^2 * oc, FLOPs where they count."""
        raise NotImplementedError

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

    @property
    def mulayer_features(self) -> FeatureColumns:
        return {"f0": self.input_elements, "f1": self.oc}
