"""Winograd convolution on the GPU: F(6x6, 3x3) or F(4x4, 3x3), whichever is cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from codl.kernels.base import (
    BLOCKED,
    Choice,
    ConstantArg,
    KernelPlan,
    Launch,
    Processor,
    ScratchArg,
    Storage,
    TensorArg,
)
from codl.kernels.conv2d.gpu_direct import byte_features, pack_bias
from codl.kernels.tiling import base_defines, ceil_div, item_grid, round_up
from codl.ops.base import Array
from codl.ops.conv2d import Conv2d
from codl.soc import Soc

#: The filter transforms: rows are interpolation points, see `TO_POINTS` in the source.
FILTER_TRANSFORMS = {
    4: np.array(
        [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]], np.float64
    )
    / 24,
    6: np.array(
        [
            [90, 0, 0],
            [-20, -20, -20],
            [-20, 20, -20],
            [1, 2, 4],
            [1, -2, 4],
            [64, 32, 16],
            [64, -32, 16],
            [0, 0, 90],
        ],
        np.float64,
    )
    / 90,
}
#: Share of the second-level cache that the transformed input of a block of tiles should take, and
#: the share of it in transformed weights that makes up for one tile more: these are read from
#: beyond it for every block, and then long blocks win although their input leaves the cache too.
INPUT_SHARE, WEIGHT_SHARE = 0.2, 0.3
#: Tiles of a block: fewer read the weights too often, more bring nothing.
FEWEST, MOST = 12, 52


@dataclass(frozen=True)
class _Tiling:
    """How one convolution is cut; all that the plan and the features have in common."""

    tile: int
    tiles: int
    tiles_w: int
    most: int
    parts: int
    workers: int
    in_blocks: int
    out_blocks: int

    @property
    def points(self) -> int:
        return (self.tile + 2) ** 2

    @property
    def blocks(self) -> int:
        return ceil_div(self.tiles, self.most)

    @property
    def computed(self) -> int:
        """Tiles that are multiplied: the last block is filled up to a multiple of 4."""
        return round_up(self.tiles, 4)

    def points_floats(self, width: int) -> int:
        """Scratch for the transformed input of a block of tiles; `POINT_STRIDE` in the source."""
        return self.points * ((self.in_blocks * self.most) | 1) * width

    def sums_floats(self, width: int) -> int:
        """Scratch for the sums of one block of output channels; `SUM_STRIDE` in the source."""
        return self.points * (self.most | 1) * width

    @classmethod
    def of(cls, op: Conv2d, soc: Soc) -> _Tiling:
        if not soc.gpu.is_cpu:
            return cls.with_tile(op, soc, 4)
        return min((cls.with_tile(op, soc, tile) for tile in (6, 4)), key=lambda t: t.cost(op))

    @classmethod
    def with_tile(cls, op: Conv2d, soc: Soc, tile: int) -> _Tiling:
        tiles_w = ceil_div(op.output.w, tile)
        tiles = tiles_w * ceil_div(op.output.h, tile)
        limit, units = _longest_block(op, soc, tile), soc.gpu.compute_units
        workers = min(units, ceil_div(tiles, limit)) if soc.gpu.is_cpu else 1
        # Blocks of equal size, as many for every worker.
        rounds = ceil_div(ceil_div(tiles, limit), workers) if soc.gpu.is_cpu else 1
        return cls(
            tile=tile,
            tiles=tiles,
            tiles_w=tiles_w,
            most=round_up(ceil_div(tiles, rounds * workers), 4),
            parts=min(units // workers, soc.gpu.blocks(op.out_channels)),
            workers=workers,
            in_blocks=soc.gpu.blocks(op.input.c),
            out_blocks=soc.gpu.blocks(op.out_channels),
        )

    def cost(self, op: Conv2d) -> float:
        """Vector operations, roughly: products, transforms, and waiting for the weights.

        A vector of weights takes the time of some 5 multiplications where it comes from memory (the
        first block of tiles), and of 1 where it comes from a cache.
        """
        weights = self.points * op.input.c * self.out_blocks
        transforms = 8 * self.points * self.tiles * (self.in_blocks + self.out_blocks)
        return weights * (self.computed + 5 + self.blocks - 1) + transforms


def _longest_block(op: Conv2d, soc: Soc, tile: int) -> int:
    """Tiles of a block on a CPU, before they are evened out."""
    points, width, cache = (tile + 2) ** 2, soc.gpu.vector_width, soc.cpu.l2_cache_bytes
    tile_bytes = 4 * points * round_up(op.input.c, width)
    weight_bytes = 4 * points * op.input.c * round_up(op.out_channels, width)
    fitting = int(INPUT_SHARE * cache / tile_bytes)
    paying = int(weight_bytes / (WEIGHT_SHARE * cache))
    return min(max(fitting, paying, FEWEST), MOST)


class GpuWinograd:
    """Convolutions with a 3x3 window and stride 1: 36 or 64 products for 16 or 36 outputs."""

    op_kind: ClassVar[str] = "conv2d"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})

    def __init__(self, storage: Storage = BLOCKED) -> None:
        self.storage = storage
        self.name = f"gpu_winograd{storage.suffix}"

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.kernel != (3, 3) or op.stride != (1, 1) or op.dilation != (1, 1) or op.groups != 1:
            return (
                "Winograd needs kernel=3x3 stride=1 dilation=1 groups=1, got "
                f"kernel={op.kernel} stride={op.stride} dilation={op.dilation} groups={op.groups}"
            )
        return None

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        return ({},)

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        t, width = _Tiling.of(op, soc), soc.gpu.vector_width
        in_channels, out_channels = op.input.c, t.out_blocks * width
        values: dict[str, float] = {}
        for tile in (4, 6):
            here = float(t.tile == tile)
            values |= {
                f"padded_macs_f{tile}": here * t.points * t.computed * in_channels * out_channels,
                f"input_transforms_f{tile}": here * t.points * t.tiles * t.in_blocks * t.parts,
                f"output_transforms_f{tile}": here * t.points * t.tiles * t.out_blocks,
            }
        streamed = float(self.storage.element_bytes) * t.points * in_channels * out_channels
        return {
            **values,
            "weights_streamed": streamed * t.blocks,
            "tile_blocks": float(t.blocks),
            "block_tiles": float(t.most),
            "waves": float(ceil_div(t.blocks, t.workers)),
            "flops": float(op.flops),
            **byte_features(op, soc, self.storage),
            "weight_bytes": streamed,
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        tiling, width = _Tiling.of(op, soc), soc.gpu.vector_width
        points, sums = 4 * tiling.points_floats(width), 4 * tiling.sums_floats(width)
        if soc.gpu.is_cpu:
            launches: tuple[Launch, ...] = (_fused(op, tiling, width),)
            scratch = {"tiles": (points + sums) * tiling.parts * tiling.workers}
        else:
            launches = _steps(op, tiling, soc)
            scratch = {"points": points, "sums": sums * tiling.out_blocks}
        return KernelPlan(
            source="conv2d/gpu_winograd.cl",
            launches=launches,
            defines={**base_defines(op.activation, soc, self.storage), "TILE": tiling.tile},
            pack=lambda weights: {
                "weight": _transform(weights["weight"], width, tiling.tile),
                "bias": pack_bias(weights["bias"], width),
            },
            scratch=scratch,
        ).stored_as(self.storage)


def _fused(op: Conv2d, t: _Tiling, width: int) -> Launch:
    """One persistent work-item for every worker and part of the output channels."""
    sizes = (
        t.points_floats(width) + t.sums_floats(width),
        t.most,
        t.tiles,
        t.tiles_w,
        op.input.c,
        t.in_blocks,
        op.input.h,
        op.input.w,
        t.out_blocks,
        op.output.h,
        op.output.w,
        op.pad.top,
        op.pad.left,
    )
    buffers = (ConstantArg("weight"), ConstantArg("bias"), ScratchArg("tiles"))
    return Launch(
        kernel="conv2d_winograd",
        global_size=(t.parts, t.workers),
        local_size=(1, 1),
        args=(TensorArg("input"), TensorArg("output"), *buffers, *sizes),
    )


def _steps(op: Conv2d, t: _Tiling, soc: Soc) -> tuple[Launch, ...]:
    """Input transform, products and output transform as kernels of their own."""
    points, sums, counts = ScratchArg("points"), ScratchArg("sums"), (t.most, t.tiles, t.tiles_w)
    window = (op.input.h, op.input.w, op.pad.top, op.pad.left)
    for_input, local_size = item_grid(t.tiles, t.in_blocks, soc)
    for_output, _ = item_grid(t.tiles, t.out_blocks, soc)
    for_product, _ = item_grid(t.most // 4, t.out_blocks, soc)
    return (
        Launch(
            kernel="winograd_input",
            global_size=for_input,
            local_size=local_size,
            args=(TensorArg("input"), points, *counts, t.in_blocks, *window),
        ),
        Launch(
            kernel="winograd_product",
            global_size=(*for_product, t.points),
            local_size=(*local_size, 1),
            args=(
                points,
                sums,
                ConstantArg("weight"),
                t.most,
                op.input.c,
                t.in_blocks,
                t.out_blocks,
            ),
        ),
        Launch(
            kernel="winograd_output",
            global_size=for_output,
            local_size=local_size,
            args=(sums, TensorArg("output"), ConstantArg("bias"), *counts, *op.out_hw),
        ),
    )


def _transform(weight: Array, width: int, tile: int) -> Array:
    """(oc, ic, 3, 3) -> [oc block][point][ic][lane of oc], flat.

    A block at a time, so that the float64 copy stays small.
    """
    transform = FILTER_TRANSFORMS[tile]
    both = np.kron(transform, transform)
    blocks, channels = ceil_div(weight.shape[0], width), weight.shape[1]
    packed = np.zeros((blocks, both.shape[0], channels, width), np.float32)
    for block in range(blocks):
        rows = weight[block * width : (block + 1) * width].astype(np.float64)
        points = rows.reshape(-1, 9) @ both.T
        points = points.reshape(rows.shape[0], channels, -1).transpose(2, 1, 0)
        packed[block, :, :, : rows.shape[0]] = points
    return packed.reshape(-1)
