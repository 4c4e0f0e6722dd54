"""Winograd convolution on the GPU: products at points of tiles, fewer than taps of windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

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

#: Points a side by window and stride, each with another tile; see the source.
SIDES = {(3, 1): (4, 6, 8), (5, 1): (6, 8), (7, 1): (8,), (3, 2): (5, 9)}
#: Where the transforms of stride 1 interpolate, infinity aside: the first SIDE - 1.
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)


#: Tiles that are multiplied at once on a CPU by vector width: as many as registers hold sums. Fewer
#: than 8 chains of sums wait for themselves, and are for the smallest images.
TOGETHER = {16: (4, 8, 9, 12, 16, 20, 25), 8: (4, 8, 10, 12), 4: (4, 8)}
FEWEST_CHAINS = 8
#: Share of the second-level cache that the scratch memory of a block of tiles should take, and the
#: fewest tiles for which weights should be read.
SCRATCH_SHARE, FEWEST = 0.35, 16
#: What things cost on a CPU, in multiplications of vectors: an element of either transform; a pass
#: over a weight vector, and every tile that it is for; and the share more that all of it costs
#: where scratch memory fills the second-level cache.
TRANSFORM, PASS, WIDTH, STRAIN = 8, 0.2, 0.003, 0.1
#: The first pass over a weight vector costs so much more than others, and takes at least so long:
#: from the cache beyond the second, and from memory, where the weights are many times as large.
BEYOND, MEMORY, MANY = (1, 8), (1.5, 12), 12
#: Choices of each tile size that are worth trying.
TRIED = 8


@dataclass(frozen=True)
class _Tiling:
    """How one convolution is cut; all that the plan and the features have in common."""

    side: int
    tile: int
    tiles: int
    tiles_w: int
    together: int
    most: int
    parts: int
    workers: int
    in_blocks: int
    out_blocks: int

    @classmethod
    def of(cls, op: Conv2d, soc: Soc, choice: Choice) -> _Tiling:
        tile, together = choice["tile"], choice["together"]
        tiles_w, tiles = _tiles(op, tile)
        limit, units = choice["most"], soc.gpu.compute_units
        workers = min(units, ceil_div(tiles, limit)) if soc.gpu.is_cpu else 1
        # Blocks of equal size, as many for every worker.
        rounds = ceil_div(ceil_div(tiles, limit), workers)
        return cls(
            side=(tile - 1) * op.stride.w + op.kernel.w,
            tile=tile,
            tiles=tiles,
            tiles_w=tiles_w,
            together=together,
            most=round_up(ceil_div(tiles, rounds * workers), together),
            parts=min(units // workers, soc.gpu.blocks(op.out_channels)),
            workers=workers,
            in_blocks=soc.gpu.blocks(op.input.c),
            out_blocks=soc.gpu.blocks(op.out_channels),
        )

    @property
    def points(self) -> int:
        return self.side**2

    @property
    def weight_points(self) -> int:
        """Points of the filter: those of stride 2 for odd inputs are one."""
        return (self.tile + 2) ** 2 if self.side % 2 else self.points

    @property
    def blocks(self) -> int:
        return ceil_div(self.tiles, self.most)

    @property
    def computed(self) -> int:
        """Tiles that are multiplied: every block is filled up to a multiple of `together`."""
        full, rest = divmod(self.tiles, self.most)
        return full * self.most + round_up(rest, self.together)

    def points_floats(self, width: int) -> int:
        """Scratch for the transformed input of a block of tiles; `POINT_STRIDE` in the source."""
        return self.points * ((self.in_blocks * self.most) | 1) * width

    def sums_floats(self, width: int) -> int:
        """Scratch for the sums of one block of output channels; `SUM_STRIDE` in the source."""
        return self.points * (self.most | 1) * width

    def cost(self, op: Conv2d, soc: Soc) -> float:
        """Multiplications of vectors on a CPU, and what takes as long.

        A block of tiles reads its weights once from where they are, and then from the cache.
        """
        cache, width = soc.cpu.l2_cache_bytes, soc.gpu.vector_width
        vectors = op.input.c * self.out_blocks
        products = self.computed * (1 + PASS / self.together + WIDTH * self.together)
        weight_bytes = 4 * self.weight_points * vectors * width
        if weight_bytes > cache:
            more, least = BEYOND if weight_bytes <= MANY * cache else MEMORY
            products += self.blocks * (more + max(0, least - self.together))
        transforms = TRANSFORM * self.tiles * (self.in_blocks + self.out_blocks)
        filled = 4 * (self.points_floats(width) + self.sums_floats(width)) / cache
        return self.points * (vectors * products + transforms) * (1 + STRAIN * min(1, filled))


def _tiles(op: Conv2d, tile: int) -> tuple[int, int]:
    """Tiles of a row, and of the output."""
    in_row = ceil_div(op.output.w, tile)
    return in_row, in_row * ceil_div(op.output.h, tile)


class GpuWinograd:
    """Square windows, such as 3x3 with 16, 36 or 64 products for 4, 16 or 36 outputs."""

    op_kind: ClassVar[str] = "conv2d"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})

    def __init__(self, storage: Storage = BLOCKED) -> None:
        self.storage = storage
        self.name = f"gpu_winograd{storage.suffix}"

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if _window(op) not in SIDES or op.dilation != (1, 1) or op.groups != 1:
            return (
                "Winograd needs kernel=3x3 with stride=1 or 2, or kernel=5x5 or 7x7 with stride=1, "
                "and dilation=1 groups=1, got "
                f"kernel={op.kernel} stride={op.stride} dilation={op.dilation} groups={op.groups}"
            )
        return None

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """The tile's size, the tiles multiplied together, and the most tiles of a block."""
        tiles = [(side - op.kernel.w) // op.stride.w + 1 for side in SIDES[_window(op)]]
        if not soc.gpu.is_cpu:
            order = sorted(tiles, key=lambda tile: abs(tile - 4))
            return tuple({"tile": t, "together": 4, "most": _tiles(op, t)[1]} for t in order)

        def cost(choice: Choice) -> float:
            return _Tiling.of(op, soc, choice).cost(op, soc)

        tried = [sorted(_cuts(op, soc, tile), key=cost)[:TRIED] for tile in tiles]
        return tuple(sorted(chain(*tried), key=cost))

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        t = _Tiling.of(op, soc, choice or self.choices(op, soc)[0])
        width = soc.gpu.vector_width
        in_channels, out_channels = op.input.c, t.out_blocks * width
        values: dict[str, float] = {}
        for side in sorted({side for sides in SIDES.values() for side in sides}):
            here = float(t.side == side)
            values |= {
                f"padded_macs_s{side}": here * t.points * t.computed * in_channels * out_channels,
                f"input_transforms_s{side}": here * t.points * t.tiles * t.in_blocks * t.parts,
                f"output_transforms_s{side}": here * t.points * t.tiles * t.out_blocks,
            }
        size = float(self.storage.element_bytes)
        streamed = size * t.weight_points * in_channels * out_channels
        return {
            **values,
            "weights_streamed": streamed * t.blocks,
            "scratch_bytes": 4.0 * (t.points_floats(width) + t.sums_floats(width)),
            "tiles_together": float(t.together),
            "tile_blocks": float(t.blocks),
            "block_tiles": float(t.most),
            "waves": float(ceil_div(t.blocks, t.workers)),
            "flops": float(op.flops),
            **byte_features(op, soc, self.storage),
            "weight_bytes": streamed,
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        tiling = _Tiling.of(op, soc, choice or self.choices(op, soc)[0])
        width = soc.gpu.vector_width
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
            defines={
                **base_defines(op.activation, soc, self.storage),
                "SIDE": tiling.side,
                "TILE": tiling.tile,
                "STRIDE": op.stride.w,
                "TOGETHER": tiling.together,
            },
            pack=lambda weights: {
                "weight": _transform(weights["weight"], width, tiling),
                "bias": pack_bias(weights["bias"], width),
            },
            scratch=scratch,
        ).stored_as(self.storage)


def _window(op: Conv2d) -> tuple[int, int]:
    """Size and stride of a window that is square; (0, 0) otherwise."""
    square = op.kernel.h == op.kernel.w and op.stride.h == op.stride.w
    return (op.kernel.w, op.stride.w) if square else (0, 0)


def _cuts(op: Conv2d, soc: Soc, tile: int) -> Iterator[Choice]:
    """Ways to cut so many tiles into blocks and parts of blocks on a CPU."""
    points, tiles = ((tile - 1) * op.stride.w + op.kernel.w) ** 2, _tiles(op, tile)[1]
    tile_bytes = 4 * points * soc.gpu.vector_width * (soc.gpu.blocks(op.input.c) + 1)
    fitting = max(FEWEST, int(SCRATCH_SHARE * soc.cpu.l2_cache_bytes / tile_bytes))
    for together in TOGETHER[soc.gpu.vector_width]:
        if together < FEWEST_CHAINS and together < tiles:
            continue
        short = max(1, min(fitting, tiles) // together)
        for times in (short, 4 * short):
            yield {"tile": tile, "together": together, "most": times * together}


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
    for_product, _ = item_grid(t.most // t.together, t.out_blocks, soc)
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


def filter_transform(side: int, window: int) -> NDArray[np.float64]:
    """From the taps of a window to the points of the filter, in one dimension; see `TO_POINTS`."""
    if side == 5:
        return np.array([[1, 0, 0], [1, 0, 1], [0, 0, 1], [0, 1, 0]], np.float64)
    if side == 9:
        taps = [[1, 0, 0], [1, 0, 1], [1, 0, -1], [1, 0, 2], [0, 0, 1], [0, 1, 0]]
        return np.array(taps, np.float64) / [[2], [-2], [-6], [6], [1], [1]]
    points = np.array(POINTS[: side - 1])
    # What the other points' polynomial is at each; the input's transform has the sign at 0.
    scale = np.array([np.prod(p - points[points != p]) for p in points])
    scale[0] = abs(scale[0])
    rows = points[:, None] ** np.arange(window) / scale[:, None]
    return np.vstack([rows, np.eye(window)[-1]])


def _transform(weight: Array, width: int, t: _Tiling) -> Array:
    """(oc, ic, k, k) -> [oc block][point][ic][lane of oc], flat.

    A block at a time, so that the float64 copy stays small.
    """
    transform = filter_transform(t.side, weight.shape[3])
    both, channels = np.kron(transform, transform), weight.shape[1]
    packed = np.zeros((t.out_blocks, both.shape[0], channels, width), np.float32)
    for block in range(t.out_blocks):
        rows = weight[block * width : (block + 1) * width].astype(np.float64)
        points = rows.reshape(rows.shape[0] * channels, -1) @ both.T
        points = points.reshape(rows.shape[0], channels, -1).transpose(2, 1, 0)
        packed[block, :, :, : rows.shape[0]] = points
    return packed.reshape(-1)
