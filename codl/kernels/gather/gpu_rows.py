"""Gather on the GPU, with indices from a tensor: slices are copied as rows."""

from __future__ import annotations

from math import prod
from typing import ClassVar

from codl.ir.ops.concat import Gather
from codl.ir.types import PLANAR
from codl.kernels.base import Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc

#: Slices of fewer elements are gathered element by element.
SHORTEST_ROW = 16
#: Elements of a piece of a row, and about as many of a work-item, on a CPU at most.
LONGEST_PIECE = 4096
LONGEST_STRIP = 8192


class GpuRows(ForPlanar):
    """Any axis."""

    base_name: ClassVar[str] = "gpu_rows"
    op_kind: ClassVar[str] = "gather"

    def choices(self, op: Gather, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Gather, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        _, pieces, each = _pieces(op, soc)
        items = ceil_div(pieces, each)
        return {
            "pieces": float(pieces),
            "single_elements": 0.0 if _by_rows(op) else float(op.output.elements),
            "work_items": float(items),
            "waves": waves(items, soc),
            "output_bytes": self.stored_bytes(op.output.bytes),
        }

    def plan(self, op: Gather, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        length, pieces, each = _pieces(op, soc)
        global_size, local_size = item_grid(ceil_div(pieces, each), 1, soc)
        tensors = (TensorArg("input", 0), TensorArg("input", 1), TensorArg("output"))
        sizes = (op.shapes[0][op.axis], prod(op.shapes[1]), _slice(op))
        kernel = "gather_rows" if _by_rows(op) else "gather_elements"
        args = (*tensors, each, pieces, length, *sizes)
        return KernelPlan(
            source="gather/gpu_rows.cl",
            launches=(KernelLaunch(kernel, global_size, args, local_size),),
            defines=base_defines(op.activation, soc, self.storage),
            # Halves count to 2048 alone, so indices are floats.
            storages={**dict.fromkeys(tensors, self.storage), tensors[1]: PLANAR},
            whole_batch=True,
        )


def _slice(op: Gather) -> int:
    """Elements of a slice that lie together."""
    return prod(op.shapes[0][op.axis + 1 :])


def _by_rows(op: Gather) -> bool:
    return _slice(op) >= SHORTEST_ROW


def _pieces(op: Gather, soc: Soc) -> tuple[int, int, int]:
    """Elements of a piece, pieces, and pieces of a work-item."""
    size = _slice(op) if _by_rows(op) else prod(op.shapes[1]) * _slice(op)
    length = min(size, LONGEST_PIECE) if soc.gpu.is_cpu else soc.gpu.vector_width
    pieces = op.output.elements // size * ceil_div(size, length)
    return length, pieces, strip(pieces, 1, ceil_div(LONGEST_STRIP, length), soc)
