"""Rotary position embedding on the GPU: work-items have pieces of rows of features."""

from __future__ import annotations

from typing import ClassVar

from codl.ir.ops.attention import Rotary
from codl.kernels.base import Arg, Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip, waves
from codl.kernels.variant import ForPlanar
from codl.records.soc import Soc

#: Features that a work-item of a CPU has at most, in rows: some microseconds.
LONGEST_STRIP = 1 << 13


class GpuRows(ForPlanar):
    """Either order of tokens and heads, pairs next to each other or in halves."""

    base_name: ClassVar[str] = "gpu_rows"
    op_kind: ClassVar[str] = "rotary"

    def choices(self, op: Rotary, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Rotary, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        _, pieces, each = _pieces(op, soc)
        items = ceil_div(pieces, each)
        return {
            "rows": float(_rows(op)),
            "loop_length": float(op.pairs),
            "work_items": float(items),
            "waves": waves(items, soc),
            "output_bytes": self.stored_bytes(op.output.bytes),
        }

    def plan(self, op: Rotary, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        length, pieces, each = _pieces(op, soc)
        global_size, local_size = item_grid(ceil_div(pieces, each), 1, soc)
        inputs = tuple(TensorArg("input", index) for index in range(3))
        tensors = (*inputs, TensorArg("output"))
        x, cos = op.shapes[:2]
        # Rows of x that one image has, and one token, and rows of the tables of one image.
        grid = (x[1] * x[2], 1 if op.axis == 2 else x[2], op.tokens, op.tokens * (cos[0] > 1))
        args: tuple[Arg, ...] = (*tensors, each, pieces, length, *grid, op.pairs, x[3])
        interleaved = {"INTERLEAVED": 1} if op.interleaved else {}
        return KernelPlan(
            source="rotary/gpu_rows.cl",
            launches=(KernelLaunch("rotary_rows", global_size, args, local_size),),
            defines={**base_defines(op.activation, soc, self.storage), **interleaved},
            storages=dict.fromkeys(tensors, self.storage),
            whole_batch=True,
        )


def _rows(op: Rotary) -> int:
    n, c, h, _ = op.shapes[0]
    return n * c * h


def _pieces(op: Rotary, soc: Soc) -> tuple[int, int, int]:
    """Pairs of a piece, pieces, and pieces of a work-item."""
    length = op.pairs if soc.gpu.is_cpu else soc.gpu.vector_width
    pieces = _rows(op) * ceil_div(op.pairs, length)
    return length, pieces, strip(pieces, 1, max(1, LONGEST_STRIP // op.shapes[0][3]), soc)
