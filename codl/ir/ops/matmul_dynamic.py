"""Products with a constant matrix of 8 bits of rows that are rounded to 8 bits on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, Columns, ceil_div
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.matmul import MatMul, MatMulColumns
from codl.ir.ops.matmul_nbits import unpacked
from codl.ir.ops.nd import cuts_of
from codl.ir.region import Region

#: The largest number of 8 bits, the one that is 0 where numbers are signed, and numbers of a word.
MOST, MIDDLE, PER_WORD = 255, 128, 4


@dataclass(frozen=True)
class MatMulDynamicColumns(MatMulColumns):
    """The same with matrices of 8 bits."""

    @property
    def weight_elements(self) -> Column:
        """Of 4 bytes each."""
        return (ceil_div(self.k, PER_WORD) + 3) * self.n


@dataclass(frozen=True, kw_only=True)
class MatMulDynamic(MatMul):
    """`a @ b`, with a rounded to 8 bits and a constant `matrix` b (k, n) of numbers of 8 bits.

    The second input has ranges, (..., 2), as a `row_range` makes them: all of them together, and 0,
    give one scale and one zero point for all of a, as ONNX's DynamicQuantizeLinear defines it. What
    is outside is rounded to an end of the range. Whole numbers are summed exactly.

    Each number of a column stands for scale * (number - zero point). As `weights` there are

    - `weight`: (n, words) of uint32, four numbers in each along k, the first in its lowest bits.
    - `scales`: (n,), `bias`: (n,), and `zero_points`: (n,) of uint32.

    All numbers are unsigned. `signed` says that the model has them less 128: that is what a CPU's
    fastest instructions take, and on CPUs that have none of those they may saturate.
    """

    signed: bool = False

    kind: ClassVar[str] = "matmul_dynamic"
    rounds: ClassVar[bool] = True
    examples: ClassVar[tuple[str, ...]] = (
        "matmul_dynamic in=3x40,3x2 matrix=40x24 signed=1",
        "matmul_dynamic in=2x9x37,2x9x2 matrix=37x21 act=relu",
        "matmul_dynamic in=1x64,1x2 matrix=64x48",
    )
    size_columns: ClassVar[type[Columns]] = MatMulDynamicColumns

    @property
    def flavor(self) -> str:
        return "" if self.signed else "unsigned"

    @property
    def problem(self) -> str | None:
        if len(self.shapes) != 2 or self.shapes[1][-1] != 2:
            return f"it takes rows and their ranges, (..., 2), got {self.shapes}."
        if len(self.matrix) != 2 or self.matrix[0] != self.k:
            return f"matrix must be {self.k} x columns, got {self.matrix}."
        if self.trans_a or self.trans_b or self.alpha != 1:
            return "its operands are neither transposed nor scaled."
        return None

    def source(self, axis: int, index: int) -> int | None:
        """Every part needs all ranges."""
        return super().source(axis, 0) if index == 0 else None

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        n = self.n
        words = -(-self.k // PER_WORD)
        return {"weight": (n, words), "scales": (n,), "zero_points": (n,), "bias": (n,)}

    def weights_of(self, values: Callable[[tuple[int, ...]], Array]) -> Weights:
        """Numbers are bits of such floats."""
        made = dict(super().weights_of(values))
        zeros = made["zero_points"].view(np.uint32) & MOST
        return {**made, "weight": made["weight"].view(np.uint32), "zero_points": zeros}

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, NDArray[Any]]:
        """Those of the output's columns, as views."""
        columns = cuts_of(part, self.out_sizes).get(len(self.out_sizes) - 1)
        own = slice(None) if columns is None else slice(*columns)
        return {name: value[own] for name, value in weights.items()}

    def numbers(self, weights: Weights) -> NDArray[np.uint8]:
        """The matrix (n, k) as it is stored, unsigned."""
        found: NDArray[np.uint8] = unpacked(weights["weight"], 8)[:, : self.k].astype(np.uint8)
        return found

    def reference(
        self, inputs: Sequence[NDArray[np.float64]], weights: Weights
    ) -> NDArray[np.float64]:
        scale, zero = rounding_of(inputs[1])
        a = inputs[0].astype(np.float32).reshape(self.shapes[0])
        rounded = np.clip(np.rint(a / scale), -zero, MOST - zero).astype(np.float64)
        matrix = self.numbers(weights).astype(np.float64) - weights["zero_points"][:, None]
        factors = np.float64(scale * weights["scales"])
        value: NDArray[np.float64] = rounded @ matrix.T * factors + weights["bias"]
        return self.activation.reference(value.reshape(self.output))


def rounding_of(ranges: NDArray[Any]) -> tuple[np.float32, np.float32]:
    """Scale and zero point of a tensor with such ranges of its rows, in float32 as ONNX has it."""
    low, high = np.float32(min(ranges.min(), 0)), np.float32(max(ranges.max(), 0))
    scale = np.float32(1) if low == high else (high - low) / np.float32(MOST)
    return scale, np.rint(np.clip(-low / scale, 0, MOST))
