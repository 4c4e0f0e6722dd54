"""Concatenation on the GPU: a copy of every input; along the channels, or along any axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from codl.ir.columns import Column, rest
from codl.ir.ops.concat import Concat, ConcatColumns, ConcatNd
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.feature_columns import ChoiceColumns
from codl.kernels.kernel import (
    BLOCKS,
    IMAGES,
    ColumnKernel,
    Grid,
    Kernel,
    launch,
    of_every_storage,
)
from codl.kernels.registry import register
from codl.kernels.strided import as_ints, row_launch, row_pieces
from codl.kernels.strided.order import RUN, CopiedRows
from codl.kernels.tiling import TEXEL, ceil_div, waves
from codl.records.soc import Soc

#: Pixels of one work-item of a CPU at most: about 5 us; and where images are emulated.
LONGEST_STRIP, LONGEST_IN_IMAGES = 2048, 1024


class GpuCopy(ColumnKernel):
    """Inputs of any number of channels; those that begin inside a block are shifted on the way."""

    op_kind = "concat"
    base_name = "gpu_copy"
    source = "concat/gpu_copy.cl"
    storages = BLOCKS
    op_columns = ConcatColumns

    def alternatives(self, op: Concat, soc: Soc, first: Choice) -> Iterable[Choice]:
        """The most pixels of a work-item."""
        return [{"strip": LONGEST_STRIP // 4}] if soc.gpu.is_cpu else []

    def default_columns(self, ops: ConcatColumns, soc: Soc) -> ChoiceColumns:
        return {"strip": LONGEST_STRIP if soc.gpu.is_cpu else 1}

    def counts(self, ops: ConcatColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        width = soc.gpu.vector_width
        # Blocks of the output that have channels of an input; (inputs, ops), 0 where there is none.
        ends = ceil_div(ops.offsets + ops.parts, width)
        blocks = (ends - np.floor(ops.offsets / width)) * (ops.parts > 0)
        grid = _launches(ops, blocks, choice["strip"], soc)
        shifted = (blocks * (rest(ops.offsets, width) > 0)).sum(axis=0)
        return {
            "launches": ops.inputs,
            "block_copies": (blocks.sum(axis=0) - shifted) * ops.pixels,
            "shifted_copies": shifted * ops.pixels,
            **grid,
            "output_bytes": self.stored(width * ceil_div(ops.oc, width)) * ops.pixels,
        }

    def build(self, op: Concat, soc: Soc, choice: Choice) -> KernelPlan:
        copies = (self._copy(op, i, choice["strip"], soc) for i in range(len(op.inputs)))
        return self.assemble(op, soc, *copies)

    def _copy(self, op: Concat, index: int, most: int, soc: Soc) -> KernelLaunch:
        width, offset, channels = soc.gpu.vector_width, op.offset(index), op.inputs[index].c
        first_block, shift = divmod(offset, width)
        pixels, blocks = op.output.h * op.output.w, ceil_div(offset + channels, width) - first_block
        grid = Grid.of(pixels, blocks, most, soc)
        return launch(
            "concat_shifted" if shift else "concat_blocks",
            grid.sizes,
            TensorArg("input", index),
            ENDS[1],
            strip=grid.strip,
            first_block=first_block,
            **({"shift": shift, "in_blocks": soc.gpu.blocks(channels)} if shift else {}),
            pixels=pixels,
        )


class GpuImage(ColumnKernel):
    """Texels are put together where two inputs meet in one; three must not."""

    op_kind = "concat"
    base_name = "gpu_copy"
    source = "concat/gpu_image.cl"
    storages = IMAGES
    op_columns = ConcatColumns

    def refuse(self, op: Concat, soc: Soc) -> str | None:
        for index in range(len(op.inputs) - 2):
            first = op.offset(index + 1)
            if op.offset(index + 2) < TEXEL * ceil_div(first, TEXEL):
                return (
                    f"at most two inputs may meet in a texel of {TEXEL} channels, got three at "
                    f"channel {first}"
                )
        return None

    def counts(self, ops: ConcatColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        # As in `_written`; (inputs, ops), 0 where there is no such input.
        ends = ceil_div(ops.offsets + ops.parts, TEXEL)
        written = (ends - ceil_div(ops.offsets, TEXEL)) * (ops.parts > 0)
        whole = (np.floor(ops.parts / TEXEL) * (rest(ops.offsets, TEXEL) == 0)).sum(axis=0)
        grid = _launches(ops, written, LONGEST_IN_IMAGES, soc)
        return {
            "launches": ops.inputs,
            "whole_texels": whole * ops.pixels,
            "joined_texels": (written.sum(axis=0) - whole) * ops.pixels,
            **grid,
            "output_bytes": self.stored(TEXEL * ceil_div(ops.oc, TEXEL)) * ops.pixels,
        }

    def build(self, op: Concat, soc: Soc, choice: Choice) -> KernelPlan:
        copies = (_join(op, index, soc) for index in range(len(op.inputs)))
        return self.assemble(op, soc, *filter(None, copies))


def _launches(ops: ConcatColumns, blocks: Column, most: Any, soc: Soc) -> dict[str, Any]:
    """Work-items and waves of all launches; `blocks` of each are shaped (inputs, ops)."""
    grid = Grid.of(ops.pixels, np.maximum(blocks, 1), most, soc)
    items = (grid.strips * blocks).sum(axis=0)
    if soc.gpu.is_cpu:
        return {"work_items": items, "waves": waves(items, soc)}
    return {"work_items": items, "waves": (grid.features["waves"] * (blocks > 0)).sum(axis=0)}


def _join(op: Concat, index: int, soc: Soc) -> KernelLaunch | None:
    """None where all of an input went into a texel that begins with the one before."""
    offset, channels = op.offset(index), op.inputs[index].c
    # The texels of the output that begin with a channel of the input.
    first, stop = ceil_div(offset, TEXEL), ceil_div(offset + channels, TEXEL)
    if first == stop:
        return None
    pixels, following = op.output.h * op.output.w, min(index + 1, len(op.inputs) - 1)
    grid = Grid.of(pixels, stop - first, LONGEST_IN_IMAGES, soc)
    return launch(
        "concat_image",
        grid.sizes,
        TensorArg("input", index),
        TensorArg("input", following),
        ENDS[1],
        strip=grid.strip,
        width=op.output.w,
        pixels=pixels,
        first_texel=first,
        first=offset,
        channels=channels,
        next_channels=op.inputs[following].c if following > index else 0,
    )


class GpuRows(Kernel):
    """Along any axis: rows of every input into rows of the output."""

    op_kind = "concat_nd"
    base_name = "gpu_rows"
    source = "strided/gpu_copy.cl"

    def counts(self, op: ConcatNd, soc: Soc, choice: Choice) -> dict[str, float]:
        pieces = [row_pieces(_rows(op, index), soc)[1] for index in range(len(op.inputs))]
        return {
            "launches": len(op.inputs),
            "pieces": sum(pieces),
            "waves": sum(waves(count, soc) for count in pieces),
            "output_bytes": self.stored(op.output.elements),
        }

    def build(self, op: ConcatNd, soc: Soc, choice: Choice) -> KernelPlan:
        rows = [_rows(op, index) for index in range(len(op.inputs))]
        pitch = sum(row.size for row in rows)
        launches, base = [], 0
        for index, row in enumerate(rows):
            names = (f"rows_{index}", f"rows_{index}")  # a run needs no table of elements
            source = TensorArg("input", index)
            launches.append(
                row_launch(row, 0.0, soc, source=source, names=names, base=base, pitch=pitch)
            )
            base += row.size
        return self.assemble(
            op,
            soc,
            *launches,
            macros={"KIND": RUN},
            pack=lambda weights: {f"rows_{i}": as_ints(row.starts) for i, row in enumerate(rows)},
        )


def _rows(op: ConcatNd, index: int) -> CopiedRows:
    size = op.row_size(index)
    return CopiedRows(np.arange(op.rows) * size, size, RUN, high=size)


register(*of_every_storage(GpuCopy, GpuImage, GpuRows))
