"""Convolution on the GPU by matrix products with tiles in local memory, and Winograd's."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import resources
from math import prod
from typing import Any

import numpy as np

from codl.ir.columns import ceil_div, round_up
from codl.ir.ops.base import Array, Weights
from codl.ir.ops.convolution import Conv2d, ConvColumns
from codl.ir.records.soc import GpuSide, Soc
from codl.kernels import base
from codl.kernels.base import ENDS, ApartArg, Arg, Choice, ConstantArg, KernelLaunch, ScratchArg
from codl.kernels.conv2d.gpu import byte_columns
from codl.kernels.conv2d.gpu_winograd import (
    OfPoints,
    filter_points,
    filter_transform,
    input_args,
    is_in_place,
    refuse_window,
)
from codl.kernels.kernel import ANY_DEVICE, BLOCKS, REAL_GPU, Grid, Kernel, launch, window_args
from codl.kernels.tiling import (
    GROUP,
    architecture_of,
    holds,
    is_card,
    most_items,
    pack_bias,
    single,
)

#: Cuts to try, without splits: register tile of a work-item in pixels x channels, work-items of a
#: team per direction, depth of a step, and teams. Of 180 tried on an H200, these are within 1 % of
#: the best for the convolutions of VGG-16, ResNet-50 and MobileNetV2. Feature maps are 7 x 2^n
#: wide, and so are most tiles. The last two are for GPUs whose work-items have few registers.
_NAMES, *_ROWS = csv.reader(
    resources.files(__package__).joinpath("gemm_cuts.csv").read_text().split()
)
SHAPES = tuple(dict(zip(_NAMES, map(int, row), strict=True)) for row in _ROWS)
#: The cut for GPUs whose registers hold none of the others.
SMALLEST = {"tm": 2, "items_m": 8, "tn": 4, "items_n": 8, "depth": 2, "teams": 1}
SPLITS = (1, 2, 4, 8, 16)
#: Costs of a cut in cycles of a compute unit: a multiply-add on 128 lanes, a byte, the latency of a
#: load, start and end of a group, and one more launch. A launch costs host time, which bounds small
#: networks.
MAC_CYCLES, BYTE_CYCLES, LATENCY_CYCLES = 1.54, 0.035, 650
GROUP_CYCLES, LAUNCH_CYCLES = 3380, 8000
#: Local memory that drivers reserve.
SPARE_LOCAL_BYTES = 64
#: The most choices to try, by predicted cost.
MOST_CHOICES = 16


@dataclass(frozen=True)
class GemmProblem:
    """Matrix products: pixels x (taps x input blocks) times (taps x input blocks) x output blocks.

    There are `batches` products with own weights, or `images` products with shared weights.
    """

    pixels: int
    in_blocks: int
    out_blocks: int
    taps: int = 1
    batches: int = 1
    images: int = 1
    #: True where factors are float16, and a few products are summed in float16.
    halves: bool = False

    @property
    def count(self) -> int:
        return self.batches * self.images

    @property
    def depth(self) -> int:
        """Blocks of four inputs in one sum."""
        return self.taps * self.in_blocks


@dataclass(frozen=True)
class GemmCut:
    """Work-groups, teams and steps of a product, with the macros of the source."""

    tm: int
    items_m: int
    tn: int
    items_n: int
    depth: int
    teams: int
    splits: int

    @property
    def tile_m(self) -> int:
        return self.tm * self.items_m

    @property
    def tile_n(self) -> int:
        return self.tn * self.items_n

    @property
    def items(self) -> int:
        return self.items_m * self.items_n * self.teams

    @property
    def local_bytes(self) -> int:
        steps = 2 * self.teams * self.depth * (self.tile_m + self.tile_n)
        sums = self.items * self.tm
        return 16 * max(steps, sums if self.teams > 1 else 0)

    @property
    def loads(self) -> tuple[int, int]:
        """Vectors of four pixels, and of four weights, that a work-item loads per step."""
        items = self.items_m * self.items_n
        return ceil_div(self.depth * self.tile_m, items), ceil_div(self.depth * self.tile_n, items)

    def fits(self, product: GemmProblem, gpu: GpuSide) -> bool:
        """True where sums, weights of a block and pending loads fit the registers.

        A register holds two float16 factors. Float16 sums come beside the float32 sums, and Mali's
        compiler does not pack window positions.
        """
        window = 0 if product.taps == 1 else 4
        sums, factors = self.tm * self.tn, 4 * (self.tn + sum(self.loads))
        if product.halves:
            return bool(holds(gpu, 2 * (sums + window) + factors // 2))
        return bool(holds(gpu, sums + factors + window))

    @property
    def macros(self) -> dict[str, int | bool]:
        sizes = {name.upper(): size for name, size in asdict(self).items() if name != "splits"}
        loads = dict(zip(("A_LOADS", "B_LOADS"), self.loads, strict=True))
        return {**sizes, **loads, "RAW": self.splits > 1}

    def steps(self, product: GemmProblem) -> int:
        return ceil_div(product.depth, self.depth * self.teams * self.splits)

    def padded_depth(self, product: GemmProblem) -> int:
        return self.steps(product) * self.teams * self.splits * self.depth

    def groups(self, product: GemmProblem) -> tuple[int, int, int]:
        return (
            ceil_div(product.pixels, self.tile_m),
            ceil_div(4 * product.out_blocks, self.tile_n),
            product.count * self.splits,
        )

    def launches(
        self,
        product: GemmProblem,
        ends: tuple[base.TensorArg, base.TensorArg],
        window: Mapping[str, int],
        apart: tuple[Arg, Arg],
    ) -> tuple[KernelLaunch, ...]:
        """Launches of the products, and of a second kernel that adds the sums of splits.

        `window` are the arguments `window_args`; `apart` are the distances of input and output
        images.
        """
        (source, target), bias = ends, ConstantArg("bias")
        if self.splits == 1:
            buffers: tuple[Arg, ...] = (source, target, ConstantArg("weight"), bias)
            return (self.launch(product, buffers, window, apart),)
        parts = ScratchArg("parts")
        buffers = (source, parts, 0, 0, ConstantArg("weight"), bias)
        items = round_up(product.pixels * product.out_blocks, GROUP)
        added = launch(
            "conv2d_gemm_sum",
            ((items, 1, product.images), (GROUP, 1, 1)),
            *(parts, target, bias),
            splits=self.splits,
            out_blocks=product.out_blocks,
            out_pixels=product.pixels,
            output_apart=apart[1],
        )
        return self.launch(product, buffers, window, (apart[0], 0)), added

    def launch(
        self,
        product: GemmProblem,
        buffers: tuple[Arg, ...],
        window: Mapping[str, int],
        apart: tuple[Arg, Arg],
    ) -> KernelLaunch:
        tiles_m, *others = self.groups(product)
        return launch(
            "conv2d_gemm",
            ((tiles_m * self.items, *others), (self.items, 1, 1)),
            *buffers,
            splits=self.splits,
            steps=self.steps(product),
            in_blocks=product.in_blocks,
            out_blocks=product.out_blocks,
            out_pixels=product.pixels,
            **window,
            own_weights=int(product.batches > 1),
            input_apart=apart[0],
            output_apart=apart[1],
        )

    def scratch(self, product: GemmProblem) -> dict[str, int]:
        sums = self.splits * product.count * product.pixels * product.out_blocks
        return {} if self.splits == 1 else {"parts": 16 * sums}

    def features(self, product: GemmProblem, gpu: GpuSide) -> dict[str, float]:
        tiles_m, tiles_n, others = self.groups(product)
        groups, depth = tiles_m * tiles_n * others, 4 * self.padded_depth(product)
        padded = tiles_m * self.tile_m * tiles_n * self.tile_n * depth * product.count
        return {
            "padded_macs": float(padded),
            "work_groups": float(groups),
            "work_items": float(groups * self.items),
            "waves": float(ceil_div(groups, gpu.compute_units)),
            "steps": float(self.steps(product)),
        }

    def pack(self, weight: Array, product: GemmProblem) -> Array:
        """Pack (batches, taps, in channels, out channels) in the source's order, flat."""
        tiles_n, rows = self.groups(product)[1], 4 * self.padded_depth(product)
        blocked = np.zeros((*weight.shape[:2], 4 * product.in_blocks, weight.shape[3]), np.float32)
        blocked[:, :, : weight.shape[2]] = weight
        blocked = blocked.reshape(weight.shape[0], -1, weight.shape[3])
        packed = np.zeros((weight.shape[0], tiles_n, rows, self.tile_n), np.float32)
        for tile in range(tiles_n):
            part = blocked[:, :, tile * self.tile_n : (tile + 1) * self.tile_n]
            packed[:, tile, : part.shape[1], : part.shape[2]] = part
        return packed.reshape(-1)

    def can_split(self, product: GemmProblem, gpu: GpuSide) -> bool:
        """True where each split has a step per team, and units would idle without splits."""
        groups = prod(self.groups(product)) // self.splits
        steps = product.depth // (self.depth * self.teams)
        return self.splits <= steps and 2 * groups <= 3 * gpu.compute_units

    def cost(self, product: GemmProblem, gpu: GpuSide) -> float:
        """Approximate latency in cycles of a compute unit, fitted on an H200, to rank cuts.

        A unit runs some groups at once. Within a step these wait for each other's arithmetic and
        bytes, or all for one memory latency.
        """
        groups = ceil_div(prod(self.groups(product)), gpu.compute_units)
        unit = architecture_of(gpu)
        local = (unit.unit_local_bytes or gpu.local_mem_bytes) // self.local_bytes
        # Sums, weights of a block, pending loads, and 40 others.
        registers = self.tm * self.tn + 4 * self.tn + 4 * sum(self.loads) + 40
        taken = min(registers, unit.registers - 1) * self.items
        together = max(1, min(groups, unit.unit_registers // taken, local, 32))
        macs = MAC_CYCLES * self.tm * self.tn * 4 * self.depth * self.items / 128
        moved = 16 * self.depth * (self.tile_m + self.tile_n) * self.teams * BYTE_CYCLES
        # Instructions for addresses: more where a window reaches into the padding.
        address = self.items * (4.3 + 2.2 * sum(self.loads)) / 32
        work = (macs**3 + moved**3) ** (1 / 3) + address * (1.66 if product.taps > 1 else 1)
        around = GROUP_CYCLES + (106 * self.tn if self.teams > 1 else 0)

        def batch(size: int) -> float:
            step: float = ((size * work) ** 4 + (LATENCY_CYCLES + work / 2) ** 4) ** 0.25
            return self.steps(product) * step + around

        sums = product.count * product.pixels * product.out_blocks * self.splits
        weights = product.batches * product.depth * product.out_blocks
        cycles = 0.016 * weights + 0.0032 * sums + groups // together * batch(together)
        if rest := groups % together:
            cycles += batch(rest)
        if self.splits > 1 and product.batches == 1:
            cycles += LAUNCH_CYCLES + 0.008 * sums
        return cycles


def row_window(pixels: int, step: int = 1) -> dict[str, int]:
    """`window_args` for a product with one row of pixels, `step` apart."""
    steps = {"kernel_h": 1, "kernel_w": 1, "stride_h": 1, "stride_w": step}
    sizes = {"in_h": 1, "in_w": pixels, "out_w": pixels, **steps}
    return {**sizes, "pad_top": 0, "pad_left": 0, "dilation_h": 1, "dilation_w": 1}


@lru_cache(maxsize=4096)
def cuts(product: GemmProblem, gpu: GpuSide) -> tuple[GemmCut, ...]:
    """Cuts that fit the device and give every team work, the cheapest first.

    Sums fit the registers, and work-groups the size limit of kernels with many registers.
    """
    for shapes in (SHAPES, (SMALLEST,)):
        every = (GemmCut(**shape, splits=splits) for shape in shapes for splits in SPLITS)
        fitting = [
            cut
            for cut in every
            if cut.items <= most_items(gpu)
            and cut.fits(product, gpu)
            and cut.local_bytes + SPARE_LOCAL_BYTES <= gpu.local_mem_bytes
            and (cut.splits == 1 or cut.can_split(product, gpu))
        ]
        if fitting:
            return tuple(sorted(fitting, key=lambda cut: cut.cost(product, gpu)))
    return ()


def refuse_width(soc: Soc) -> str | None:
    width = soc.gpu.vector_width
    return None if width == 4 else f"needs a vector width of 4, got {width}"


class Products(Kernel):
    """Base of kernels that compute matrix products; the default is the cheapest cut."""

    base_name = "gpu_gemm"
    source = "conv2d/gpu_gemm.cl"
    meant_for = REAL_GPU
    through_local = True

    def product(self, op: Any) -> GemmProblem:
        raise NotImplementedError

    def refuse(self, op: Any, soc: Soc) -> str | None:
        if reason := refuse_width(soc):
            return reason
        if not cuts(self.product(op), soc.gpu):
            return f"no tile fits {soc.gpu.local_mem_bytes} bytes of local memory"
        return None

    def choices(self, op: Any, soc: Soc) -> tuple[Choice, ...]:
        return tuple(asdict(cut) for cut in cuts(self.product(op), soc.gpu)[:MOST_CHOICES])

    def product_counts(self, op: Any, soc: Soc, choice: Choice) -> dict[str, float]:
        product, cut = self.product(op), GemmCut(**choice)
        return {
            **cut.features(product, soc.gpu),
            "partial_bytes": float(sum(cut.scratch(product).values())),
            "launches": 1.0 + (cut.splits > 1),
            "flops": float(op.flops),
        }


class GpuGemm(Products):
    """Any window, stride, padding and dilation of one group."""

    op_kind = "conv2d"
    storages = BLOCKS
    multiplies_halves = True
    adds_on = ANY_DEVICE
    batches = True

    def product(self, op: Conv2d) -> GemmProblem:
        return GemmProblem(
            pixels=op.output.h * op.output.w,
            in_blocks=ceil_div(op.input.c, 4),
            out_blocks=ceil_div(op.out_channels, 4),
            taps=op.kernel.h * op.kernel.w,
            images=op.output.n,
            halves=self.arithmetic == "float16",
        )

    def refuse(self, op: Conv2d, soc: Soc) -> str | None:
        if op.groups != 1:
            return f"groups must be 1, got {op.groups}"
        return super().refuse(op, soc)

    def counts(self, op: Conv2d, soc: Soc, choice: Choice) -> dict[str, float]:
        moved = byte_columns(self, ConvColumns.of([op]), soc)
        return {**self.product_counts(op, soc, choice), **single(moved)}

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> base.KernelPlan:
        product, cut = self.product(op), GemmCut(**choice)

        def pack(weights: Weights) -> dict[str, Array]:
            outs, ins = weights["weight"].shape[:2]
            taps = weights["weight"].reshape(outs, ins, -1).transpose(2, 1, 0)
            return {"weight": cut.pack(taps[None], product), "bias": pack_bias(weights["bias"], 4)}

        pointwise = op.kernel == (1, 1) and not any(op.pad)
        apart = (ApartArg(ENDS[0]), ApartArg(ENDS[1]))
        return self.assemble(
            op,
            soc,
            *cut.launches(product, ENDS, window_args(op), apart),
            macros={**cut.macros, "POINTWISE": pointwise},
            pack=pack,
            scratch=cut.scratch(product),
        )


# Winograd convolution as a batch of products, one for each point.


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


def _tilings(op: Conv2d, soc: Soc) -> list[tuple[_WinogradGemmTiling, GemmCut]]:
    """Tilings and cuts to try, the cheapest first."""
    gpu = soc.gpu
    # Registers hold the points of a tile during the transforms.
    fitting = [t for t in TILES if is_card(gpu) or gpu.is_cpu or holds(gpu, 4 + (t + 2) ** 2)]
    every = [
        (tiling, cut)
        for tiling in (_WinogradGemmTiling.of(op, tile) for tile in fitting)
        for cut in cuts(tiling.product, gpu)
    ]
    return sorted(every, key=lambda pair: pair[0].cost(pair[1], gpu))


def _chosen(op: Conv2d, choice: Choice) -> tuple[_WinogradGemmTiling, GemmCut]:
    parameters = dict(choice)
    return _WinogradGemmTiling.of(op, parameters.pop("tile")), GemmCut(**parameters)


class GpuWinogradGemm(OfPoints, Kernel):
    """3x3 windows with stride 1: 16, 36 or 64 products for 4, 16 or 36 outputs.

    Points, their weights and sums are float32 for any storage.
    """

    op_kind = "conv2d"
    base_name = "gpu_winograd_gemm"
    source = "conv2d/gpu_winograd_gemm.cl"
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

    def build(self, op: Conv2d, soc: Soc, choice: Choice) -> base.KernelPlan:
        t, cut = _chosen(op, choice)

        def pack(weights: Weights) -> dict[str, Array]:
            transform = filter_transform(t.tile + 2, 3)
            points = filter_points(weights["weight"], transform).transpose(2, 1, 0)[:, None]
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
            Grid.of(4 * t.tiles, t.in_blocks, 1, soc).sizes,
            *(source, points),
            **tiles,
            in_blocks=t.in_blocks,
            **input_args(op),
            input_apart=ApartArg(source),
        ),
        cut.launch(t.product, buffers, row_window(t.tiles), (t.in_blocks * t.tiles, 0)),
        launch(
            "winograd_outputs",
            Grid.of(4 * t.tiles, t.out_blocks, 1, soc).sizes,
            *(sums, target, bias),
            splits=cut.splits,
            **tiles,
            out_blocks=t.out_blocks,
            out_h=op.output.h,
            out_w=op.output.w,
            output_apart=ApartArg(target),
        ),
    )
