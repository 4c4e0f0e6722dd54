"""Transposed convolution on the GPU: each output pixel gathers the taps of its stride's phase."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from codl.ir.ops.base import Array
from codl.ir.ops.convolution import ConvTranspose2d
from codl.kernels.architecture import holds
from codl.kernels.base import WEIGHTED, Choice, KernelPlan
from codl.kernels.kernel import BLOCKS, Grid, Kernel, launch, of_every_storage
from codl.kernels.registry import register
from codl.kernels.tiling import ceil_div, pack_bias, waves
from codl.records.soc import Soc

#: Share of the second-level cache that a strip's input may take; weights and output share the rest.
CACHE_SHARE = 0.5


@dataclass(frozen=True)
class _Tiling:
    """How one transposed convolution is cut."""

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
    """Any window, stride, dilation and number of groups; small groups cost whole blocks."""

    op_kind = "conv_transpose2d"
    source = "conv_transpose2d/gpu_direct.cl"
    storages = BLOCKS

    def choices(self, op: ConvTranspose2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a tile: as many as registers hold, but no more than a phase of a row has."""
        columns = ceil_div(op.size.w, op.stride.w)
        sizes = (8, 4) if soc.gpu.is_cpu else (4, 2)
        best = min(sizes, key=lambda size: (ceil_div(columns, size) * (size + 2), -size))
        in_order = (best, *(size for size in sizes if size != best))
        # Sums, inputs, and one vector of weights for each of four lanes.
        return tuple({"pixels": size} for size in in_order if holds(soc.gpu, 8 * size + 16))

    def counts(self, op: ConvTranspose2d, soc: Soc, choice: Choice) -> dict[str, float]:
        t, width = _Tiling.of(op, soc, choice), soc.gpu.vector_width
        blocks, window = t.grid.others, op.kernel.h * op.kernel.w
        lanes = 1 if op.is_depthwise else t.reach * width
        # Of a tile: each pixel sees the taps of its phase alone.
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
        transposed = launch(
            "conv_transpose2d_direct",
            t.grid.sizes,
            *WEIGHTED,
            strip=t.grid.strip,
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
            kernel_h=op.kernel.h,
            kernel_w=op.kernel.w,
            stride_h=op.stride.h,
            stride_w=op.stride.w,
            crop_h=op.crop.h,
            crop_w=op.crop.w,
            dilation_h=op.dilation.h,
            dilation_w=op.dilation.w,
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
    """Input blocks that one output block reads, at most."""
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
    """Weights as the kernel reads them, with zeros between channels of different groups."""
    blocks, reach = ceil_div(op.out_channels, width), _reach(op, width)
    if op.is_depthwise:
        padded = np.zeros((blocks * width, *op.kernel), np.float32)
        padded[: op.out_channels] = weight[:, 0]
        lanes = padded.reshape(blocks, width, *op.kernel)
        return np.ravel(np.transpose(lanes, (0, 2, 3, 1)))
    per_out, per_in = op.out_channels // op.groups, op.input.c // op.groups
    packed = np.zeros((blocks, reach * width, *op.kernel, width), np.float32)
    for block in range(blocks):
        first = _first_block(op, block, width) * width
        for channel in range(block * width, min((block + 1) * width, op.out_channels)):
            at = channel // per_out * per_in - first
            packed[block, at : at + per_in, :, :, channel % width] = weight[channel]
    apart = packed.reshape(blocks, reach, width, *op.kernel, width)
    return np.ravel(np.transpose(apart, (0, 1, 3, 4, 2, 5)))


register(*of_every_storage(GpuDirect))
