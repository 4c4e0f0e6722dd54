"""Concatenation along channels on the GPU: a copy of each input."""

from __future__ import annotations

from typing import Any

import numpy as np

from codl.ir.columns import Column, ceil_div, rest
from codl.ir.ops.movement import Concat, ConcatColumns
from codl.ir.records.soc import Soc
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.cpu import CpuKernel, NcnnLayer, OrtPlan, node, of_onnx
from codl.kernels.kernel import BLOCKS, IMAGES, ColumnKernel, Grid, of_every_storage
from codl.kernels.tiling import TEXEL, waves

#: The most pixels of a work-item on a CPU (about 5 us), and with emulated images.
MOST_PIXELS, LONGEST_IN_IMAGES = 2048, 1024


class GpuConcat(ColumnKernel):
    """Inputs with any number of channels; an input that begins inside a block is shifted."""

    op_kind = "concat"
    base_name = "gpu_copy"
    source = "concat/gpu_copy.cl"
    storages = BLOCKS
    op_columns = ConcatColumns

    def counts(self, ops: ConcatColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        width = soc.gpu.vector_width
        # Blocks of the output with channels of an input, shaped (inputs, ops); 0 for a missing
        # input.
        ends = ceil_div(ops.offsets + ops.parts, width)
        blocks = (ends - np.floor(ops.offsets / width)) * (ops.parts > 0)
        grid = _launches(ops, blocks, MOST_PIXELS, soc)
        shifted = (blocks * (rest(ops.offsets, width) > 0)).sum(axis=0)
        return {
            "launches": ops.inputs,
            "block_copies": (blocks.sum(axis=0) - shifted) * ops.pixels,
            "shifted_copies": shifted * ops.pixels,
            **grid,
            "output_bytes": self.stored(width * ceil_div(ops.oc, width)) * ops.pixels,
        }

    def build(self, op: Concat, soc: Soc, choice: Choice) -> KernelPlan:
        copies = (self._copy(op, i, soc) for i in range(len(op.inputs)))
        return self.assemble(op, soc, *copies)

    def _copy(self, op: Concat, index: int, soc: Soc) -> KernelLaunch:
        width, offset, channels = soc.gpu.vector_width, op.offset(index), op.inputs[index].c
        first_block, shift = divmod(offset, width)
        pixels, blocks = op.output.h * op.output.w, ceil_div(offset + channels, width) - first_block
        grid = Grid.of(pixels, blocks, MOST_PIXELS, soc)
        return grid.launch(
            "concat_shifted" if shift else "concat_blocks",
            *(TensorArg("input", index), ENDS[1]),
            first_block=first_block,
            **({"shift": shift, "in_blocks": soc.gpu.blocks(channels)} if shift else {}),
            pixels=pixels,
        )


class GpuImageConcat(ColumnKernel):
    """Inputs in images; two inputs may share a texel, three may not."""

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
        # Texels that begin with a channel of each input, shaped (inputs, ops); 0 without an input.
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
    """Work-items and waves of all launches; `blocks` per input are shaped (inputs, ops)."""
    grid = Grid.of(ops.pixels, np.maximum(blocks, 1), most, soc)
    items = (grid.strips * blocks).sum(axis=0)
    if soc.gpu.is_cpu:
        return {"work_items": items, "waves": waves(items, soc)}
    return {"work_items": items, "waves": (grid.features["waves"] * (blocks > 0)).sum(axis=0)}


def _join(op: Concat, index: int, soc: Soc) -> KernelLaunch | None:
    """The launch that copies an input; None where the last texel before it holds all of it."""
    offset, channels = op.offset(index), op.inputs[index].c
    # The output's texels that begin with a channel of the input.
    first, stop = ceil_div(offset, TEXEL), ceil_div(offset + channels, TEXEL)
    if first == stop:
        return None
    pixels, following = op.output.h * op.output.w, min(index + 1, len(op.inputs) - 1)
    grid = Grid.of(pixels, stop - first, LONGEST_IN_IMAGES, soc)
    return grid.launch(
        "concat_image",
        *(TensorArg("input", index), TensorArg("input", following), ENDS[1]),
        width=op.output.w,
        pixels=pixels,
        first_texel=first,
        first=offset,
        channels=channels,
        next_channels=op.inputs[following].c if following > index else 0,
    )


# The CPU.


def _onnx_concat(op: Concat) -> OrtPlan:
    concat = node("Concat", [f"x{index}" for index in range(len(op.inputs))], axis=1)
    return OrtPlan((concat,), op.inputs, op.output)


VARIANTS = (
    CpuKernel(
        "concat",
        lambda op: NcnnLayer("Concat", {0: 0}, after=op.activation, copies_input=True),
        lambda ops, soc: {"inputs": ops.inputs, "output_bytes": 4.0 * ops.output_elements},
        ConcatColumns,
        name="cpu_copy",
    ),
    *of_every_storage(GpuConcat, GpuImageConcat),
    *of_onnx("concat", _onnx_concat),
)
