"""The launch that rounds rows to whole numbers before they are multiplied."""

from __future__ import annotations

from dataclasses import dataclass

from codl.ir.ops.matmul import merged
from codl.ir.ops.matmul_quantized import MOST, PER_WORD, MatMulDynamic
from codl.kernels.base import ConstantArg, KernelLaunch, ScratchArg
from codl.kernels.matmul.problem import A, B
from codl.kernels.rows import RowGrid, sharer_choices
from codl.kernels.tiling import round_up
from codl.records.soc import Soc

#: Bytes of what is known of a row (see round_rows.cl).
FACTS = 16
#: With more columns of a no sum of products is sure to be a whole number of 32 bits.
MOST_DEPTH = (1 << 31) // MOST**2
#: The rounded rows, as the launch and the product behind it have them.
ROUNDED = (ScratchArg("rounded"), ScratchArg("facts"))
#: What they are multiplied by.
MATRIX = tuple(map(ConstantArg, ("weight", "scales", "zero_points", "bias")))


@dataclass(frozen=True)
class Rounding:
    """Rows as whole numbers of `number_bytes` each, to whole words of numbers."""

    op: MatMulDynamic
    soc: Soc
    number_bytes: int

    @property
    def rows(self) -> int:
        return merged(self.op)[0]

    @property
    def depth(self) -> int:
        return round_up(self.op.k, PER_WORD)

    @property
    def grid(self) -> RowGrid:
        k = self.op.k
        return RowGrid.of(self.rows, k, sharer_choices(k, self.soc)[0], self.soc)

    @property
    def launch(self) -> KernelLaunch:
        grid, ends = self.grid, self.op.inputs[1].elements
        sizes = (grid.strip, self.rows, ends, self.op.k, self.depth)
        return KernelLaunch("round_rows", grid.sizes[0], (A, B, *ROUNDED, *sizes), grid.sizes[1])

    @property
    def scratch(self) -> dict[str, int]:
        return {
            "rounded": self.rows * self.depth * self.number_bytes,
            "facts": self.rows * FACTS,
        }


def refusal(op: MatMulDynamic) -> str | None:
    """Why sums of an op may not fit in whole numbers of 32 bits."""
    if op.k > MOST_DEPTH:
        return f"rows must have {MOST_DEPTH} elements at most, got {op.k}"
    return None
