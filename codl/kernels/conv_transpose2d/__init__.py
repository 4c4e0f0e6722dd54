"""Transposed convolution on the GPU: each output pixel gathers the taps of its stride's phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codl.ir.columns import ceil_div, round_up
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.convolution import ConvTranspose2d
from codl.ir.records.soc import Soc
from codl.kernels import cpu
from codl.kernels.base import WEIGHTED, Choice, KernelPlan
from codl.kernels.cpu import NamedArrays, NcnnLayer, OrtPlan, ints, node, of_onnx, window_layer
from codl.kernels.kernel import BLOCKS, Grid, Kernel, of_every_storage
from codl.kernels.tiling import holds, in_blocks, pack_bias, waves

#: Share of the second-level cache for a strip's input; weights and output use the rest.
CACHE_SHARE = 0.5


@dataclass(frozen=True)
class _Tiling:
    pixels: int
    row_tiles: int
    tiles: int
    reach: int
    grid: Grid

    @classmethod
    def of(cls, op: ConvTranspose2d, soc: Soc, choice: Choice) -> _Tiling:
        pixels, width = choice["pixels"], soc.gpu.vector_width
        row_tiles = ceil_div(ceil_div(op.size.w, op.stride.w), pixels)
        tiles = row_tiles * op.stride.w * op.size.h
        reach = _reach(op, width)
        most = max(1, int(CACHE_SHARE * soc.cpu.l2_cache_bytes / (4 * reach * width * pixels)))
        grid = Grid.of(tiles, soc.gpu.blocks(op.out_channels), most, soc)
        return cls(pixels, row_tiles, tiles, reach, grid)


class GpuDirect(Kernel):
    """Any window, stride, dilation and groups; small groups cost whole blocks."""

    op_kind = "conv_transpose2d"
    source = "conv_transpose2d/gpu_direct.cl"
    storages = BLOCKS

    def choices(self, op: ConvTranspose2d, soc: Soc) -> tuple[Choice, ...]:
        """Choices of pixels of a tile, up to the pixels of a row that share a stride phase."""
        columns = ceil_div(op.size.w, op.stride.w)
        sizes = (8, 4) if soc.gpu.is_cpu else (4, 2)
        best = min(sizes, key=lambda size: (ceil_div(columns, size) * (size + 2), -size))
        in_order = (best, *(size for size in sizes if size != best))
        # Registers: sums, inputs, and a vector of weights for each of four lanes.
        return tuple({"pixels": size} for size in in_order if holds(soc.gpu, 8 * size + 16))

    def counts(self, op: ConvTranspose2d, soc: Soc, choice: Choice) -> dict[str, float]:
        t, width = _Tiling.of(op, soc, choice), soc.gpu.vector_width
        blocks, window = t.grid.others, op.kernel.h * op.kernel.w
        lanes = 1 if op.is_depthwise else t.reach * width
        # Per tile: each pixel reads only the taps of its phase.
        macs = t.pixels * (window / (op.stride.h * op.stride.w)) * lanes * width
        turns = waves(t.tiles * blocks, soc) if soc.gpu.is_cpu else t.grid.features["waves"]
        return {
            "padded_macs": t.tiles * macs * blocks,
            "tiles": t.tiles * blocks,
            "tap_checks": t.tiles * blocks * window,
            **t.grid.features,
            "wave_macs": turns * macs,
            "flops": op.flops,
            "input_bytes": self.stored(soc.gpu.blocks(op.input.c) * width)
            * (op.input.h * op.input.w),
            "weight_bytes": self.stored(blocks * width * lanes * window),
            "output_bytes": self.stored(blocks * width * op.size.h * op.size.w),
        }

    def build(self, op: ConvTranspose2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, width = _Tiling.of(op, soc, choice), soc.gpu.vector_width
        transposed = t.grid.launch(
            "conv_transpose2d_direct",
            *WEIGHTED,
            tiles=t.tiles,
            row_tiles=t.row_tiles,
            in_blocks=soc.gpu.blocks(op.input.c),
            in_h=op.input.h,
            in_w=op.input.w,
            out_blocks=t.grid.others,
            out_w=op.size.w,
            reach=t.reach,
            per_out=op.out_channels // op.groups,
            per_in=op.input.c // op.groups,
            **{
                f"{name}_{axis}": getattr(getattr(op, name), axis)
                for name in ("kernel", "stride", "crop", "dilation")
                for axis in "hw"
            },
        )
        return self.assemble(
            op,
            soc,
            transposed,
            macros={"PIXELS": t.pixels, "DEPTHWISE": op.is_depthwise},
            pack=lambda weights: {
                "weight": _pack(op, weights["weight"], width),
                "bias": pack_bias(weights["bias"], width, blocks_of_zeros=1),
            },
        )


def _first_block(op: ConvTranspose2d, block: int, width: int) -> int:
    """The first input block that an output block reads."""
    return block * width // (op.out_channels // op.groups) * (op.input.c // op.groups) // width


def _reach(op: ConvTranspose2d, width: int) -> int:
    """The most input blocks that an output block reads."""
    if op.is_depthwise:
        return 1
    per_out, per_in = op.out_channels // op.groups, op.input.c // op.groups
    reach = 1
    for block in range(ceil_div(op.out_channels, width)):
        last = min((block + 1) * width, op.out_channels) - 1
        last_block = (last // per_out * per_in + per_in - 1) // width
        reach = max(reach, last_block - _first_block(op, block, width) + 1)
    return reach


def _pack(op: ConvTranspose2d, weight: Array, width: int) -> Array:
    """Pack weights in the kernel's order, with zeros between channels of different groups."""
    blocks, reach = ceil_div(op.out_channels, width), _reach(op, width)
    if op.is_depthwise:
        return np.ravel(np.transpose(in_blocks(weight[:, 0], width), (0, 2, 3, 1)))
    per_out, per_in = op.out_channels // op.groups, op.input.c // op.groups
    packed = np.zeros((blocks, reach * width, *op.kernel, width), np.float32)
    for block in range(blocks):
        first = _first_block(op, block, width) * width
        for channel in range(block * width, min((block + 1) * width, op.out_channels)):
            at = channel // per_out * per_in - first
            packed[block, at : at + per_in, :, :, channel % width] = weight[channel]
    apart = packed.reshape(blocks, reach, width, *op.kernel, width)
    return np.ravel(np.transpose(apart, (0, 1, 3, 4, 2, 5)))


# The CPU.


def _ncnn(op: ConvTranspose2d) -> NcnnLayer:
    whole = (
        (n - 1) * s + extent
        for n, s, extent in zip((op.input.h, op.input.w), op.stride, op.extent, strict=True)
    )
    # Rows and columns after the output; negative where the result is too short.
    below, beside = (w - crop - n for w, crop, n in zip(whole, op.crop, op.size, strict=True))
    pads = {
        4: op.crop.w,
        15: max(beside, 0),
        14: op.crop.h,
        16: max(below, 0),
        18: max(-beside, 0),
        19: max(-below, 0),
    }
    # ncnn assumes its own channel stride when it splits groups.
    cut = op.groups > 1 and not op.is_depthwise
    return window_layer(op, "Deconvolution", pads, copies_input=cut)


def _count_ncnn(op: ConvTranspose2d, soc: Soc) -> dict[str, float]:
    lanes = soc.cpu.simd_floats
    oc, per_group = round_up(op.out_channels, lanes), op.input.c // op.groups
    taps = op.kernel.h * op.kernel.w
    return {
        "padded_macs": op.input.h * op.input.w * oc * per_group * taps,
        "output_blocks": op.size.h * op.size.w * oc // lanes,
        "depthwise": op.is_depthwise,
        "input_bytes": op.input.bytes,
        "weight_bytes": 4.0 * op.out_channels * per_group * taps,
        "output_bytes": op.output.bytes,
    }


def _onnx(op: ConvTranspose2d) -> OrtPlan:
    """The op as ONNX nodes; the bias comes last, because added rows and columns have it too."""
    axes = list(zip((op.input.h, op.input.w), op.stride, op.extent, op.crop, op.size, strict=True))
    behind = [(n - 1) * stride + extent - crop - size for n, stride, extent, crop, size in axes]
    conv = node(
        "ConvTranspose",
        ("x0", "weight"),
        "whole",
        kernel_shape=list(op.kernel),
        strides=list(op.stride),
        dilations=list(op.dilation),
        group=op.groups,
    )
    pads = ints(0, 0, *(-crop for crop in op.crop), 0, 0, *(-rest for rest in behind))
    nodes = (conv, node("Pad", ("whole", "pads"), "cut"), node("Add", ("cut", "bias")))

    def pack(weights: Weights) -> NamedArrays:
        """Weights with input channels first, as ONNX has them, and a bias that broadcasts."""
        per_group = op.out_channels // op.groups
        grouped = weights["weight"].reshape(op.groups, per_group, -1, *op.kernel).swapaxes(1, 2)
        weight = np.ascontiguousarray(grouped).reshape(-1, per_group, *op.kernel)
        return {"weight": weight, "bias": weights["bias"].reshape(-1, 1, 1)}

    return OrtPlan(nodes, op.inputs, op.output, {"pads": pads}, pack)


VARIANTS = (
    cpu.CpuKernel(
        "conv_transpose2d",
        _ncnn,
        _count_ncnn,
        refuse=lambda op: f"crop must not be negative, got {op.crop}" if min(op.crop) < 0 else None,
    ),
    *of_every_storage(GpuDirect),
    *of_onnx("conv_transpose2d", _onnx),
)
