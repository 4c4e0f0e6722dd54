"""Fully connected layers on the GPU, bound by reading the weights from memory.

In buffers, several images of a batch share each read: as many as have their sums in registers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codl.ir.columns import Column, FeatureColumns, ceil_div, round_up
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.matmul import FcColumns, FullyConnected
from codl.ir.records.soc import Soc
from codl.ir.region import Shape
from codl.kernels import cpu, kernel, tiling
from codl.kernels.base import ENDS, WEIGHTED, Choice, KernelPlan
from codl.kernels.cpu import NcnnLayer, OrtPlan, fused_activation, left_over, node, of_onnx
from codl.kernels.kernel import BLOCKS, IMAGES, REAL_GPU, Kernel, apart, launch, of_every_storage
from codl.kernels.tiling import TEXEL, by_level, pack_bias, waves

#: Choices of streams of weights on a CPU by vector width; a single one waits for memory.
STREAMS = {16: (4, 3, 2), 8: (2, 3), 4: (2, 4)}
#: The most images of a work-item.
MOST_IMAGES = 8
#: Rows and work-items of a work-group of `gpu_rows`. The default, first, is the fastest on an H200
#: for the matrices of VGG-16, ResNet-50 and MobileNetV2 (5 to 411 MB).
SHAPES: tuple[Choice, ...] = tuple(
    {"outputs": rows, "items": items}
    for rows, items in ((2, 128), (4, 256), (4, 128), (8, 256), (8, 128), (4, 64))
)
#: The most vector sums of a work-item of `gpu_rows`, rows times images.
SUMS = 16


class GpuRows(Kernel):
    """Work-groups that stream some rows of the matrix each."""

    op_kind = "fc"
    base_name = "gpu_rows"
    source = "fc/gpu_rows.cl"
    storages = BLOCKS
    meant_for = REAL_GPU
    batches = True
    tried = SHAPES

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


class GpuDirect(kernel.ColumnKernel):
    """Work-items with some blocks of outputs each."""

    op_kind = "fc"
    source = "fc/gpu_direct.cl"
    storages = BLOCKS
    meant_for = kernel.CPU_DEVICE
    batches = True
    op_columns = FcColumns

    def ranked(self, ops: FcColumns, soc: Soc) -> tuple[tiling.ChoiceColumns, Column]:
        streams = STREAMS[soc.gpu.vector_width] if soc.gpu.is_cpu else ()
        outs = np.array([*streams, 1], np.float64)[:, None]
        blocks = ceil_div(ops.oc, soc.gpu.vector_width)
        enough = (outs * soc.gpu.compute_units <= blocks) | (outs == 1)
        return {"outs": outs}, np.where(enough, np.arange(len(outs))[:, None], np.inf)

    def counts(self, ops: FcColumns, soc: Soc, choice: Any) -> dict[str, Column]:
        width = soc.gpu.vector_width
        blocks, steps = ceil_div(ops.oc, width), round_up(ops.ic, 4) * ops.ih * ops.iw
        items = ceil_div(blocks, choice["outs"])
        return {
            "padded_macs": steps * blocks * width,
            "loop_length": steps,
            "item_steps": steps * items,
            "streams": choice["outs"],
            "work_items": items,
            "waves": waves(items, soc),
            "input_bytes": self.stored(ops.images * ops.in_features),
            "output_bytes": self.stored(blocks * width),
            **by_level("weight", self.stored(steps * blocks * width), tiling.gpu_cache_bytes(soc)),
        }

    def build(self, op: FullyConnected, soc: Soc, choice: Choice) -> KernelPlan:
        images, image_groups = _groups_of_images(op, _most_images(MOST_IMAGES, soc, per_image=22))
        outs = max(1, min(choice["outs"], tiling.most_sums(soc.gpu) // images))
        width, blocks = soc.gpu.vector_width, soc.gpu.blocks(op.out_channels)

        def pack(weights: Weights) -> dict[str, Array]:
            # Each work-item has all its streams, the last one with fewer outputs too.
            matrix = _pack_streams(weights["weight"], op.input, width, outs)
            return {"weight": matrix, "bias": pack_bias(weights["bias"], width)}

        product = launch(
            "fc_direct",
            ((ceil_div(blocks, outs), image_groups), (1, 1)),
            *WEIGHTED,
            in_channels=op.input.c,
            pixels=op.input.h * op.input.w,
            steps=_steps(op.input),
            out_blocks=blocks,
            images=op.input.n,
            **apart(*ENDS),
        )
        return self.assemble(op, soc, product, macros={"OUTS": outs, "IMAGES": images}, pack=pack)


class GpuImage(Kernel):
    """Fully connected layers that read the input as an image."""

    op_kind = "fc"
    source = "fc/gpu_image.cl"
    multiplies_halves = True
    storages = IMAGES

    def counts(self, op: FullyConnected, soc: Soc, choice: Choice) -> dict[str, float]:
        blocks, steps = ceil_div(op.out_channels, TEXEL), _steps(op.input)
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
        (together, slices), blocks = _group_shape(soc), ceil_div(op.out_channels, TEXEL)
        product = launch(
            "fc_image",
            ((round_up(blocks, together), slices), (together, slices)),
            *WEIGHTED,
            width=op.input.w,
            pixels=op.input.h * op.input.w,
            in_blocks=ceil_div(op.input.c, TEXEL),
            out_blocks=blocks,
        )

        def pack(weights: Weights) -> dict[str, Array]:
            matrix = _pack_texels(weights["weight"], op.input)
            return {"weight": matrix, "bias": pack_bias(weights["bias"], TEXEL)}

        macros = {"TOGETHER": together, "SLICES": slices}
        return self.assemble(op, soc, product, macros=macros, pack=pack)


def _most_images(most: int, soc: Soc, *, per_image: int) -> int:
    """The most images, up to `most`, with `per_image` registers each."""
    return next((n for n in range(most, 1, -1) if tiling.holds(soc.gpu, 8 + per_image * n)), 1)


def _groups_of_images(op: FullyConnected, most: int) -> tuple[int, int]:
    """Images that share reads of the weights, up to `most`, and the number of such groups."""
    groups = ceil_div(op.input.n, most)
    return ceil_div(op.input.n, groups), groups


def _group_shape(soc: Soc) -> tuple[int, int]:
    """Work-items with interleaved weights, and slices of the inputs, of a work-group."""
    if soc.gpu.is_cpu:
        return 1, 1
    most = soc.gpu.max_work_group_size
    together = tiling.power_of_two(min(16, most))
    return together, max(1, min(16, most // together))


def _steps(shape: Shape) -> int:
    """Rows of the packed matrix: channels rounded up to a multiple of 4, times pixels."""
    return round_up(shape.c, 4) * shape.h * shape.w


def _vectors(shape: Shape, soc: Soc) -> int:
    """Vectors in a row of the matrix of `gpu_rows`."""
    return soc.gpu.blocks(shape.c) * shape.h * shape.w


def _pack_streams(weight: Array, shape: Shape, width: int, outs: int) -> Array:
    """(outputs, c * h * w) -> [output block][step][V], flat; packs one block at a time."""
    pixels = shape.h * shape.w
    blocks = round_up(ceil_div(weight.shape[0], width), outs)
    packed = np.zeros((blocks, _steps(shape), width), np.float32)
    for block, target in enumerate(packed):
        rows = weight[block * width : (block + 1) * width]
        rows = rows.reshape(rows.shape[0], shape.c, pixels)
        for first in range(0, shape.c, width):
            part = rows[:, first : first + width].transpose(2, 1, 0)
            lanes = min(width, round_up(shape.c - first, 4))
            view = target[first * pixels : (first + lanes) * pixels].reshape(pixels, lanes, width)
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
    """(outputs, c * h * w) -> [row][channel block][pixel][V], flat; copies some rows at a time."""
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


# The CPU.


def _ncnn(op: FullyConnected) -> NcnnLayer:
    size = op.out_channels * op.in_features
    parameters = {0: op.out_channels, 1: 1, 2: size, **fused_activation(op.activation)}
    return NcnnLayer("InnerProduct", parameters, ("weight", "bias"), left_over(op.activation))


def _count_ncnn(ops: FcColumns, soc: Soc) -> FeatureColumns:
    """Features of M rows of K columns, a vector of rows at a time, with streamed weights."""
    m, k = tiling.halvings(ops.oc, soc.cpu.simd_floats), ops.in_features
    return {
        "kernel_steps": m * k,
        "output_vectors": m,
        "planar_bytes": 4.0 * ops.images * k * (ops.ih * ops.iw > 1),
        **by_level("weight", 4.0 * ops.oc * k, soc.cpu.l2_cache_bytes),
    }


def _onnx(op: FullyConnected) -> OrtPlan:
    gemm = node("Gemm", ("x0", "weight", "bias"), transB=1)
    flat = (op.input.n, op.in_features)
    return OrtPlan((gemm,), (flat,), (op.input.n, op.out_channels))


VARIANTS = (
    cpu.CpuKernel("fc", _ncnn, _count_ncnn, FcColumns, name="cpu_gemv"),
    *of_every_storage(GpuRows, GpuDirect, GpuImage),
    *of_onnx("fc", _onnx),
)
