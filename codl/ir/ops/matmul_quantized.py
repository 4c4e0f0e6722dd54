"""Products with a constant matrix of whole numbers of few bits, scaled block by block or by column.

Of the latter the rows are rounded to 8 bits on the way (dynamic quantisation).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, Columns, ceil_div
from codl.ir.ops.base import Array, Values, Weights
from codl.ir.ops.matmul import MatMul, MatMulColumns
from codl.ir.ops.nd import cuts_of
from codl.ir.region import Region

#: Bits of a number, numbers of a block, and bits of the words that they are packed into.
BITS, BLOCKS, WORD = (4, 8), (16, 32, 64, 128, 256), 32
#: Those of the weights that are packed words.
PACKED = ("weight", "zero_points")


@dataclass(frozen=True)
class MatMulNBitsColumns(MatMulColumns):
    """The same of packed matrices."""

    bits: Column
    block: Column
    has_zero_points: Column

    @staticmethod
    def _rows(ops: Sequence[Any]) -> list[tuple[int, ...]]:
        rows = MatMulColumns._rows(ops)
        return [
            (*row, op.bits, op.block, op.zero_points) for row, op in zip(rows, ops, strict=True)
        ]

    @property
    def blocks(self) -> Column:
        """Of a column."""
        return ceil_div(self.k, self.block)

    @property
    def depth_step(self) -> Column:
        return WORD / self.bits

    @property
    def weight_elements(self) -> Column:
        """Of 4 bytes each."""
        numbers = self.blocks * self.block * self.bits / WORD
        zeros = self.has_zero_points * ceil_div(self.blocks * self.bits, WORD)
        return (numbers + self.blocks + zeros + 1) * self.n


@dataclass(frozen=True, kw_only=True)
class PackedMatMul(MatMul):
    """A product with a constant `matrix` of few bits, of whose weights columns are rows."""

    @property
    def problem(self) -> str | None:
        if len(self.matrix) != 2 or self.matrix[0] != self.k:
            return f"matrix must be {self.k} x columns, got {self.matrix}."
        if self.trans_a or self.trans_b or self.alpha != 1:
            return "its operands are neither transposed nor scaled."
        return None

    def restrict_weights(self, weights: Weights, part: Region) -> dict[str, NDArray[Any]]:
        """Those of the output's columns, as views."""
        columns = cuts_of(part, self.out_sizes).get(len(self.out_sizes) - 1)
        rows = slice(None) if columns is None else slice(*columns)
        return {name: value[rows] for name, value in weights.items()}


@dataclass(frozen=True, kw_only=True)
class MatMulNBits(PackedMatMul):
    """`a @ b`, where b is a constant `matrix` (k, n) of unsigned numbers of `bits` bits.

    A column's numbers are cut in blocks of `block` along k, the last one filled up with any. Each
    stands for scale * (number - zero point), with a scale and a zero point for every block; that is
    the middle, 2 ^ (bits - 1), where the op has no `zero_points`. As `weights` there are

    - `weight`: (n, words) of uint32. Number i of a word lies at its bits from `bits` * i on.
    - `scales`: (n, blocks).
    - `zero_points`: (n, words) of uint32, packed in the same way.
    - `bias`: (n,).

    With `int8` a kernel may round a to 8 bits, block by block.
    """

    bits: int
    block: int
    zero_points: bool = False
    int8: bool = False

    kind: ClassVar[str] = "matmul_nbits"
    examples: ClassVar[tuple[str, ...]] = (
        "matmul_nbits in=3x40 matrix=40x24 bits=4 block=16 zero_points=1",
        "matmul_nbits in=2x9x64 matrix=64x40 bits=8 block=32 act=relu",
        "matmul_nbits in=1x64 matrix=64x48 bits=4 block=32",
    )
    size_columns: ClassVar[type[Columns]] = MatMulNBitsColumns

    @property
    def flavor(self) -> str:
        return f"{self.bits}bits{'_int8' if self.int8 else ''}"

    @property
    def problem(self) -> str | None:
        if self.bits not in BITS:
            return f"bits must be {' or '.join(map(str, BITS))}, got {self.bits}."
        if self.block not in BLOCKS:
            return f"block must be one of {', '.join(map(str, BLOCKS))}, got {self.block}."
        return super().problem

    @property
    def blocks(self) -> int:
        """Of a column."""
        return -(-self.k // self.block)

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        n, blocks = self.n, self.blocks
        shapes: dict[str, tuple[int, ...]] = {
            "weight": (n, blocks * self.block * self.bits // WORD),
            "scales": (n, blocks),
            "bias": (n,),
        }
        if self.zero_points:
            shapes["zero_points"] = (n, -(-blocks * self.bits // WORD))
        return shapes

    def weights_of(self, values: Callable[[tuple[int, ...]], Array]) -> Weights:
        """Words are the bits of such floats."""
        made = super().weights_of(values)
        return {n: v.view(np.uint32) if n in PACKED else v for n, v in made.items()}

    def dequantized(self, weights: Weights) -> Values:
        """The matrix (k, n) that the weights stand for."""
        n, blocks = self.n, self.blocks
        values = unpacked(weights["weight"], self.bits).reshape(n, blocks, self.block)
        if self.zero_points:
            values -= unpacked(weights["zero_points"], self.bits)[:, :blocks, None]
        else:
            values -= 1 << (self.bits - 1)
        values *= weights["scales"][..., None]
        matrix: Values = values.reshape(n, -1)[:, : self.k].T
        return matrix

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        result: Values = inputs[0] @ self.dequantized(weights) + weights["bias"]
        return result


def unpacked(words: NDArray[np.uint32], bits: int) -> Values:
    """The numbers of rows of words, from the lowest bits on."""
    shifts = np.arange(0, WORD, bits, dtype=np.uint32)
    numbers = words[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return np.asarray(numbers.reshape(words.shape[0], -1), np.float64)


def packed(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Rows of numbers below 2 ^ `bits` as words, filled up with zeros."""
    per_word = WORD // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % per_word)))
    pieces = padded.reshape(len(numbers), -1, per_word).astype(np.uint32)
    shifts = np.arange(0, WORD, bits, dtype=np.uint32)
    return np.ascontiguousarray(np.bitwise_or.reduce(pieces << shifts, axis=2))


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
class MatMulDynamic(PackedMatMul):
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
        return super().problem

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

    def numbers(self, weights: Weights) -> NDArray[np.uint8]:
        """The matrix (n, k) as it is stored, unsigned."""
        numbers: NDArray[np.uint8] = unpacked(weights["weight"], 8)[:, : self.k].astype(np.uint8)
        return numbers

    def computed(self, inputs: Sequence[Values], weights: Weights) -> Values:
        scale, zero = rounding_of(inputs[1])
        a = inputs[0].astype(np.float32)
        rounded = np.clip(np.rint(a / scale), -zero, MOST - zero).astype(np.float64)
        matrix = self.numbers(weights).astype(np.float64) - weights["zero_points"][:, None]
        factors = np.float64(scale * weights["scales"])
        value: Values = rounded @ matrix.T * factors + weights["bias"]
        return value


def rounding_of(ranges: NDArray[Any]) -> tuple[np.float32, np.float32]:
    """Scale and zero point of a tensor with such ranges of its rows, in float32 as ONNX has it."""
    low, high = np.float32(min(ranges.min(), 0)), np.float32(max(ranges.max(), 0))
    scale = np.float32(1) if low == high else (high - low) / np.float32(MOST)
    return scale, np.rint(np.clip(-low / scale, 0, MOST))
