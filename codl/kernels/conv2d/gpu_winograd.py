"""Winograd convolution on the GPU: products at points of tiles, fewer than taps of windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from codl.kernels import columns
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
from codl.kernels.columns import ChoiceColumns, Column, ConvColumns, FeatureColumns, single
from codl.kernels.conv2d.gpu_direct import byte_columns, pack_bias
from codl.kernels.tiling import base_defines, item_grid
from codl.ops.base import Array
from codl.ops.conv2d import Conv2d
from codl.soc import Soc

#: Points a side by window and stride, each with another tile; see the source.
SIDES = {(3, 1): (4, 6, 8), (5, 1): (6, 8), (7, 1): (8,), (3, 2): (5, 9)}
SIZES = sorted({side for sides in SIDES.values() for side in sides})
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
    """How convolutions are cut; all that the plan and the features have in common."""

    side: Column
    tile: Column
    tiles: Column
    tiles_w: Column
    together: Column
    most: Column
    parts: Column
    workers: Column
    in_blocks: Column
    out_blocks: Column

    @classmethod
    def of(cls, ops: ConvColumns, soc: Soc, choice: ChoiceColumns) -> _Tiling:
        """Columns shaped (ops), or (choices, ops) where the choices' are (choices, ops)."""
        tile, together, limit = (
            np.asarray(choice[name], np.float64) for name in ("tile", "together", "most")
        )
        tiles_w, tiles = _tiles(ops, tile)
        units = float(soc.gpu.compute_units)
        limits = columns.ceil_div(tiles, limit)
        workers = np.minimum(units, limits) if soc.gpu.is_cpu else np.ones_like(tiles)
        # Blocks of equal size, as many for every worker.
        rounds = columns.ceil_div(limits, workers)
        out_blocks = columns.ceil_div(ops.oc, soc.gpu.vector_width)
        return cls(
            side=(tile - 1) * ops.sw + ops.kw,
            tile=tile,
            tiles=tiles,
            tiles_w=tiles_w,
            together=together,
            most=columns.round_up(columns.ceil_div(tiles, rounds * workers), together),
            parts=np.minimum(np.floor(units / workers), out_blocks),
            workers=workers,
            in_blocks=columns.ceil_div(ops.ic, soc.gpu.vector_width),
            out_blocks=out_blocks,
        )

    def first(self) -> _Cut:
        """How the first op is cut."""
        return _Cut(**{k: int(v.flat[0]) for k, v in vars(self).items()})

    @property
    def points(self) -> Column:
        return self.side**2

    @property
    def weight_points(self) -> Column:
        """Points of the filter: those of stride 2 for odd inputs are one."""
        return np.where(np.mod(self.side, 2) > 0, (self.tile + 2) ** 2, self.points)

    @property
    def blocks(self) -> Column:
        return columns.ceil_div(self.tiles, self.most)

    @property
    def computed(self) -> Column:
        """Tiles that are multiplied: every block is filled up to a multiple of `together`."""
        full = np.floor(self.tiles / self.most) * self.most
        return full + columns.round_up(self.tiles - full, self.together)

    def points_floats(self, width: int) -> Column:
        """Scratch for the transformed input of a block of tiles; `POINT_STRIDE` in the source."""
        return self.points * _odd(self.in_blocks * self.most) * width

    def sums_floats(self, width: int) -> Column:
        """Scratch for the sums of one block of output channels; `SUM_STRIDE` in the source."""
        return self.points * _odd(self.most) * width

    def cost(self, ops: ConvColumns, soc: Soc) -> Column:
        """Multiplications of vectors on a CPU, and what takes as long.

        A block of tiles reads its weights once from where they are, and then from the cache.
        """
        cache, width = soc.cpu.l2_cache_bytes, soc.gpu.vector_width
        vectors = ops.ic * self.out_blocks
        products = self.computed * (1 + PASS / self.together + WIDTH * self.together)
        weight_bytes = 4 * self.weight_points * vectors * width
        few = weight_bytes <= MANY * cache
        more, least = (np.where(few, near, far) for near, far in zip(BEYOND, MEMORY, strict=True))
        first_passes = self.blocks * (more + np.maximum(0, least - self.together))
        products = products + np.where(weight_bytes > cache, first_passes, 0)
        transforms = TRANSFORM * self.tiles * (self.in_blocks + self.out_blocks)
        filled = 4 * (self.points_floats(width) + self.sums_floats(width)) / cache
        strained = 1 + STRAIN * np.minimum(1, filled)
        result: Column = self.points * (vectors * products + transforms) * strained
        return result


@dataclass(frozen=True)
class _Cut:
    """A `_Tiling` of one op, in whole numbers."""

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

    @property
    def points(self) -> int:
        return self.side**2


def _odd(sizes: Column) -> Column:
    """The same size, or one more: strides that are powers of two share the cache's sets."""
    return sizes + (np.mod(sizes, 2) == 0)


def _tiles(ops: ConvColumns, tile: Column) -> tuple[Column, Column]:
    """Tiles of a row, and of the output."""
    in_row = columns.ceil_div(ops.ow, tile)
    return in_row, in_row * columns.ceil_div(ops.oh, tile)


class GpuWinograd:
    """Square windows, such as 3x3 with 16, 36 or 64 products for 4, 16 or 36 outputs."""

    op_kind: ClassVar[str] = "conv2d"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})
    op_columns: ClassVar[type[ConvColumns]] = ConvColumns

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
        ops = ConvColumns.of([op])
        found, cost = _cuts(ops, soc)
        if not soc.gpu.is_cpu:
            order = np.argsort(cost[:, 0], kind="stable")[np.newaxis]
        else:
            tiles = found["tile"][:, 0]
            each = [np.flatnonzero(tiles == tile) for tile in dict.fromkeys(tiles)]
            order = [at[np.argsort(cost[at, 0], kind="stable")][:TRIED] for at in each]
        tried = np.concatenate(order)
        tried = tried[np.argsort(cost[tried, 0], kind="stable")]
        at = [int(row) for row in tried if np.isfinite(cost[row, 0])]
        return tuple({name: int(rows[row, 0]) for name, rows in found.items()} for row in at)

    def default_columns(self, ops: ConvColumns, soc: Soc) -> ChoiceColumns:
        found, cost = _cuts(ops, soc)
        best = np.argmin(cost, axis=0)
        return {name: rows[best, np.arange(best.size)] for name, rows in found.items()}

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        return single(self.feature_columns(ConvColumns.of([op]), soc, choice))

    def feature_columns(
        self, ops: ConvColumns, soc: Soc, choice: ChoiceColumns | None = None
    ) -> FeatureColumns:
        t = _Tiling.of(ops, soc, choice or self.default_columns(ops, soc))
        width = soc.gpu.vector_width
        out_channels = t.out_blocks * width
        macs = t.points * t.computed * ops.ic * out_channels
        into = t.points * t.tiles * t.in_blocks * t.parts
        out_of = t.points * t.tiles * t.out_blocks
        values: FeatureColumns = {}
        for side in SIZES:
            here = t.side == side
            values[f"padded_macs_s{side}"] = here * macs
            values[f"input_transforms_s{side}"] = here * into
            values[f"output_transforms_s{side}"] = here * out_of
        streamed = self.storage.element_bytes * t.weight_points * ops.ic * out_channels
        return {
            **values,
            "weights_streamed": streamed * t.blocks,
            "scratch_bytes": 4.0 * (t.points_floats(width) + t.sums_floats(width)),
            "tiles_together": np.broadcast_to(t.together, t.tiles.shape),
            "tile_blocks": t.blocks,
            "block_tiles": t.most,
            "waves": columns.ceil_div(t.blocks, t.workers),
            "flops": ops.flops,
            **byte_columns(ops, soc, self.storage),
            "weight_bytes": streamed,
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        ops, width = ConvColumns.of([op]), soc.gpu.vector_width
        cut = _Tiling.of(ops, soc, choice or self.default_columns(ops, soc))
        points, sums = (4 * int(f[0]) for f in (cut.points_floats(width), cut.sums_floats(width)))
        tiling = cut.first()
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


def _cuts(ops: ConvColumns, soc: Soc) -> tuple[dict[str, Column], Column]:
    """Ways to cut the tiles into blocks, by name, and what each costs, all shaped (cuts, ops).

    What is no way for an op, or not worth trying, costs infinitely much.
    """
    window = ops.kw + 100 * ops.sw
    sides = np.full((max(map(len, SIDES.values())), ops.kw.size), np.nan)
    for (size, stride), known in SIDES.items():
        sides[: len(known), window == size + 100 * stride] = np.reshape(known, (-1, 1))
    tile = (sides - ops.kw) / ops.sw + 1
    tiles = _tiles(ops, tile)[1]
    if not soc.gpu.is_cpu:
        found = {"tile": tile, "together": np.full_like(tile, 4), "most": tiles}
        return found, np.where(np.isnan(tile), np.inf, np.abs(tile - 4))
    width = soc.gpu.vector_width
    tile_bytes = 4 * sides**2 * width * (columns.ceil_div(ops.ic, width) + 1)
    fitting = np.floor(SCRATCH_SHARE * soc.cpu.l2_cache_bytes / tile_bytes)
    fitting = np.minimum(np.maximum(FEWEST, fitting), tiles)
    # (sizes, together, times, ops)
    together = np.reshape(np.array(TOGETHER[width], np.float64), (1, -1, 1, 1))
    short = np.maximum(1, np.floor(fitting[:, None, None] / together))
    most = short * np.reshape((1.0, 4.0), (1, 1, -1, 1)) * together
    shape = (-1, ops.kw.size)
    found = {
        name: np.broadcast_to(values, most.shape).reshape(shape)
        for name, values in (("tile", tile[:, None, None]), ("together", together), ("most", most))
    }
    cost = _Tiling.of(ops, soc, found).cost(ops, soc)
    all_tiles = np.broadcast_to(tiles[:, None, None], most.shape).reshape(shape)
    few = (found["together"] < FEWEST_CHAINS) & (found["together"] < all_tiles)
    return found, np.where(few | np.isnan(cost), np.inf, cost)


def _fused(op: Conv2d, t: _Cut, width: int) -> Launch:
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


def _steps(op: Conv2d, t: _Cut, soc: Soc) -> tuple[Launch, ...]:
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


def _transform(weight: Array, width: int, t: _Cut) -> Array:
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
