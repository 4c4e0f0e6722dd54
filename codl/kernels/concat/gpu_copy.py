"""Concatenation on the GPU: a copy of every input, block by block."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from codl.ir import columns
from codl.ir.columns import (
    FeatureColumns,
)
from codl.ir.ops.concat import (
    Concat,
    ConcatColumns,
)
from codl.kernels import tiling_columns
from codl.kernels.base import Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.feature_columns import (
    ChoiceColumns,
)
from codl.kernels.tiling import base_defines, ceil_div, item_grid, strip
from codl.kernels.variant import ByChoiceColumns, ForStorage
from codl.records.soc import Soc

#: Pixels of one work-item of a CPU at most: about 5 us.
LONGEST_STRIP = 2048


class GpuCopy(ForStorage, ByChoiceColumns):
    """Inputs of any number of channels; those that begin inside a block are shifted on the way."""

    op_kind: ClassVar[str] = "concat"
    base_name: ClassVar[str] = "gpu_copy"
    op_columns: ClassVar[type[ConcatColumns]] = ConcatColumns

    def choices(self, op: Concat, soc: Soc) -> tuple[Choice, ...]:
        """The most pixels of a work-item."""
        strips = (LONGEST_STRIP, LONGEST_STRIP // 4) if soc.gpu.is_cpu else (1,)
        return tuple({"strip": strip} for strip in strips)

    def default_columns(self, ops: ConcatColumns, soc: Soc) -> ChoiceColumns:
        return {"strip": np.full_like(ops.oc, LONGEST_STRIP if soc.gpu.is_cpu else 1)}

    def feature_columns(
        self, ops: ConcatColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        most = (choice or self.default_columns(ops, soc))["strip"]
        width, size = soc.gpu.vector_width, float(self.storage.element_bytes)
        # Blocks of the output that have channels of an input; (inputs, ops), 0 where there is none.
        ends = columns.ceil_div(ops.offsets + ops.parts, width)
        blocks = (ends - np.floor(ops.offsets / width)) * (ops.parts > 0)
        length = tiling_columns.strip(ops.pixels, np.maximum(blocks, 1), most, soc)
        items = (columns.ceil_div(ops.pixels, length) * blocks).sum(axis=0)
        shifted = (blocks * (columns.rest(ops.offsets, width) > 0)).sum(axis=0)
        return {
            "launches": ops.inputs,
            "block_copies": (blocks.sum(axis=0) - shifted) * ops.pixels,
            "shifted_copies": shifted * ops.pixels,
            "work_items": items,
            "waves": tiling_columns.waves(items, soc),
            "output_bytes": size * columns.round_up(ops.oc, width) * ops.pixels,
        }

    def plan(self, op: Concat, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        most = (choice or self.choices(op, soc)[0])["strip"]
        return KernelPlan(
            source="concat/gpu_copy.cl",
            launches=tuple(_launch(op, index, most, soc) for index in range(len(op.inputs))),
            defines=base_defines(op.activation, soc, self.storage),
        ).stored_as(self.storage, len(op.inputs))


def _blocks(op: Concat, index: int, soc: Soc) -> int:
    """Blocks of the output that have channels of an input."""
    width, first = soc.gpu.vector_width, op.offset(index)
    return ceil_div(first + op.inputs[index].c, width) - first // width


def _launch(op: Concat, index: int, most: int, soc: Soc) -> KernelLaunch:
    pixels, blocks = op.output.h * op.output.w, _blocks(op, index, soc)
    length = strip(pixels, blocks, most, soc)
    global_size, local_size = item_grid(ceil_div(pixels, length), blocks, soc)
    first_block, shift = divmod(op.offset(index), soc.gpu.vector_width)
    source = (shift, soc.gpu.blocks(op.inputs[index].c)) if shift else ()
    return KernelLaunch(
        kernel="concat_shifted" if shift else "concat_blocks",
        global_size=global_size,
        local_size=local_size,
        args=(TensorArg("input", index), TensorArg("output"), length, first_block, *source, pixels),
    )
