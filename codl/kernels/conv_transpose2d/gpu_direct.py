"""Transposed convolution on the GPU: each output pixel gathers the taps of its stride's phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Array
from codl.ir.ops.convolution import ConvTranspose2d
from codl.kernels.base import WEIGHTED, Choice, KernelLaunch, KernelPlan
from codl.kernels.conv2d.gpu import pack_bias
from codl.kernels.tiling import base_defines, ceil_div, item_grid, round_up, strip, waves
from codl.kernels.variant import ForStorage
from codl.records.soc import Soc

#: Share of the second-level cache that a strip's input may take; weights and output share the rest.
CACHE_SHARE = 0.5


@dataclass(frozen=True)
class _TransposedTiling:
    """How one transposed convolution is cut."""

    pixels: int
    row_tiles: int
    tiles: int
    strip: int
    reach: int
    out_blocks: int

    @classmethod
    def of(cls, op: ConvTranspose2d, soc: Soc, pixels: int) -> _TransposedTiling:
        out_blocks = soc.gpu.blocks(op.out_channels)
        row_tiles = ceil_div(ceil_div(op.size.w, op.stride.w), pixels)
        tiles = row_tiles * op.stride.w * op.size.h
        reach = _reach(op, soc.gpu.vector_width)
        tile_bytes = 4 * reach * soc.gpu.vector_width * pixels
        most = max(1, int(CACHE_SHARE * soc.cpu.l2_cache_bytes / tile_bytes))
        length = strip(tiles, out_blocks, most, soc)
        return cls(pixels, row_tiles, tiles, length, reach, out_blocks)


class GpuDirect(ForStorage):
    """Any window, stride, dilation and number of groups; small groups cost whole blocks."""

    op_kind: ClassVar[str] = "conv_transpose2d"
    base_name: ClassVar[str] = "gpu_direct"

    def choices(self, op: ConvTranspose2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a tile: as many as registers hold, but no more than a phase of a row has."""
        columns = ceil_div(op.size.w, op.stride.w)
        sizes = (8, 4) if soc.gpu.is_cpu else (4, 2)
        best = min(sizes, key=lambda size: (ceil_div(columns, size) * (size + 2), -size))
        return tuple({"pixels": size} for size in (best, *(s for s in sizes if s != best)))

    def features(
        self, op: ConvTranspose2d, soc: Soc, choice: Choice | None = None
    ) -> dict[str, float]:
        tiling = _TransposedTiling.of(op, soc, (choice or self.choices(op, soc)[0])["pixels"])
        width, blocks = soc.gpu.vector_width, tiling.out_blocks
        lanes = 1 if op.is_depthwise else tiling.reach * width
        taps = op.kernel.h * op.kernel.w / (op.stride.h * op.stride.w)
        items = ceil_div(tiling.tiles, tiling.strip) * blocks
        size = self.storage.element_bytes
        macs = tiling.tiles * tiling.pixels * taps * lanes * width
        return {
            "padded_macs": float(macs * blocks),
            "tiles": float(tiling.tiles * blocks),
            "tap_checks": float(tiling.tiles * blocks * op.kernel.h * op.kernel.w),
            "work_items": float(items),
            "waves": waves(items, soc),
            "wave_macs": waves(tiling.tiles * blocks, soc) * tiling.pixels * taps * lanes * width,
            "flops": float(op.flops),
            "input_bytes": float(size * round_up(op.input.c, width) * op.input.h * op.input.w),
            "weight_bytes": float(size * blocks * width * lanes * op.kernel.h * op.kernel.w),
            "output_bytes": float(size * blocks * width * op.size.h * op.size.w),
        }

    def plan(self, op: ConvTranspose2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        tiling = _TransposedTiling.of(op, soc, (choice or self.choices(op, soc)[0])["pixels"])
        width, strips = soc.gpu.vector_width, ceil_div(tiling.tiles, tiling.strip)
        global_size, local_size = item_grid(strips, tiling.out_blocks, soc)
        sizes = (
            tiling.strip,
            tiling.tiles,
            tiling.row_tiles,
            soc.gpu.blocks(op.input.c),
            op.input.h,
            op.input.w,
            tiling.out_blocks,
            op.size.w,
            tiling.reach,
            op.out_channels // op.groups,
            op.input.c // op.groups,
            *op.kernel,
            *op.stride,
            *op.crop,
            *op.dilation,
        )
        args = (*WEIGHTED, *sizes)
        return KernelPlan(
            source="conv_transpose2d/gpu_direct.cl",
            launches=(KernelLaunch("conv_transpose2d_direct", global_size, args, local_size),),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "PIXELS": tiling.pixels,
                **({"DEPTHWISE": 1} if op.is_depthwise else {}),
            },
            pack=lambda weights: {
                "weight": _pack(op, weights["weight"], width),
                "bias": pack_bias(weights["bias"], width, blocks_of_zeros=1),
            },
        ).stored_as(self.storage)


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
