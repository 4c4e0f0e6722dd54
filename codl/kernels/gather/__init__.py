"""Gather on the GPU, with indices from a tensor: slices are copied as rows."""

from __future__ import annotations

from math import prod

from codl.ir.ops.concat import Gather
from codl.kernels.base import ENDS, Choice, KernelPlan, TensorArg
from codl.kernels.kernel import Grid, Kernel, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div
from codl.records.soc import Soc

#: Slices of fewer elements are gathered element by element.
SHORTEST_ROW = 16
#: Elements of a piece of a row, and about as many of a work-item, on a CPU at most.
LONGEST_PIECE = 4096
LONGEST_STRIP = 8192


class GpuRows(Kernel):
    """Any axis."""

    op_kind = "gather"
    base_name = "gpu_rows"
    source = "gather/gpu_rows.cl"

    def counts(self, op: Gather, soc: Soc, choice: Choice) -> dict[str, float]:
        _, pieces, grid = _pieces(op, soc)
        return {
            "pieces": pieces,
            "single_elements": 0 if _by_rows(op) else op.output.elements,
            **grid.features,
            "output_bytes": self.stored(op.output.elements),
        }

    def build(self, op: Gather, soc: Soc, choice: Choice) -> KernelPlan:
        length, pieces, grid = _pieces(op, soc)
        indices = TensorArg("input", 1)
        gather = launch(
            "gather_rows" if _by_rows(op) else "gather_elements",
            grid.sizes,
            ENDS[0],
            indices,
            ENDS[1],
            strip=grid.strip,
            pieces=pieces,
            length=length,
            size=op.shapes[0][op.axis],
            count=prod(op.shapes[1]),
            slice=_slice(op),
        )
        # Halves count to 2048 alone.
        return self.assemble(op, soc, gather, floats=[indices])


def _slice(op: Gather) -> int:
    """Elements of a slice that lie together."""
    return prod(op.shapes[0][op.axis + 1 :])


def _by_rows(op: Gather) -> bool:
    return _slice(op) >= SHORTEST_ROW


def _pieces(op: Gather, soc: Soc) -> tuple[int, int, Grid]:
    """Elements of a piece, pieces, and who has them."""
    size = _slice(op) if _by_rows(op) else prod(op.shapes[1]) * _slice(op)
    length = min(size, LONGEST_PIECE) if soc.gpu.is_cpu else soc.gpu.vector_width
    pieces = op.output.elements // size * ceil_div(size, length)
    return length, pieces, Grid.of(pieces, 1, ceil_div(LONGEST_STRIP, length), soc)


register(*of_every_storage(GpuRows))
