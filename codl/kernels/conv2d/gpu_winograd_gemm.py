"""Winograd convolution on the GPU as a batch of matrix products, one for each point."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np

from codl.ir.columns import Column
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.records.soc import GpuSide, Soc
from codl.kernels.base import (
    ENDS,
    ApartArg,
    Choice,
    ConstantArg,
    KernelLaunch,
    KernelPlan,
    ScratchArg,
)
from codl.kernels.conv2d.gpu import byte_columns
from codl.kernels.conv2d.gpu_gemm import (
    MOST_CHOICES,
    GemmCut,
    GemmProblem,
    cuts,
    refuse_width,
    row_window,
)
from codl.kernels.conv2d.gpu_winograd import (
    filter_growth,
    filter_points,
    filter_transform,
    input_args,
    is_in_place,
    refuse_window,
)
from codl.kernels.feature_columns import ChoiceColumns, single
from codl.kernels.kernel import ANY_DEVICE, BLOCKS, REAL_GPU, Kernel, launch
from codl.kernels.tiling import ceil_div, holds, is_card, item_grid, pack_bias

#: Rows and columns of a tile's outputs.
TILES = (2, 4, 6)
#: With fewer input channels, the transforms cost more than the products save.
FEWEST_INPUTS = 16
#: The most bytes of points and sums; further images of a batch reuse the memory afterwards.
SCRATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class _WinogradGemmTiling:
    """The tiles of one convolution, and the cut of the products over them.

    A batch is computed `images` at a time, in nearly equal parts.
    """

    tile: int
    tiles_h: int
    tiles_w: int
    in_blocks: int
    out_blocks: int
    images: int

    @classmethod
    def of(cls, op: Conv2d, tile: int) -> _WinogradGemmTiling:
        alone = cls(
            tile=tile,
            tiles_h=ceil_div(op.output.h, tile),
            tiles_w=ceil_div(op.output.w, tile),
            in_blocks=ceil_div(op.input.c, 4),
            out_blocks=ceil_div(op.out_channels, 4),
            images=1,
        )
        most = max(1, SCRATCH_BYTES // alone.bytes(alone.in_blocks + alone.out_blocks))
        return replace(alone, images=ceil_div(op.output.n, ceil_div(op.output.n, most)))

    @property
    def points(self) -> int:
        return (self.tile + 2) ** 2

    @property
    def image_tiles(self) -> int:
        return self.tiles_h * self.tiles_w

    @property
    def tiles(self) -> int:
        return self.images * self.image_tiles

    def bytes(self, blocks: int) -> int:
        """Bytes of `blocks` blocks of channels at all points."""
        return 16 * self.points * self.tiles * blocks

    def turns(self, op: Conv2d) -> list[tuple[int, _WinogradGemmTiling]]:
        """The first image of each launch, with the tiling of its images."""
        firsts = range(0, op.output.n, self.images)
        return [(n, replace(self, images=min(self.images, op.output.n - n))) for n in firsts]

    @property
    def product(self) -> GemmProblem:
        return GemmProblem(self.tiles, self.in_blocks, self.out_blocks, batches=self.points)

    def cost(self, cut: GemmCut, gpu: GpuSide) -> float:
        """A rough latency in cycles of a compute unit; see `GemmCut.cost`."""
        blocks = self.in_blocks + cut.splits * self.out_blocks
        moved = 16 * self.tiles * self.points * blocks
        return cut.cost(self.product, gpu) + 10000 + 800 * cut.splits + 0.44 * moved / 1000


def _tiles(gpu: GpuSide) -> list[int]:
    """Tile sizes whose points fit the registers during the transforms."""
    return [t for t in TILES if is_card(gpu) or gpu.is_cpu or holds(gpu, 4 + (t + 2) ** 2)]


def _tilings(op: Conv2d, soc: Soc) -> list[tuple[_WinogradGemmTiling, GemmCut]]:
    """Tilings and cuts to try, the cheapest first."""
    every = [
        (tiling, cut)
        for tiling in (_WinogradGemmTiling.of(op, tile) for tile in _tiles(soc.gpu))
        for cut in cuts(tiling.product, soc.gpu)
    ]
    return sorted(every, key=lambda pair: pair[0].cost(pair[1], soc.gpu))


def _chosen(op: Conv2d, choice: Choice) -> tuple[_WinogradGemmTiling, GemmCut]:
    parameters = dict(choice)
    return _WinogradGemmTiling.of(op, parameters.pop("tile")), GemmCut(**parameters)


class GpuWinogradGemm(Kernel):
    """3x3 windows with stride 1: 16, 36 or 64 products for 4, 16 or 36 outputs.

    Points, their weights and sums are float32 for any storage.
    """

    op_kind = "conv2d"
    base_name = "gpu_winograd_gemm"
    source = "conv2d/gpu_winograd_gemm.cl"
    transforms_weights = True
    storages = BLOCKS
    meant_for = REAL_GPU
    through_local = True
    adds_on = ANY_DEVICE
    batches = True

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        if reason := refuse_window(op):
            return reason
        if op.input.c < FEWEST_INPUTS:
            return f"there must be at least {FEWEST_INPUTS} input channels, got {op.input.c}"
        if reason := refuse_width(soc):
            return reason
        if not _tilings(op, soc):
            return f"no tile fits {soc.gpu.local_mem_bytes} bytes of local memory"
        return None

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        likely = _tilings(op, soc)[:MOST_CHOICES]
        return tuple({"tile": tiling.tile, **asdict(cut)} for tiling, cut in likely)

    def counts(self, op: Conv2d, soc: Soc, choice: Choice) -> dict[str, float]:
        t, cut = _chosen(op, choice)
        turns = len(t.turns(op))
        products = cut.features(t.product, soc.gpu)
        steps = products.pop("steps")
        return {
            **{name: value * turns for name, value in products.items()},
            "steps": steps,
            "point_bytes": float(t.bytes(t.in_blocks) * turns),
            "sum_bytes": float(t.bytes(t.out_blocks * cut.splits) * turns),
            "flops": float(op.flops),
            **single(byte_columns(self, ConvColumns.of([op]), soc)),
            "weight_bytes": 64.0 * t.points * t.in_blocks * t.out_blocks,
        }

    def weight_growth(self, ops: ConvColumns, choice: ChoiceColumns) -> Column:
        return filter_growth(ops, choice["tile"])

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> KernelPlan:
        t, cut = _chosen(op, choice)

        def pack(weights: Weights) -> dict[str, Array]:
            points = _transform(weights["weight"], t.tile)
            return {"weight": cut.pack(points, t.product), "bias": pack_bias(weights["bias"], 4)}

        launches = (
            replace(each, image=first)
            for first, tiling in t.turns(op)
            for each in _launches(op, tiling, cut, soc)
        )
        macros = {**cut.macros, "POINTWISE": True, "RAW": True}
        macros |= {"TILE": t.tile, "SIDE": t.tile + 2, "SPLIT": cut.splits > 1}
        macros["IN_PLACE"] = is_in_place(t.tile + 2, soc.gpu)
        scratch = {"points": t.bytes(t.in_blocks), "sums": t.bytes(t.out_blocks * cut.splits)}
        plan = self.assemble(op, soc, *launches, macros=macros, scratch=scratch)
        return replace(plan, pack=pack)


def _launches(
    op: Conv2d, t: _WinogradGemmTiling, cut: GemmCut, soc: Soc
) -> tuple[KernelLaunch, ...]:
    """Launches of the input transform, the products, and the output transform.

    For each point, tiles are the pixels of a 1x1 convolution in one row.
    """
    (source, target), points, sums = ENDS, ScratchArg("points"), ScratchArg("sums")
    weight, bias = ConstantArg("weight"), ConstantArg("bias")
    tiles = {"tiles": t.tiles, "image_tiles": t.image_tiles, "tiles_w": t.tiles_w}
    buffers = (points, 0, t.tiles, sums, 0, 0, weight, bias)
    return (
        launch(
            "winograd_points",
            item_grid(4 * t.tiles, t.in_blocks, soc),
            *(source, points),
            **tiles,
            in_blocks=t.in_blocks,
            **input_args(op),
            input_apart=ApartArg(source),
        ),
        cut.launch(t.product, buffers, row_window(t.tiles), (t.in_blocks * t.tiles, 0)),
        launch(
            "winograd_outputs",
            item_grid(4 * t.tiles, t.out_blocks, soc),
            *(sums, target, bias),
            splits=cut.splits,
            **tiles,
            out_blocks=t.out_blocks,
            out_h=op.output.h,
            out_w=op.output.w,
            output_apart=ApartArg(target),
        ),
    )


def _transform(weight: Array, tile: int) -> Array:
    """(oc, ic, 3, 3) -> (points, 1, ic, oc)."""
    transform, (outs, ins) = filter_transform(tile + 2, 3), weight.shape[:2]
    points = np.empty(((tile + 2) ** 2, 1, ins, outs), np.float32)
    for first, some in filter_points(weight, transform):
        points[:, 0, :, first : first + len(some)] = some.transpose(2, 1, 0)
    return points
