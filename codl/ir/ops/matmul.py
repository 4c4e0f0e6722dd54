"""Products of matrices, one for every index of broadcast batch axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from codl.ir.columns import Column, Columns
from codl.ir.ops.base import Array, Values, Weights
from codl.ir.ops.nd import NdOp, Sizes, cuts_of, resized
from codl.ir.region import Region, Span


class BatchAxis(NamedTuple):
    """Neighbouring batch axes that are one: its size, and which operands have it."""

    size: int
    in_a: bool
    in_b: bool


def merged(op: MatMul) -> tuple[int, list[BatchAxis]]:
    """Rows of a matrix of a, and the batch axes that are left, outermost first.

    Neighbours that both operands have, or lack, alike are one axis. Where b is stretched along the
    innermost, the rows of all its matrices of a are rows of one.
    """
    a, b = op.sizes
    if len(a) == len(b) == 2:
        return op.m, []
    rank = max(len(a), len(b)) - 2
    left, right = (((1,) * rank + sizes[:-2])[-rank:] for sizes in (a, b))
    axes: list[BatchAxis] = []
    for in_a, in_b in zip(left, right, strict=True):
        axis = BatchAxis(max(in_a, in_b), in_a > 1, in_b > 1)
        if axis.size == 1:
            continue
        if axes and axes[-1][1:] == axis[1:]:
            axis = axis._replace(size=axis.size * axes.pop().size)
        axes.append(axis)
    if axes and not axes[-1].in_b and not op.trans_a:
        return op.m * axes[-1].size, axes[:-1]
    return op.m, axes


@dataclass(frozen=True)
class MatMulColumns(Columns):
    """Products of (m, k) and (k, n): so many, of so many matrices of either operand.

    Rows of matrices of a that meet the same matrix of b are rows of one (see `merged`).
    """

    oc: Column
    m: Column
    n: Column
    k: Column
    products: Column
    a_matrices: Column
    b_matrices: Column
    is_constant: Column
    trans_a: Column
    trans_b: Column
    rank: Column

    @staticmethod
    def _rows(ops: Sequence[MatMul]) -> list[tuple[int, ...]]:
        return list(map(_row, ops))

    @property
    def input_elements(self) -> Column:
        of_b = (1 - self.is_constant) * self.b_matrices * self.n
        return (self.a_matrices * self.m + of_b) * self.k

    @property
    def weight_elements(self) -> Column:
        return self.is_constant * (self.k + 1) * self.n

    @property
    def output_elements(self) -> Column:
        return self.products * self.m * self.n

    @property
    def flops(self) -> Column:
        return 2 * self.k * self.output_elements


def _row(op: MatMul) -> tuple[int, ...]:
    m, axes = merged(op)
    matrices = [prod(axis.size for axis in axes if axis[1 + i]) for i in (0, 1)]
    return (
        op.input.n,
        op.output.c,
        *(m, op.n, op.k),
        prod(axis.size for axis in axes),
        *matrices,
        *(bool(op.matrix), op.trans_a, op.trans_b, len(op.out_sizes)),
    )


@dataclass(frozen=True, kw_only=True)
class MatMul(NdOp):
    """`alpha * a @ b`, each of at least two axes, the last two being a matrix.

    `shapes` are a and b or, with a constant b, a alone; then `matrix` is the sizes of b (two axes),
    which with a bias for each column are weights. `trans_a` and `trans_b`: a matrix is stored with
    its rows as columns.
    """

    matrix: Sizes = ()
    trans_a: bool = False
    trans_b: bool = False
    alpha: float = 1.0

    kind: ClassVar[str] = "matmul"
    examples: ClassVar[tuple[str, ...]] = (
        "matmul in=64x32,32x48",
        "matmul in=2x32,48x32 trans_b=1",
        "matmul in=5x32 matrix=32x48",
        "matmul in=2x32 matrix=32x48",
    )
    is_product: ClassVar[bool] = True
    size_columns: ClassVar[type[Columns]] = MatMulColumns

    @property
    def flavor(self) -> str:
        return "constant" if self.matrix else ""

    @property
    def sizes(self) -> tuple[Sizes, Sizes]:
        """Of a and b."""
        return self.shapes[0], self.matrix or self.shapes[1]

    @property
    def m(self) -> int:
        return self.shapes[0][-1 if self.trans_a else -2]

    @property
    def k(self) -> int:
        return self.shapes[0][-2 if self.trans_a else -1]

    @property
    def n(self) -> int:
        return self.sizes[1][-2 if self.trans_b else -1]

    @cached_property
    def batch(self) -> Sizes:
        """The sizes of the output's batch axes."""
        a, b = self.sizes
        return np.broadcast_shapes(a[:-2], b[:-2])

    @cached_property
    def out_sizes(self) -> Sizes:
        return (*self.batch, self.m, self.n)

    @property
    def free_axes(self) -> Iterable[int]:
        """All of them: k is no axis of the output."""
        return range(len(self.out_sizes))

    def source(self, axis: int, index: int) -> int | None:
        """Rows are of a, columns of b, and batches of an operand that is not stretched there."""
        sizes, rank = self.shapes[index], len(self.out_sizes)
        if axis >= rank - 2:
            is_own = index == axis - (rank - 2)
            is_turned = (self.trans_a, self.trans_b)[index]
            return len(sizes) - 2 + (index != is_turned) if is_own else None
        place = axis - (rank - len(sizes))
        return place if place >= 0 and sizes[place] == self.out_sizes[axis] else None

    def parted(self, cuts: Mapping[int, Span]) -> dict[str, Any]:
        columns = cuts.get(len(self.out_sizes) - 1)
        if not self.matrix or columns is None:
            return {}
        return {"matrix": resized(self.matrix, {0 if self.trans_b else 1: columns})}

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, Array]:
        """The columns of the output alone, as views."""
        sizes = self.out_sizes
        columns = cuts_of(part, sizes).get(len(sizes) - 1)
        if not self.matrix or columns is None:
            return dict(weights)
        matrix, part_of_columns = weights["weight"], slice(*columns)
        taken = matrix[part_of_columns] if self.trans_b else matrix[:, part_of_columns]
        return {"weight": taken, "bias": weights["bias"][part_of_columns]}

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weight": self.matrix, "bias": (self.n,)} if self.matrix else {}

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        a = inputs[0]
        b = weights["weight"].astype(np.float64) if self.matrix else inputs[1]
        a = a.swapaxes(-1, -2) if self.trans_a else a
        b = b.swapaxes(-1, -2) if self.trans_b else b
        value = self.alpha * (a @ b)
        if self.matrix:
            value = value + weights["bias"]
        return value
