"""What all kernels for products of matrices see of an op: flat sizes, and steps of the batches."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from codl.ir.ops.matmul import BatchAxis, MatMul, merged
from codl.kernels.base import ENDS, TensorArg

#: Batch axes that remain at most where neighbours are merged; kernels take this many apart.
MOST_AXES = 3
#: The operands and the product.
A, B, OUT = ENDS[0], TensorArg("input", 1), ENDS[1]


@dataclass(frozen=True)
class Problem:
    """`batches` products of (m, k) and (k, n).

    `axes` are the batch axes with neighbours merged, ones in front (`m` may have taken one in);
    `a` and `b` say for each how many matrices one index moves on by, 0 where it is stretched.
    """

    m: int
    n: int
    k: int
    axes: tuple[int, ...]
    a: tuple[int, ...]
    b: tuple[int, ...]

    @classmethod
    def of(cls, op: MatMul) -> Problem:
        """Batches that lie alike are one axis, or more rows."""
        m, found = merged(op)
        front = [BatchAxis(1, in_a=False, in_b=False)] * (MOST_AXES - len(found))
        merged_axes = [*front, *found]
        axes = tuple(axis.size for axis in merged_axes)
        a = _steps(axes, [axis.in_a for axis in merged_axes])
        b = _steps(axes, [axis.in_b for axis in merged_axes])
        return cls(m, op.n, op.k, axes, a, b)

    @property
    def batches(self) -> int:
        return prod(self.axes)

    @property
    def inner(self) -> tuple[int, int]:
        """Batches of one index of the first axis, and of the second."""
        return prod(self.axes[1:]), prod(self.axes[2:])

    def steps(self, a_matrix: int, b_matrix: int) -> tuple[int, ...]:
        """Elements that one index of each axis moves on by, of a and then of b."""
        return (*(a_matrix * step for step in self.a), *(b_matrix * step for step in self.b))


def refusal(op: MatMul) -> str | None:
    """Why no kernel can take the batches of `op` apart."""
    axes = len(Problem.of(op).axes)
    if axes > MOST_AXES:
        return f"batch axes must merge to {MOST_AXES} at most, got {axes}"
    return None


def _steps(axes: tuple[int, ...], present: list[bool]) -> tuple[int, ...]:
    """Matrices of an operand from one index of each axis to the next."""
    steps, matrices = [], 1
    for size, there in zip(reversed(axes), reversed(present), strict=True):
        steps.append(matrices if there else 0)
        matrices *= size if there else 1
    return tuple(reversed(steps))
