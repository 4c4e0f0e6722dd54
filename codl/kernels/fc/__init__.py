"""Fully connected layers on the GPU: bound by the memory that streams the weights in.

In buffers that is once for several images of a batch: as many as have their sums in registers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from codl.ir.columns import Column
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.fully_connected import FcColumns, FullyConnected
from codl.ir.region import Shape
from codl.kernels.architecture import holds
from codl.kernels.base import ENDS, WEIGHTED, Choice, KernelPlan
from codl.kernels.cpu_device.registers import most_sums
from codl.kernels.feature_columns import ChoiceColumns, by_level, gpu_cache_bytes
from codl.kernels.image import texels
from codl.kernels.kernel import (
    BLOCKS,
    IMAGES,
    REAL_GPU,
    ColumnKernel,
    Kernel,
    apart,
    launch,
    of_every_storage,
)
from codl.kernels.registry import register
from codl.kernels.tiling import TEXEL, ceil_div, pack_bias, power_of_two, round_up, waves
from codl.records.soc import Soc

#: Streams of weights worth trying on a CPU, by vector width. With one, it waits for the memory.
STREAMS = {16: (4, 3, 2), 8: (2, 3), 4: (2, 4)}
#: Images of a work-item at most.
MOST_IMAGES = 8
#: Rows and work-items of a work-group of `gpu_rows`, the default first: it is the fastest on an
#: H200 for the matrices of VGG-16, ResNet-50 and MobileNetV2, of 5 to 411 MB.
SHAPES = ((2, 128), (4, 256), (4, 128), (8, 256), (8, 128), (4, 64))
#: Sums of vectors of a work-item of `gpu_rows` at most, of rows times images.
SUMS = 16


class GpuRows(Kernel):
    """Every work-group streams some rows of the matrix."""

    op_kind = "fc"
    base_name = "gpu_rows"
    source = "fc/gpu_rows.cl"
    storages = BLOCKS
    meant_for = REAL_GPU
    batches = True

    def refuse(self, op: FullyConnected, soc: Soc) -> str | None:
        if not self.choices(op, soc):
            return f"work-groups of 64 are needed, got at most {soc.gpu.max_work_group_size}"
        return None

    def choices(self, op: FullyConnected, soc: Soc) -> tuple[Choice, ...]:
        most = soc.gpu.max_work_group_size
        return tuple({"outputs": rows, "items": items} for rows, items in SHAPES if items <= most)

    def counts(self, op: FullyConnected, soc: Soc, choice: Choice) -> dict[str, float]:
        steps, width = _vectors(op.input, soc), soc.gpu.vector_width
        rows = round_up(op.out_channels, choice["outputs"])
        groups = rows // choice["outputs"]
        return {
            "padded_macs": steps * width * rows,
            "loop_length": ceil_div(steps, choice["items"]),
            "work_groups": groups,
            "waves": ceil_div(groups, soc.gpu.compute_units),
            "flops": op.flops,
            "input_bytes": self.stored(op.input.elements),
            "weight_bytes": self.stored(steps * width * rows),
            "output_bytes": self.stored(op.out_channels),
        }

    def build(self, op: FullyConnected, soc: Soc, choice: Choice) -> KernelPlan:
        outputs, items, width = choice["outputs"], choice["items"], soc.gpu.vector_width
        rows = round_up(op.out_channels, width)
        most = _most_images(SUMS // outputs, soc, per_image=4 * outputs + 8)
        images, image_groups = _groups_of_images(op, most)

        def pack(weights: Weights) -> dict[str, Array]:
            matrix = _pack_rows(weights["weight"], op.input, width, round_up(rows, outputs))
            return {"weight": matrix, "bias": pack_bias(weights["bias"], width)}

        product = launch(
            "fc_rows",
            ((ceil_div(rows, outputs) * items, image_groups), (items, 1)),
            *WEIGHTED,
            pixels=op.input.h * op.input.w,
            steps=_vectors(op.input, soc),
            outputs=rows,
            images=op.input.n,
            **apart(*ENDS),
        )
        macros = {"OUTPUTS": outputs, "ITEMS": items, "IMAGES": images}
        return self.assemble(op, soc, product, macros=macros, pack=pack)


class GpuDirect(ColumnKernel):
    """Work-items have some blocks of outputs, and on a GPU share the steps of them."""

    op_kind = "fc"
    source = "fc/gpu_direct.cl"
    storages = BLOCKS
    batches = True
    op_columns = FcColumns

    def alternatives(self, op: FullyConnected, soc: Soc, first: Choice) -> Iterable[Choice]:
        """Blocks of outputs of a work-item."""
        blocks = soc.gpu.blocks(op.out_channels)
        fitting = (o for o in _streams(soc) if o * soc.gpu.compute_units <= blocks)
        return [{"outs": outs} for outs in (*fitting, 1)]

    def default_columns(self, ops: FcColumns, soc: Soc) -> ChoiceColumns:
        streams, blocks = _streams(soc), ceil_div(ops.oc, soc.gpu.vector_width)
        fitting = [o * soc.gpu.compute_units <= blocks for o in streams]
        return {"outs": np.select(fitting, streams, 1) if streams else 1}

    def counts(self, ops: FcColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        width = soc.gpu.vector_width
        blocks, steps = ceil_div(ops.oc, width), round_up(ops.ic, 4) * ops.ih * ops.iw
        items = ceil_div(blocks, choice["outs"]) * _group_shape(soc)[1]
        return {
            "padded_macs": steps * blocks * width,
            "loop_length": steps,
            "item_steps": steps * items,
            "streams": choice["outs"],
            "work_items": items,
            "waves": waves(items, soc),
            "input_bytes": self.stored(ops.images * ops.in_features),
            "output_bytes": self.stored(blocks * width),
            **by_level("weight", self.stored(steps * blocks * width), gpu_cache_bytes(soc)),
        }

    def build(self, op: FullyConnected, soc: Soc, choice: Choice) -> KernelPlan:
        images, image_groups = _groups_of_images(op, _most_images(MOST_IMAGES, soc, per_image=22))
        outs = max(1, min(choice["outs"], most_sums(soc.gpu) // images))
        width, blocks = soc.gpu.vector_width, soc.gpu.blocks(op.out_channels)
        together, slices = _group_shape(soc)

        def pack(weights: Weights) -> dict[str, Array]:
            # A work-item's streams are whole, also where the last has fewer outputs.
            matrix = _pack_streams(weights["weight"], op.input, width, together, outs)
            return {"weight": matrix, "bias": pack_bias(weights["bias"], width)}

        product = launch(
            "fc_direct",
            (
                (round_up(ceil_div(blocks, outs), together), slices, image_groups),
                (together, slices, 1),
            ),
            *WEIGHTED,
            in_channels=op.input.c,
            pixels=op.input.h * op.input.w,
            steps=_steps(op.input),
            out_blocks=blocks,
            images=op.input.n,
            **apart(*ENDS),
        )
        macros = {"OUTS": outs, "IMAGES": images, "TOGETHER": together, "SLICES": slices}
        return self.assemble(op, soc, product, macros=macros, pack=pack)


class GpuImage(Kernel):
    """The input as it lies, in texels of channels."""

    op_kind = "fc"
    source = "fc/gpu_image.cl"
    multiplies_halves = True
    storages = IMAGES

    def counts(self, op: FullyConnected, soc: Soc, choice: Choice) -> dict[str, float]:
        blocks, steps = texels(op.out_channels), _steps(op.input)
        items = blocks * _group_shape(soc)[1]
        return {
            "padded_macs": TEXEL * steps * blocks,
            "texel_reads": steps // TEXEL * blocks,
            "loop_length": steps,
            "work_items": items,
            "waves": waves(items, soc),
            "flops": op.flops,
            "input_bytes": self.stored(op.input.elements),
            "weight_bytes": self.stored(TEXEL * steps * blocks),
            "output_bytes": self.stored(TEXEL * blocks),
        }

    def build(self, op: FullyConnected, soc: Soc, choice: Choice) -> KernelPlan:
        (together, slices), blocks = _group_shape(soc), texels(op.out_channels)
        product = launch(
            "fc_image",
            ((round_up(blocks, together), slices), (together, slices)),
            *WEIGHTED,
            width=op.input.w,
            pixels=op.input.h * op.input.w,
            in_blocks=texels(op.input.c),
            out_blocks=blocks,
        )

        def pack(weights: Weights) -> dict[str, Array]:
            matrix = _pack_texels(weights["weight"], op.input)
            return {"weight": matrix, "bias": pack_bias(weights["bias"], TEXEL)}

        macros = {"TOGETHER": together, "SLICES": slices}
        return self.assemble(op, soc, product, macros=macros, pack=pack)


def _streams(soc: Soc) -> tuple[int, ...]:
    return STREAMS[soc.gpu.vector_width] if soc.gpu.is_cpu else ()


def _most_images(most: int, soc: Soc, *, per_image: int) -> int:
    """As many as `most`, of which a work-item of a GPU keeps some numbers each in registers."""
    return next((n for n in range(most, 1, -1) if holds(soc.gpu, 8 + per_image * n)), 1)


def _groups_of_images(op: FullyConnected, most: int) -> tuple[int, int]:
    """Images that share the weights as they are read, up to `most`; and the groups of them."""
    groups = ceil_div(op.input.n, most)
    return ceil_div(op.input.n, groups), groups


def _group_shape(soc: Soc) -> tuple[int, int]:
    """Work-items whose weights alternate, and slices of the inputs, of one work-group."""
    if soc.gpu.is_cpu:
        return 1, 1
    most = soc.gpu.max_work_group_size
    together = power_of_two(min(16, most))
    return together, max(1, min(16, most // together))


def _steps(shape: Shape) -> int:
    """Rows of the packed matrix: channels that exist, to a multiple of 4, for every pixel."""
    return round_up(shape.c, 4) * shape.h * shape.w


def _vectors(shape: Shape, soc: Soc) -> int:
    """Vectors of one row of the matrix that `gpu_rows` has."""
    return soc.gpu.blocks(shape.c) * shape.h * shape.w


def _pack_streams(weight: Array, shape: Shape, width: int, together: int, outs: int) -> Array:
    """(outputs, c * h * w) -> [output blocks / together][step][together][V], flat.

    Copied one group of output blocks at a time, so that the peak is one packed copy and not two.
    """
    group, pixels = together * width, shape.h * shape.w
    groups = round_up(ceil_div(weight.shape[0], group), outs)
    packed = np.zeros((groups, _steps(shape), group), np.float32)
    for g in range(groups):
        rows = weight[g * group : (g + 1) * group]
        rows = rows.reshape(rows.shape[0], shape.c, pixels)
        for first in range(0, shape.c, width):
            part = rows[:, first : first + width].transpose(2, 1, 0)
            lanes = min(width, round_up(shape.c - first, 4))
            view = packed[g, first * pixels : (first + lanes) * pixels]
            view = view.reshape(pixels, lanes, group)
            view[:, : part.shape[1], : part.shape[2]] = part
    return packed.reshape(-1)


def _pack_texels(weight: Array, shape: Shape) -> Array:
    """(outputs, c * h * w) -> [pixel][channel][output], channels and outputs padded to texels."""
    outputs, pixels = weight.shape[0], shape.h * shape.w
    padded = (round_up(shape.c, TEXEL), round_up(outputs, TEXEL))
    packed = np.zeros((pixels, *padded), np.float32)
    packed[:, : shape.c, :outputs] = weight.reshape(outputs, shape.c, pixels).transpose(2, 1, 0)
    return packed.reshape(-1)


def _pack_rows(weight: Array, shape: Shape, width: int, rows: int) -> Array:
    """(outputs, c * h * w) -> [row][channel block][pixel][V], flat, some rows at a time."""
    blocks, pixels = ceil_div(shape.c, width), shape.h * shape.w
    packed = np.zeros((rows, blocks, pixels, width), np.float32)
    full = shape.c // width
    for first in range(0, weight.shape[0], 256):
        part = weight[first : first + 256].reshape(-1, shape.c, pixels)
        to = packed[first : first + part.shape[0]]
        whole = part[:, : full * width].reshape(part.shape[0], full, width, pixels)
        to[:, :full] = whole.swapaxes(2, 3)
        if full < blocks:
            to[:, full, :, : shape.c - full * width] = part[:, full * width :].swapaxes(1, 2)
    return packed.reshape(-1)


register(*of_every_storage(GpuRows, GpuDirect, GpuImage))
