"""Winograd convolution on the GPU: a batch of matrix products, one for every point."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import numpy as np

from codl.ir.ops.base import Array, Weights
from codl.ir.ops.convolution import Conv2d
from codl.kernels.base import (
    ENDS,
    ApartArg,
    Arg,
    Choice,
    ConstantArg,
    KernelLaunch,
    KernelPlan,
    ScratchArg,
)
from codl.kernels.conv2d.gpu import byte_features, pack_bias
from codl.kernels.conv2d.gpu_gemm import (
    MOST_CHOICES,
    GemmCut,
    Product,
    cuts,
    refuse_width,
    row_window,
)
from codl.kernels.conv2d.winograd import filter_points, filter_transform, refuse_window
from codl.kernels.tiling import GROUP, base_defines, ceil_div, round_up
from codl.kernels.variant import ForStorage
from codl.records.soc import GpuSide, Soc

#: Rows and columns of a tile of outputs.
TILES = (2, 4, 6)
#: With fewer input channels the sums at the points take longer than the products that they save.
FEWEST_INPUTS = 16
#: Memory for points and sums: images of a batch beyond that have their turn later, and in the same.
SCRATCH_BYTES = 64 << 20


@dataclass(frozen=True)
class _WinogradGemmTiling:
    """The tiles of one convolution and how the products over them are cut.

    Of a batch `images` at a time, equally many but for the last ones.
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
        """Of all images."""
        return self.images * self.image_tiles

    def bytes(self, blocks: int) -> int:
        """Of what `blocks` blocks of channels are at the points."""
        return 16 * self.points * self.tiles * blocks

    def turns(self, op: Conv2d) -> list[tuple[int, _WinogradGemmTiling]]:
        """The first image of every launch, and the tiles of its images."""
        firsts = range(0, op.output.n, self.images)
        return [(n, replace(self, images=min(self.images, op.output.n - n))) for n in firsts]

    @property
    def product(self) -> Product:
        return Product(self.tiles, self.in_blocks, self.out_blocks, batches=self.points)

    def cost(self, cut: GemmCut, gpu: GpuSide) -> float:
        """A rough latency in cycles of a compute unit; see `GemmCut.cost`."""
        blocks = self.in_blocks + cut.splits * self.out_blocks
        moved = 16 * self.tiles * self.points * blocks
        return cut.cost(self.product, gpu) + 10000 + 800 * cut.splits + 0.44 * moved / 1000


def _tilings(op: Conv2d, soc: Soc) -> list[tuple[_WinogradGemmTiling, GemmCut]]:
    """Every tile and cut worth trying, likely ones first."""
    found = [
        (tiling, cut)
        for tiling in (_WinogradGemmTiling.of(op, tile) for tile in TILES)
        for cut in cuts(tiling.product, soc.gpu)
    ]
    return sorted(found, key=lambda pair: pair[0].cost(pair[1], soc.gpu))


def _chosen(op: Conv2d, soc: Soc, choice: Choice | None) -> tuple[_WinogradGemmTiling, GemmCut]:
    if choice is None:
        return _tilings(op, soc)[0]
    rest = dict(choice)
    return _WinogradGemmTiling.of(op, rest.pop("tile")), GemmCut(**rest)


class GpuWinogradGemm(ForStorage):
    """3x3 windows with stride 1: 16, 36 or 64 products for 4, 16 or 36 outputs.

    Whatever tensors are stored as, points, their weights and sums are floats.
    """

    base_name: ClassVar[str] = "gpu_winograd_gemm"
    op_kind: ClassVar[str] = "conv2d"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})
    takes_batch: ClassVar[bool] = True

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
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
        found = _tilings(op, soc)[:MOST_CHOICES]
        return tuple({"tile": tiling.tile, **asdict(cut)} for tiling, cut in found)

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        t, cut = _chosen(op, soc, choice)
        turns = len(t.turns(op))
        products = cut.features(t.product, soc.gpu)
        steps = products.pop("steps")
        return {
            **{name: value * turns for name, value in products.items()},
            "steps": steps,
            "point_bytes": float(t.bytes(t.in_blocks) * turns),
            "sum_bytes": float(t.bytes(t.out_blocks * cut.splits) * turns),
            "flops": float(op.flops),
            **byte_features(op, soc, self.storage),
            "weight_bytes": 64.0 * t.points * t.in_blocks * t.out_blocks,
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        t, cut = _chosen(op, soc, choice)

        def pack(weights: Weights) -> dict[str, Array]:
            return {
                "weight": cut.pack(_transform(weights["weight"], t.tile), t.product),
                "bias": pack_bias(weights["bias"], 4),
            }

        return KernelPlan(
            source="conv2d/gpu_winograd_gemm.cl",
            launches=tuple(
                replace(launch, image=first)
                for first, tiling in t.turns(op)
                for launch in _launches(op, tiling, cut)
            ),
            defines={
                **base_defines(op.activation, soc, self.storage),
                **cut.defines,
                "POINTWISE": 1,
                "RAW": 1,
                "TILE": t.tile,
            },
            pack=pack,
            scratch={
                "points": t.bytes(t.in_blocks),
                "sums": t.bytes(t.out_blocks * cut.splits),
            },
            storages=dict.fromkeys(ENDS, self.storage),
            whole_batch=True,
        )


def _launches(op: Conv2d, t: _WinogradGemmTiling, cut: GemmCut) -> tuple[KernelLaunch, ...]:
    """To the points, the products there, and back to outputs.

    The tiles of each point are the pixels of a 1x1 convolution in one row.
    """
    (source, target), points, sums = ENDS, ScratchArg("points"), ScratchArg("sums")
    weight, bias = ConstantArg("weight"), ConstantArg("bias")
    tiles = (t.tiles, t.image_tiles, t.tiles_w)
    lanes = round_up(4 * t.tiles, GROUP)
    window = (t.in_blocks, op.input.h, op.input.w, op.pad.top, op.pad.left)
    into: tuple[Arg, ...] = (source, points, *tiles, *window, ApartArg(source))
    sizes = (cut.splits, *tiles, t.out_blocks, *op.out_hw)
    out_of: tuple[Arg, ...] = (sums, target, bias, *sizes, ApartArg(target))
    buffers = (points, 0, t.tiles, sums, 0, 0, weight, bias)
    return (
        KernelLaunch("winograd_points", (lanes, t.in_blocks), into, (GROUP, 1)),
        cut.launch(t.product, buffers, row_window(t.tiles), (t.in_blocks * t.tiles, 0)),
        KernelLaunch("winograd_outputs", (lanes, t.out_blocks), out_of, (GROUP, 1)),
    )


def _transform(weight: Array, tile: int) -> Array:
    """(oc, ic, 3, 3) -> (points, 1, ic, oc)."""
    transform, (outs, ins) = filter_transform(tile + 2, 3), weight.shape[:2]
    points = np.empty(((tile + 2) ** 2, 1, ins, outs), np.float32)
    for first, some in filter_points(weight, transform):
        points[:, 0, :, first : first + len(some)] = some.transpose(2, 1, 0)
    return points
