"""Copies between GPU layouts; reshape and concatenation, which copy, too."""

from __future__ import annotations

from typing import Any

import numpy as np

from codl.ir.columns import Column, rest
from codl.ir.ops.base import Activation
from codl.ir.ops.movement import Concat, ConcatColumns, ConcatNd, Reshape
from codl.ir.records.soc import Soc
from codl.ir.region import Shape
from codl.ir.types import Storage
from codl.kernels.base import ENDS, Choice, KernelLaunch, KernelPlan, TensorArg
from codl.kernels.cpu import CpuKernel, NcnnLayer, OrtPlan, ints, nd_plan, node, of_onnx
from codl.kernels.kernel import BLOCKS, IMAGES, ColumnKernel, Grid, Kernel, launch, of_every_storage
from codl.kernels.strided import RUN, CopiedRows, as_ints, row_launch, row_pieces
from codl.kernels.tiling import TEXEL, base_defines, ceil_div, texels, waves

# Copies between the GPU's layouts, for data sharing and between ops. The planar layout converts to
# and from all others; blocks and texels also convert directly.

#: The most V x V chunks of a work-item on a CPU.
LONGEST_STRIP = 64

#: By source and target layout: kernel, source file, and the sides that HALF and PLANAR_HALF
#: describe (0 source, 1 target).
KERNELS = {
    ("planar", "planar"): ("copy_planar", "transform", 0, 1),
    ("blocked", "planar"): ("to_planar", "transform", 0, 1),
    ("planar", "blocked"): ("to_blocked", "transform", 1, 0),
    ("image", "planar"): ("image_to_planar", "image", 0, 1),
    ("planar", "image"): ("planar_to_image", "image", 1, 0),
    ("blocked", "image"): ("blocked_to_image", "image", 0, 1),
    ("image", "blocked"): ("image_to_blocked", "image", 1, 0),
}


def transform(
    source: Storage, target: Storage, part: Shape, soc: Soc, *, lead: int = 0, ends: bool = True
) -> KernelPlan:
    """A plan that copies a region of the shape `part`; images of a batch are copied one by one.

    `lead` is the number of channels before the region in its first block (or texel, between planar
    and image). `ends` is True if the region ends at the last channel of the blocked side; lanes
    after it are cleared, otherwise kept. Images are written in whole texels: `lead` is 0, and the
    region ends at the last channel or a multiple of 4. Raises `ValueError` for other pairs of
    layouts.
    """
    if (source.layout, target.layout) not in KERNELS:
        raise ValueError(f"no kernel copies {source} to {target}")
    kernel, file, half, planar_half = KERNELS[source.layout, target.layout]
    sides, in_buffers = (source, target), file == "transform"
    pixels = part.h * part.w
    numbers: dict[str, int] = {"lead": lead, "channels": part.c, "pixels": pixels}
    if in_buffers:
        width = soc.gpu.vector_width
        others = part.c if kernel == "copy_planar" else ceil_div(lead + part.c, width)
        grid = Grid.of(ceil_div(pixels, width), others, LONGEST_STRIP, soc)
        if kernel == "to_blocked":
            numbers["zero_to"] = width if ends else 0
        if kernel == "copy_planar":
            numbers = {"pixels": pixels}
    else:
        others = texels(part.c if "blocked" in kernel else lead + part.c)
        grid = Grid.of(pixels, others, LONGEST_STRIP * soc.gpu.vector_width, soc)
        if kernel == "planar_to_image":
            numbers = {"width": part.w, "channels": part.c, "pixels": pixels}
        elif kernel == "image_to_planar":
            numbers = {"width": part.w, **numbers}
        else:
            numbers = {"width": part.w, "first": lead, "pixels": pixels}
    copy = launch(kernel, grid.sizes, *ENDS, strip=grid.strip, **numbers)
    halves = {"HALF": sides[half], "PLANAR_HALF": sides[planar_half]}
    return KernelPlan(
        source=f"layout/{file}.cl",
        launches=(copy.of_images(part.n, ENDS) if in_buffers else copy,),
        defines={
            **base_defines(Activation(), soc),
            **{name: 1 for name, side in halves.items() if side.element == "float16"},
        },
        storages=dict(zip(ENDS, sides, strict=True)),
        whole_batch=in_buffers,
    )


#: The most chunks of V elements of a work-item on a CPU.
LONGEST_COPY = 1024


class GpuCopy(Kernel):
    """Reshape with any number of axes."""

    op_kind = "reshape"
    base_name = "gpu_copy"
    source = "layout/transform.cl"

    def counts(self, op: Reshape, soc: Soc, choice: Choice) -> dict[str, float]:
        return {"output_bytes": self.stored(op.output.elements), **_grid(op, soc).features}

    def build(self, op: Reshape, soc: Soc, choice: Choice) -> KernelPlan:
        grid = _grid(op, soc)
        sizes = {"strip": grid.strip, "pixels": op.output.elements}
        copy = launch("copy_planar", grid.sizes, *ENDS, **sizes).of_images(1, ENDS)
        halves = self.storage.element == "float16"
        return self.assemble(op, soc, copy, macros={"PLANAR_HALF": halves})


def _grid(op: Reshape, soc: Soc) -> Grid:
    return Grid.of(ceil_div(op.output.elements, soc.gpu.vector_width), 1, LONGEST_COPY, soc)


# Concatenation along channels or any other axis: a copy of each input.


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
        # As in `_written`, shaped (inputs, ops); 0 for a missing input.
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


class GpuConcatNd(Kernel):
    """Concatenation along any axis: copies rows of each input to rows of the output."""

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
            names = (f"rows_{index}", f"rows_{index}")  # contiguous runs need no second table
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


# The CPU.


def _refuse_ncnn(op: Reshape) -> str | None:
    if op.input.n != op.output.n:
        return f"the batch must stay, got {op.input.n} and {op.output.n}"
    return None


def _ncnn(op: Reshape) -> NcnnLayer:
    sizes = {0: op.output.w, 1: op.output.h, 2: op.output.c}
    return NcnnLayer("Reshape", sizes, after=op.activation, copies_input=True)


def _onnx(op: Reshape) -> OrtPlan:
    to = ints(*op.to)
    return OrtPlan((node("Reshape", ("x0", "to")),), op.shapes, op.to, {"to": to})


def _onnx_concat(op: Concat) -> OrtPlan:
    concat = node("Concat", [f"x{index}" for index in range(len(op.inputs))], axis=1)
    return OrtPlan((concat,), op.inputs, op.output)


def _onnx_concat_nd(op: ConcatNd) -> OrtPlan:
    names = [f"x{index}" for index in range(len(op.shapes))]
    return nd_plan(op, [node("Concat", names, axis=op.axis)])


VARIANTS = (
    CpuKernel(
        "reshape",
        _ncnn,
        lambda op, soc: {"output_bytes": op.output.bytes},
        refuse=_refuse_ncnn,
        name="cpu_copy",
    ),
    *of_every_storage(GpuCopy),
    *of_onnx("reshape", _onnx),
    CpuKernel(
        "concat",
        lambda op: NcnnLayer("Concat", {0: 0}, after=op.activation, copies_input=True),
        lambda ops, soc: {"inputs": ops.inputs, "output_bytes": 4.0 * ops.output_elements},
        ConcatColumns,
        name="cpu_copy",
    ),
    *of_every_storage(GpuConcat, GpuImageConcat, GpuConcatNd),
    *of_onnx("concat", _onnx_concat),
    *of_onnx("concat_nd", _onnx_concat_nd),
)
