"""Products of rows rounded to 8 bits on the GPU: the launch that rounds rows, and tiles of words.

The kernel for a device that is a CPU is in `codl.kernels.cpu_device.matmul_dynamic`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from codl.ir.ops.base import Weights
from codl.ir.ops.matmul import merged
from codl.ir.ops.matmul_quantized import MOST, PER_WORD, MatMulDynamic
from codl.ir.types import ConstantArray
from codl.kernels.base import Arg, Choice, ConstantArg, KernelLaunch, KernelPlan, ScratchArg
from codl.kernels.kernel import launch, of_every_storage
from codl.kernels.matmul import OUT, PER_ITEM, A, B, GpuTiled
from codl.kernels.registry import register
from codl.kernels.rows import RowGrid, sharer_choices
from codl.kernels.source import third_version
from codl.kernels.tiling import ceil_div, round_up
from codl.records.soc import Soc

#: Bytes of what is known of a row (see round_rows.cl).
FACTS = 16
#: With more columns of a no sum of products is sure to be a whole number of 32 bits.
MOST_DEPTH = (1 << 31) // MOST**2
#: The rounded rows, as the launch and the product behind it have them.
ROUNDED: tuple[Arg, ...] = (ScratchArg("rounded"), ScratchArg("facts"))
#: What they are multiplied by.
MATRIX: tuple[Arg, ...] = tuple(map(ConstantArg, ("weight", "scales", "zero_points", "bias")))


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
        return launch(
            "round_rows",
            self.grid.sizes,
            *(A, B, *ROUNDED),
            strip=self.grid.strip,
            rows=self.rows,
            ends=self.op.inputs[1].elements,
            k=self.op.k,
            depth=self.depth,
        )

    @property
    def scratch(self) -> dict[str, int]:
        return {
            "rounded": self.rows * self.depth * self.number_bytes,
            "facts": self.rows * FACTS,
        }


def refuse_depth(op: MatMulDynamic) -> str | None:
    """Why sums of an op may not fit in whole numbers of 32 bits."""
    if op.k > MOST_DEPTH:
        return f"rows must have {MOST_DEPTH} elements at most, got {op.k}"
    return None


class GpuTiledDynamic(GpuTiled):
    """Any rows, by tiles of words in local memory."""

    op_kind = "matmul_dynamic"
    source = "matmul_dynamic/gpu_tiled.cl"
    depth = 8 * PER_WORD

    def refuse(self, op: MatMulDynamic, soc: Soc) -> str | None:
        return refuse_depth(op) or super().refuse(op, soc)

    def build(self, op: MatMulDynamic, soc: Soc, choice: Choice) -> KernelPlan:
        tile, rounding = choice["tile"], Rounding(op, soc, number_bytes=1)
        side, m = tile // PER_ITEM, rounding.rows
        product = launch(
            "matmul_dynamic",
            ((ceil_div(op.n, tile) * side, ceil_div(m, tile) * side, 1), (side, side, 1)),
            *(OUT, *ROUNDED, *MATRIX, ConstantArg("column_sums")),
            m=m,
            n=op.n,
            words=rounding.depth // PER_WORD,
        )
        macros = {"TILE": tile, "DEPTH": choice["depth"] // PER_WORD}
        return self.assemble(
            op,
            soc,
            *(rounding.launch, product),
            macros={**rounding.grid.defines, **macros, **third_version(soc.gpu.opencl_version)},
            pack=partial(_packed, op),
            scratch=rounding.scratch,
        )


def _packed(op: MatMulDynamic, weights: Weights) -> dict[str, ConstantArray]:
    """The words as they are, but for what lies beyond k: zeros."""
    numbers = op.numbers(weights)
    padded = np.pad(numbers, ((0, 0), (0, -op.k % PER_WORD)))
    packed: dict[str, ConstantArray] = {n: np.ascontiguousarray(weights[n]) for n in weights}
    packed["weight"] = padded.view("<u4").astype(np.uint32, copy=False)
    packed["column_sums"] = numbers.sum(axis=1, dtype=np.uint32)
    return packed


register(*of_every_storage(GpuTiledDynamic))
