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
    Choice,
    ConstantArg,
    KernelLaunch,
    KernelPlan,
    ScratchArg,
    TensorArg,
)
from codl.kernels.conv2d.gpu_direct import byte_features, pack_bias
from codl.kernels.conv2d.gpu_gemm import MOST_CHOICES, GemmCut, Product, cuts, refuse_width
from codl.kernels.conv2d.gpu_winograd import filter_transform
from codl.kernels.tiling import GROUP, base_defines, ceil_div, round_up
from codl.kernels.variant import ForStorage
from codl.records.soc import GpuSide, Soc

TRANSFORMS = {
    2: np.array([[2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], np.float64) / 2,
    4: filter_transform(6, 3),
    6: filter_transform(8, 3),
}
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
        one = cls(
            tile=tile,
            tiles_h=ceil_div(op.output.h, tile),
            tiles_w=ceil_div(op.output.w, tile),
            in_blocks=ceil_div(op.input.c, 4),
            out_blocks=ceil_div(op.out_channels, 4),
            images=1,
        )
        most = max(1, SCRATCH_BYTES // (one.bytes(one.in_blocks) + one.bytes(one.out_blocks)))
        return replace(one, images=ceil_div(op.output.n, ceil_div(op.output.n, most)))

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

    def grid(self, blocks: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Global and local size of a transform."""
        return (round_up(4 * self.tiles, GROUP), blocks), (GROUP, 1)

    def cost(self, cut: GemmCut, gpu: GpuSide) -> float:
        """A rough latency in cycles of a compute unit; see `GemmCut.cost`."""
        blocks = self.in_blocks + cut.splits * self.out_blocks
        moved = 16 * self.tiles * self.points * blocks
        return cut.cost(self.product, gpu) + 10000 + 800 * cut.splits + 0.44 * moved / 1000


def _tilings(op: Conv2d, soc: Soc) -> list[tuple[_WinogradGemmTiling, GemmCut]]:
    """Every tile and cut worth trying, likely ones first."""
    found = [
        (tiling, cut)
        for tiling in (_WinogradGemmTiling.of(op, tile) for tile in TRANSFORMS)
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
        if op.kernel != (3, 3) or op.stride != (1, 1) or op.dilation != (1, 1) or op.groups != 1:
            return (
                "Winograd needs kernel=3x3 stride=1 dilation=1 groups=1, got "
                f"kernel={op.kernel} stride={op.stride} dilation={op.dilation} groups={op.groups}"
            )
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
        tiles_m, tiles_n, others = cut.groups(t.product)
        turns = len(t.turns(op))
        groups = tiles_m * tiles_n * others
        depth = 4 * cut.padded_depth(t.product)
        padded = tiles_m * cut.tile_m * tiles_n * cut.tile_n * depth * t.points * turns
        return {
            "padded_macs": float(padded),
            "work_groups": float(groups * turns),
            "work_items": float(groups * turns * cut.items),
            "waves": float(ceil_div(groups, soc.gpu.compute_units) * turns),
            "steps": float(cut.steps(t.product)),
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
                for first, own in t.turns(op)
                for launch in (_points(op, own), _products(own, cut), _outputs(op, own, cut))
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


def _points(op: Conv2d, t: _WinogradGemmTiling) -> KernelLaunch:
    global_size, local_size = t.grid(t.in_blocks)
    tiles = (t.tiles, t.image_tiles, t.tiles_w)
    sizes = (*tiles, t.in_blocks, op.input.h, op.input.w, op.pad.top, op.pad.left)
    tensor = TensorArg("input")
    return KernelLaunch(
        kernel="winograd_points",
        global_size=global_size,
        local_size=local_size,
        args=(tensor, ScratchArg("points"), *sizes, ApartArg(tensor)),
    )


def _products(t: _WinogradGemmTiling, cut: GemmCut) -> KernelLaunch:
    """The tiles of each point are the pixels of a 1x1 convolution in one row."""
    buffers = (ScratchArg("points"), 0, t.tiles, ScratchArg("sums"), 0, 0)
    window = (1, t.tiles, t.tiles, 1, 1, 1, 0, 0, 1, 1)
    constants = (ConstantArg("weight"), ConstantArg("bias"))
    return cut.launch(t.product, (*buffers, *constants), window, (t.in_blocks * t.tiles, 0))


def _outputs(op: Conv2d, t: _WinogradGemmTiling, cut: GemmCut) -> KernelLaunch:
    global_size, local_size = t.grid(t.out_blocks)
    tiles = (t.tiles, t.image_tiles, t.tiles_w)
    sizes = (cut.splits, *tiles, t.out_blocks, op.output.h, op.output.w)
    tensor = TensorArg("output")
    return KernelLaunch(
        kernel="winograd_outputs",
        global_size=global_size,
        local_size=local_size,
        args=(ScratchArg("sums"), tensor, ConstantArg("bias"), *sizes, ApartArg(tensor)),
    )


def _transform(weight: Array, tile: int) -> Array:
    """(oc, ic, 3, 3) -> (points, 1, ic, oc); some channels at a time, as float64 is large."""
    both = np.kron(TRANSFORMS[tile], TRANSFORMS[tile])
    outs, ins = weight.shape[:2]
    points = np.empty((both.shape[0], 1, ins, outs), np.float32)
    for first in range(0, outs, 64):
        rows = weight[first : first + 64].reshape(-1, 9).astype(np.float64) @ both.T
        points[:, 0, :, first : first + 64] = rows.reshape(-1, ins, both.shape[0]).transpose(
            2, 1, 0
        )
    return points
