"""Rotary position embedding on the GPU: work-items have pieces of rows of features."""

from __future__ import annotations

from codl.ir.ops.attention import Rotary
from codl.kernels.base import ENDS, Choice, KernelPlan, TensorArg
from codl.kernels.kernel import Grid, Kernel, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div
from codl.records.soc import Soc

#: Features that a work-item of a CPU has at most, in rows: some microseconds.
LONGEST_STRIP = 1 << 13


class GpuRows(Kernel):
    """Either order of tokens and heads, pairs next to each other or in halves."""

    op_kind = "rotary"
    base_name = "gpu_rows"
    source = "rotary/gpu_rows.cl"

    def counts(self, op: Rotary, soc: Soc, choice: Choice) -> dict[str, float]:
        return {
            "rows": _rows(op),
            "loop_length": op.pairs,
            **_pieces(op, soc)[2].features,
            "output_bytes": self.stored(op.output.elements),
        }

    def build(self, op: Rotary, soc: Soc, choice: Choice) -> KernelPlan:
        length, pieces, grid = _pieces(op, soc)
        x, cosines = op.shapes[:2]
        rotary = launch(
            "rotary_rows",
            grid.sizes,
            *(TensorArg("input", index) for index in range(3)),
            ENDS[1],
            strip=grid.strip,
            pieces=pieces,
            length=length,
            # Rows of x that one image has, and one token, and rows of the tables of one image.
            image_rows=x[1] * x[2],
            token_rows=1 if op.axis == 2 else x[2],
            tokens=op.tokens,
            image_tokens=op.tokens * (cosines[0] > 1),
            pairs=op.pairs,
            features=x[3],
        )
        return self.assemble(op, soc, rotary, macros={"INTERLEAVED": op.interleaved})


def _rows(op: Rotary) -> int:
    n, c, h, _ = op.shapes[0]
    return n * c * h


def _pieces(op: Rotary, soc: Soc) -> tuple[int, int, Grid]:
    """Pairs of a piece, pieces, and who has them."""
    length = op.pairs if soc.gpu.is_cpu else soc.gpu.vector_width
    pieces = _rows(op) * ceil_div(op.pairs, length)
    return length, pieces, Grid.of(pieces, 1, max(1, LONGEST_STRIP // op.shapes[0][3]), soc)


register(*of_every_storage(GpuRows))
