"""The sizes of products of matrices, with batch axes merged that lie alike: one op's and many's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from codl.ir.columns import Column, Columns, FeatureColumns

if TYPE_CHECKING:
    from codl.ir.ops.matmul import MatMul


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

    @property
    def mulayer_features(self) -> FeatureColumns:
        return {"f0": self.input_elements, "f1": self.oc}


def _row(op: MatMul) -> tuple[int, ...]:
    m, axes = merged(op)
    matrices = [prod(axis.size for axis in axes if axis[1 + i]) for i in (0, 1)]
    return (
        op.input.n,
        op.output.c,
        *(m, op.n, op.k),
        prod(axis.size for axis in axes),
        *matrices,
        *(bool(op.matrix), op.trans_a, op.trans_b),
    )
