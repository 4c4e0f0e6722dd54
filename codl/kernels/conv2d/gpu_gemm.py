"""Convolution on the GPU as a matrix product with tiles in local memory; nothing is unfolded."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product as combinations
from typing import ClassVar

import numpy as np

from codl.kernels.base import (
    Arg,
    Choice,
    ConstantArg,
    KernelPlan,
    Launch,
    Processor,
    ScratchArg,
    TensorArg,
)
from codl.kernels.conv2d.gpu_direct import byte_features, pack_bias
from codl.kernels.tiling import GROUP, base_defines, ceil_div, round_up
from codl.ops.base import Array, Weights
from codl.ops.conv2d import Conv2d
from codl.soc import Soc

#: Register tile of a work-item, pixels x channels, and how many work-items a team has in each
#: direction. Maps of networks are 7 x 2^n wide, and so are most tiles.
TILES = (
    (16, 8, 8, 16),
    (16, 8, 8, 8),
    (16, 4, 8, 16),
    (16, 16, 8, 8),
    (16, 4, 8, 8),
    (14, 8, 8, 16),
    (14, 8, 8, 8),
    (14, 4, 8, 16),
    (14, 4, 8, 8),
    (14, 16, 8, 8),
    (8, 8, 8, 16),
    (8, 8, 8, 8),
    (8, 16, 8, 16),
    (7, 4, 8, 8),
    (7, 4, 8, 16),
    (7, 8, 8, 8),
    (7, 8, 8, 16),
    (7, 16, 8, 16),
    (7, 4, 4, 8),
    (7, 8, 4, 8),
    (7, 16, 4, 4),
    (4, 4, 4, 16),
    (4, 4, 4, 8),
)
DEPTHS, TEAMS, SPLITS = (2, 4), (1, 2, 4, 8), (1, 2, 4, 8, 16)
#: Registers of a work-item, with some left for addresses, and of a compute unit.
MOST_REGISTERS, UNIT_REGISTERS = 240, 65536
#: Choices that are worth a try, of those that look best.
MOST_CHOICES = 16


@dataclass(frozen=True)
class Product:
    """A batch of matrix products: pixels x (taps x input blocks) times these x output blocks."""

    pixels: int
    in_blocks: int
    out_blocks: int
    taps: int = 1
    batches: int = 1

    @property
    def depth(self) -> int:
        """Blocks of four inputs of one sum."""
        return self.taps * self.in_blocks

    @classmethod
    def of(cls, op: Conv2d) -> Product:
        return cls(
            pixels=op.output.h * op.output.w,
            in_blocks=ceil_div(op.input.c, 4),
            out_blocks=ceil_div(op.out_channels, 4),
            taps=op.kernel.h * op.kernel.w,
        )


@dataclass(frozen=True)
class Cut:
    """How a product is cut into work-groups, teams and steps; the source says what these are."""

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
    def team_items(self) -> int:
        return self.items_m * self.items_n

    @property
    def items(self) -> int:
        """Work-items of a work-group."""
        return self.team_items * self.teams

    @property
    def local_bytes(self) -> int:
        steps = 2 * self.teams * self.depth * (self.tile_m + self.tile_n)
        sums = self.items * self.tm
        return 16 * max(steps, sums if self.teams > 1 else 0)

    @property
    def registers(self) -> int:
        """Of a work-item: sums, weights of a block and what is on its way, and some 40 more."""
        loads = ceil_div(self.depth * self.tile_m, self.team_items)
        loads += ceil_div(self.depth * self.tile_n, self.team_items)
        return self.tm * self.tn + 4 * self.tn + 4 * loads + 40

    @property
    def defines(self) -> dict[str, int | float | str]:
        return {
            "TM": self.tm,
            "ITEMS_M": self.items_m,
            "TN": self.tn,
            "ITEMS_N": self.items_n,
            "DEPTH": self.depth,
            "TEAMS": self.teams,
        }

    def steps(self, product: Product) -> int:
        """Steps of one team."""
        return ceil_div(product.depth, self.depth * self.teams * self.splits)

    def padded_depth(self, product: Product) -> int:
        return self.steps(product) * self.teams * self.splits * self.depth

    def groups(self, product: Product) -> tuple[int, int, int]:
        """Work-groups in each dimension."""
        return (
            ceil_div(product.pixels, self.tile_m),
            ceil_div(4 * product.out_blocks, self.tile_n),
            product.batches * self.splits,
        )

    def launch(self, product: Product, buffers: tuple[Arg, ...], window: tuple[int, ...]) -> Launch:
        """`buffers` are input, output, weight and bias, `window` the sizes from `in_h` on."""
        tiles_m, *others = self.groups(product)
        blocks = (product.in_blocks, product.out_blocks, product.pixels)
        return Launch(
            kernel="conv2d_gemm",
            global_size=(tiles_m * self.items, *others),
            local_size=(self.items, 1, 1),
            args=(*buffers, self.splits, self.steps(product), *blocks, *window),
        )

    def pack(self, weight: Array, product: Product) -> Array:
        """(batches, taps, in channels, out channels) -> as the source says, flat."""
        tiles_n, rows = self.groups(product)[1], 4 * self.padded_depth(product)
        blocked = np.zeros((*weight.shape[:2], 4 * product.in_blocks, weight.shape[3]), np.float32)
        blocked[:, :, : weight.shape[2]] = weight
        blocked = blocked.reshape(weight.shape[0], -1, weight.shape[3])
        packed = np.zeros((weight.shape[0], tiles_n, rows, self.tile_n), np.float32)
        for tile in range(tiles_n):
            part = blocked[:, :, tile * self.tile_n : (tile + 1) * self.tile_n]
            packed[:, tile, : part.shape[1], : part.shape[2]] = part
        return packed.reshape(-1)

    def cost(self, product: Product, soc: Soc) -> float:
        """A rough latency, to compare cuts by: cycles of the compute unit that is busiest."""
        tm, tn = self.tm, self.tn
        groups = int(np.prod(self.groups(product)))
        rounds = ceil_div(groups, soc.gpu.compute_units)
        together = max(1, min(rounds, 512 // self.items))
        issue = tm * tn * 4 * self.depth * self.items / 128
        step = max(400 + issue, together * issue * 1.3)
        total = rounds / together * self.steps(product) * step + 2000 * self.teams.bit_length()
        moved = self.splits * product.pixels * product.out_blocks * 16 / 1500
        return total + (8000 + moved if self.splits > 1 and product.batches == 1 else 0)


def cuts(product: Product, soc: Soc) -> list[Cut]:
    """All cuts that the device can run and that leave no team without work, likely ones first."""
    found = [
        Cut(*tile, depth, teams, splits)
        for tile, depth, teams, splits in combinations(TILES, DEPTHS, TEAMS, SPLITS)
        if depth * teams * splits <= max(product.depth, depth)
    ]
    limit = min(soc.gpu.max_work_group_size, 512)
    fitting = [
        c
        for c in found
        if c.items <= limit
        and c.local_bytes <= soc.gpu.local_mem_bytes
        and c.registers <= MOST_REGISTERS
        and c.registers * c.items <= UNIT_REGISTERS
    ]
    return sorted(fitting, key=lambda cut: cut.cost(product, soc))


def refuse_width(soc: Soc) -> str | None:
    width = soc.gpu.vector_width
    return None if width == 4 else f"needs a vector width of 4, got {width}"


class GpuGemm:
    """Any window, stride, padding and dilation of one group."""

    name: ClassVar[str] = "gpu_gemm"
    op_kind: ClassVar[str] = "conv2d"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"gpu"})

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        if op.input.n != 1:
            return f"the batch must be 1, got {op.input.n}"
        if op.groups != 1:
            return f"groups must be 1, got {op.groups}"
        if reason := refuse_width(soc):
            return reason
        if not cuts(Product.of(op), soc):
            return f"no tile fits {soc.gpu.local_mem_bytes} bytes of local memory"
        return None

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        return tuple(asdict(cut) for cut in cuts(Product.of(op), soc)[:MOST_CHOICES])

    def features(
        self, op: Conv2d, soc: Soc, choice: Choice | None = None
    ) -> dict[str, float]:
        product = Product.of(op)
        cut = Cut(**choice) if choice else cuts(product, soc)[0]
        tiles_m, tiles_n, splits = cut.groups(product)
        groups = tiles_m * tiles_n * splits
        padded = tiles_m * cut.tile_m * tiles_n * cut.tile_n * 4 * cut.padded_depth(product)
        return {
            "padded_macs": float(padded),
            "work_groups": float(groups),
            "work_items": float(groups * cut.items),
            "waves": float(ceil_div(groups, soc.gpu.compute_units)),
            "steps": float(cut.steps(product)),
            "partial_bytes": 16.0 * splits * product.pixels * product.out_blocks * (splits > 1),
            "launches": 1.0 + (splits > 1),
            "flops": float(op.flops),
            **byte_features(op, soc),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        product = Product.of(op)
        cut = Cut(**choice) if choice else cuts(product, soc)[0]
        parts, bias = ScratchArg("parts"), ConstantArg("bias")
        in_one = cut.splits == 1
        target: tuple[Arg, ...] = (TensorArg("output"),) if in_one else (parts, 0, 0)
        buffers = (TensorArg("input"), *target, ConstantArg("weight"), bias)
        window = (op.input.h, op.input.w, op.output.w, op.kernel.w, *op.stride)
        window = (*window, op.pad.top, op.pad.left, *op.dilation)
        launches = (cut.launch(product, buffers, window),)
        if not in_one:
            launches = (*launches, _sum(product, cut.splits))
        pointwise = op.kernel == (1, 1) and not any(op.pad)

        def pack(weights: Weights) -> dict[str, Array]:
            outs, ins = weights["weight"].shape[:2]
            taps = weights["weight"].reshape(outs, ins, -1).transpose(2, 1, 0)
            return {
                "weight": cut.pack(taps[None], product),
                "bias": pack_bias(weights["bias"], 4),
            }

        return KernelPlan(
            source="conv2d/gpu_gemm.cl",
            launches=launches,
            defines={
                **base_defines(op.activation, soc),
                **cut.defines,
                **({"POINTWISE": 1} if pointwise else {}),
                **({} if in_one else {"RAW": 1}),
            },
            pack=pack,
            scratch={} if in_one else {"parts": 16 * cut.splits * product.pixels * product.out_blocks},
        )


def _sum(product: Product, splits: int) -> Launch:
    """The second kernel, which adds the sums of all splits."""
    return Launch(
        kernel="conv2d_gemm_sum",
        global_size=(round_up(product.pixels * product.out_blocks, GROUP),),
        local_size=(GROUP,),
        args=(
            ScratchArg("parts"),
            TensorArg("output"),
            ConstantArg("bias"),
            splits,
            product.out_blocks,
            product.pixels,
        ),
    )
