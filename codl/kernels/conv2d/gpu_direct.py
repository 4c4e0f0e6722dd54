"""Convolution on the GPU, directly: register tiles of pixels x a block of output channels."""

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
    Storage,
    TensorArg,
)
from codl.kernels.image import TEXEL
from codl.kernels.tiling import (
    base_defines,
    ceil_div,
    item_grid,
    pixel_tile,
    round_up,
    strip,
    waves,
)
from codl.ops.base import Array
from codl.ops.conv2d import Conv2d
from codl.soc import Soc

#: Share of the second-level cache that a strip's input may take; weights and output share the rest.
CACHE_SHARE = 0.5
#: Tiles worth trying by vector width, of pixels x blocks of output channels: their sums should
#: fit in the registers.
TILES = {
    16: ((8, 1), (7, 1), (9, 1), (10, 1), (8, 2), (13, 2), (8, 3), (5, 4), (6, 4)),
    8: ((8, 1), (7, 1), (10, 1), (6, 2), (4, 3)),
    4: ((4, 1), (8, 1), (2, 2), (4, 2)),
}
#: So many input channels are unrolled; with more, the compiler keeps broadcasts and spills.
MOST_UNROLLED = 4


@dataclass(frozen=True)
class _Tiling:
    """How one convolution is cut; all that the plan and the features have in common."""

    flat: bool
    pixels: int
    strip: int
    strips: int
    in_blocks: int
    out_blocks: int
    outs: int
    out_pixels: int

    @classmethod
    def of(cls, op: Conv2d, soc: Soc, choice: Choice) -> _Tiling:
        in_blocks = soc.gpu.blocks(op.input.c // op.groups)
        out_blocks = soc.gpu.blocks(op.out_channels)
        out_pixels = op.output.h * op.output.w
        pixels, outs = choice["pixels"], choice["outs"]
        while out_blocks // op.groups % outs:  # a part of an op may have fewer blocks
            outs -= 1
        tiles = ceil_div(out_pixels, pixels)
        tile_bytes = 4 * in_blocks * soc.gpu.vector_width * pixels * op.stride.h * op.stride.w
        most = max(1, int(CACHE_SHARE * soc.cpu.l2_cache_bytes / tile_bytes))
        length = strip(tiles, out_blocks // outs, most, soc)
        return cls(
            # A 1x1 window that takes every pixel sees rows as one long row.
            flat=op.kernel == op.stride == (1, 1) and not any(op.pad),
            pixels=pixels,
            strip=length,
            strips=ceil_div(tiles, length),
            in_blocks=in_blocks,
            out_blocks=out_blocks,
            outs=outs,
            out_pixels=out_pixels,
        )


class GpuDirect:
    """Any window, stride, padding and dilation; groups of whole channel blocks."""

    op_kind: ClassVar[str] = "conv2d"
    processor: ClassVar[Processor] = "gpu"
    meant_for: ClassVar[frozenset[str]] = frozenset({"cpu", "gpu"})

    def __init__(self, storage: Storage = BLOCKED) -> None:
        self.storage = storage
        self.name = f"gpu_direct{storage.suffix}"

    def refusal(self, op: Conv2d, soc: Soc) -> str | None:
        width = soc.gpu.vector_width
        per_group = (op.input.c // op.groups, op.out_channels // op.groups)
        if op.groups > 1 and any(channels % width for channels in per_group):
            return (
                f"input and output channels of a group must be multiples of {width}, "
                f"got {per_group[0]} and {per_group[1]}"
            )
        return None

    def choices(self, op: Conv2d, soc: Soc) -> tuple[Choice, ...]:
        """Pixels of a tile, and blocks of output channels that share its loads."""
        default = {"pixels": pixel_tile(op.output.w, soc), "outs": 1}
        blocks = ceil_div(op.out_channels // op.groups, soc.gpu.vector_width)
        tried = [{"pixels": p, "outs": o} for p, o in TILES[soc.gpu.vector_width] if not blocks % o]
        return (default, *(choice for choice in tried if choice != default))

    def features(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> dict[str, float]:
        tiling = _Tiling.of(op, soc, choice or self.choices(op, soc)[0])
        width, window = soc.gpu.vector_width, op.kernel.h * op.kernel.w
        tiles = ceil_div(tiling.out_pixels, tiling.pixels) * tiling.out_blocks
        steps = window * tiling.in_blocks
        loop = window * op.input.c // op.groups
        padded = _padded_taps(op) * tiling.in_blocks * tiling.out_blocks
        return {
            "padded_macs": float(tiles * tiling.pixels * loop * width),
            "tiles": float(tiles),
            "tile_steps": float(tiles * steps),
            "padded_tap_steps": float(padded),
            "loop_length": float(loop),
            "work_items": float(tiling.strips * tiling.out_blocks),
            "waves": waves(tiling.strips * tiling.out_blocks, soc),
            "wave_macs": waves(tiles, soc) * tiling.pixels * loop * width,
            "flops": float(op.flops),
            **byte_features(op, soc, self.storage),
        }

    def plan(self, op: Conv2d, soc: Soc, choice: Choice | None = None) -> KernelPlan:
        tiling = _Tiling.of(op, soc, choice or self.choices(op, soc)[0])
        items = tiling.out_blocks // tiling.outs
        global_size, local_size = item_grid(tiling.strips, items, soc)
        flat = tiling.flat
        sizes = (
            tiling.strip,
            op.input.c // op.groups,
            tiling.in_blocks,
            1 if flat else op.input.h,
            tiling.out_pixels if flat else op.input.w,
            tiling.out_blocks,
            tiling.out_blocks // op.groups,
            tiling.out_pixels if flat else op.output.w,
            tiling.out_pixels,
            *op.kernel,
            op.stride.h,
            op.pad.top,
            op.pad.left,
            *op.dilation,
        )
        tensors = (TensorArg("input"), TensorArg("output"))
        launch = Launch(
            kernel="conv2d_direct",
            global_size=global_size,
            local_size=local_size,
            args=(*tensors, ConstantArg("weight"), ConstantArg("bias"), *sizes),
        )
        width = soc.gpu.vector_width
        return KernelPlan(
            source="conv2d/gpu_direct.cl",
            launches=(launch,),
            defines={
                **base_defines(op.activation, soc, self.storage),
                "PIXELS": tiling.pixels,
                "OUTS": tiling.outs,
                "STRIDE_W": op.stride.w,
                "EDGE": _edge(op, tiling.pixels),
                **_few_lanes(op, soc),
            },
            pack=lambda weights: {
                "weight": pack_blocks(weights["weight"], width, tiling.outs),
                "bias": pack_bias(weights["bias"], width, blocks_of_zeros=1),
            },
        ).stored_as(self.storage)


def _edge(op: Conv2d, pixels: int) -> int:
    """Pixels at either end of a row's tile for which some tap lies beside the input."""
    return min(ceil_div(max(op.pad.left, op.pad.right), op.stride.w), pixels // 2)


def _few_lanes(op: Conv2d, soc: Soc) -> dict[str, int]:
    """The number of input channels as a constant where a loop over them would cost more."""
    few = soc.gpu.vector_width > 4 and op.groups == 1 and op.input.c <= MOST_UNROLLED
    return {"LANES": op.input.c} if few else {}


def byte_features(op: Conv2d, soc: Soc, storage: Storage = BLOCKED) -> dict[str, float]:
    """Bytes touched once: whole blocks of the input and output, and the weights as packed."""
    width = TEXEL if storage.layout == "image" else soc.gpu.vector_width
    size = float(storage.element_bytes)
    per_channel = op.input.c // op.groups * op.kernel.h * op.kernel.w
    return {
        "input_bytes": size * round_up(op.input.c, width) * op.input.h * op.input.w,
        "weight_bytes": size * round_up(op.out_channels, width) * per_channel,
        "output_bytes": size * round_up(op.out_channels, width) * op.output.h * op.output.w,
    }


def _padded_taps(op: Conv2d) -> int:
    """Output pixel rows times taps whose columns reach into the padding: the slower inner loop."""
    return op.output.h * op.kernel.h * min(op.kernel.w - 1, op.pad.left + op.pad.right)


def pack_blocks(weight: Array, width: int, outs: int) -> Array:
    """(oc, ic, k, k) -> [oc block / outs][ic block][k][k][lane of ic][outs][lane of oc], flat.

    Only real input lanes are stored (all four where the width is 4), so that three input channels
    cost three steps and not a block's.
    """
    channels, together = weight.shape[1], outs * width
    stored = round_up(channels, 4) if width == 4 else channels
    items = ceil_div(weight.shape[0], together)
    window = weight.shape[2] * weight.shape[3]
    packed = np.zeros((items, stored * window * together), np.float32)
    for item in range(items):
        rows = weight[item * together : (item + 1) * together]
        at = 0
        for first in range(0, channels, width):
            lanes = min(width, stored - first)
            part = rows[:, first : first + width].transpose(2, 3, 1, 0)
            view = packed[item, at : at + window * lanes * together]
            view = view.reshape(*weight.shape[2:], lanes, together)
            view[:, :, : part.shape[2], : part.shape[3]] = part
            at += window * lanes * together
    return packed.reshape(-1)


def pack_bias(bias: Array, width: int, *, blocks_of_zeros: int = 0) -> Array:
    """The bias as whole blocks, followed by blocks of zeros."""
    size = (ceil_div(bias.size, width) + blocks_of_zeros) * width
    packed = np.zeros(size, np.float32)
    packed[: bias.size] = bias.reshape(-1)
    return packed
