"""What all kernels for products of matrices see of an op: flat sizes, and steps of the batches."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from codl.ir.ops.matmul import MatMul
from codl.kernels.base import ENDS, TensorArg

#: Batch axes that remain at most where neighbours are merged; kernels take this many apart.
MOST_AXES = 3
#: The operands and the product.
A, B, OUT = ENDS[0], TensorArg("input", 1), ENDS[1]


@dataclass(frozen=True)
class Problem:
    """`batches` products of (m, k) and (k, n).

    `axes` are the batch axes with neighbours merged, ones in front; `a` and `b` say for each how
    many matrices one index moves on by, 0 where the operand is stretched.
    """

    m: int
    n: int
    k: int
    axes: tuple[int, ...]
    a: tuple[int, ...]
    b: tuple[int, ...]

    @classmethod
    def of(cls, op: MatMul) -> Problem:
        """Batches that both operands have, or lack, alike are one axis."""
        rank = len(op.batch)
        left, right = (((1,) * rank + sizes[:-2])[-rank:] if rank else () for sizes in op.sizes)
        if max(right, default=1) == 1 and prod(left) == prod(op.batch) and not op.trans_a:
            # Rows of all batches are rows of one matrix.
            still = (0,) * MOST_AXES
            return cls(op.m * prod(left), op.n, op.k, (1,) * MOST_AXES, still, still)
        merged: list[tuple[int, bool, bool]] = []
        for size, in_a, in_b in zip(op.batch, left, right, strict=True):
            if size == 1:
                continue
            alike = (in_a > 1, in_b > 1)
            if merged and merged[-1][1:] == alike:
                size *= merged.pop()[0]
            merged.append((size, *alike))
        merged = [(1, False, False)] * (MOST_AXES - len(merged)) + merged
        axes = tuple(size for size, _, _ in merged)
        steps = (_steps(axes, [m[1 + i] for m in merged]) for i in (0, 1))  # type: ignore[misc]
        return cls(op.m, op.n, op.k, axes, *steps)

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
