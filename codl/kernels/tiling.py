"""Tiling of GPU kernels, and features that kernels share, for numbers or columns of ops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isinf, log2
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from codl.ir.columns import Column, FeatureColumns, ceil_div, rest, round_up
from codl.ir.ops.base import ACTIVATIONS, Activation, Array, Op
from codl.ir.records.soc import GpuSide, Soc
from codl.ir.records.tuned import Choice
from codl.ir.region import Shape
from codl.ir.types import BLOCKED, Storage

#: Work-items of a work-group on a real GPU, unless its waves are larger.
GROUP = 64
#: Relative cost of a work-group half or twice as wide as preferred, in idle lanes.
OCTAVE = 0.1
#: Fixed cost of a work-group, in lanes.
GROUP_LANES = 8
#: Work-items for each compute unit, so that none idles long at the end.
ITEMS_PER_UNIT = 8
#: Channels of a texel.
TEXEL = 4


def power_of_two(value: int) -> int:
    """The largest power of two up to `value`; at least 1."""
    return 1 << max(value.bit_length() - 1, 0)


def base_defines(
    activation: Activation, soc: Soc, storage: Storage = BLOCKED
) -> dict[str, int | float | str]:
    """Macros of `common.cl`; a block is a texel in images."""
    width = TEXEL if storage.layout == "image" else soc.gpu.vector_width
    parameters = zip(("ACT_ALPHA", "ACT_BETA"), activation.parameters, strict=False)
    defines: dict[str, int | float | str] = {"V": width, "ACTIVATION": CODES[activation.kind]}
    defines |= {name: float_literal(value) for name, value in parameters}
    if storage.element == "float16":
        defines["HALF"] = 1
    return {**defines, "ONE_ITEM": 1} if soc.gpu.is_cpu else defines


def waves(items: Any, soc: Soc) -> Any:
    """Rounds in which the compute units run `items` work-items of one row."""
    return rounds(ceil_div(items, 1 if soc.gpu.is_cpu else group_items(soc)), soc)


def rounds(groups: Any, soc: Soc) -> Any:
    """Rounds in which the compute units run `groups` work-groups."""
    return 1.0 * ceil_div(groups, soc.gpu.compute_units)


def strip(tiles: Any, others: Any, most: Any, soc: Soc) -> Any:
    """Consecutive tiles per work-item, at most `most`, where `others` items share each strip.

    On a CPU, long strips save work-groups (10 ns each) and keep input in the cache, but every
    compute unit needs strips. On a GPU it is 1, for the most work-items.
    """
    if not soc.gpu.is_cpu:
        return 1 + 0 * tiles
    units = soc.gpu.compute_units
    wanted = 1 if units == 1 else ceil_div(ITEMS_PER_UNIT * units, others)
    fitting = ceil_div(tiles, wanted)
    if isinstance(fitting, int):
        return max(1, min(int(most), fitting))
    return np.maximum(1, np.minimum(most, fitting))


def group_items(soc: Soc) -> int:
    """Work-items of the default work-group: whole waves, within the device's limit."""
    return min(max(GROUP, soc.gpu.wave_size), most_items(soc.gpu))


@lru_cache(maxsize=1 << 16)
def group_shape(
    strips: int, others: int, *, items: int, wave: int, deep: int = 1, wide: int = GROUP
) -> tuple[int, int]:
    """Width and height of a work-group of at most `items`, for `strips` x `others` work-items.

    The third dimension is `deep`. The height divides `others`, so kernels need not check it. The
    shape leaves few lanes idle; among equals the one closest to the width `wide` is taken, as
    neighbours in the first dimension read neighbouring pixels.
    """
    room, others = max(1, items // deep), max(1, others)
    highs = [high for high in range(1, min(room, others) + 1) if others % high == 0]
    # All strips where they fit, else a power of two: groups start at aligned vectors of memory.
    fitting = ((room // high, high) for high in highs)
    shapes = [(strips if strips <= most else power_of_two(most), high) for most, high in fitting]

    def cost(shape: tuple[int, int]) -> float:
        width, high = shape
        lanes: int = ceil_div(strips, width) * (others // high)
        lanes *= round_up(width * high * deep, wave) + GROUP_LANES
        return lanes * (1 + OCTAVE * abs(log2(width / wide)))

    return min(shapes, key=cost)


def group_shapes(
    strips: Any, others: Any, teams: Any, soc: Soc, *, wide: int = GROUP
) -> tuple[Column, Column]:
    """`group_shape` of columns, where `teams` share sums; with several, `wide` is halved."""
    columns_of = np.broadcast_arrays(strips, others, teams)
    flat = np.stack([np.ravel(column) for column in columns_of]).astype(np.int64)
    cases, places = np.unique(flat, axis=1, return_inverse=True)
    shapes = [
        group_shape(
            strips, others, items=group_items(soc), wave=soc.gpu.wave_size, deep=teams,
            wide=wide if teams == 1 else max(1, wide // 2),
        )
        for strips, others, teams in cases.T.tolist()
    ]  # fmt: skip
    width, high = np.array(shapes, np.float64)[np.ravel(places)].T
    shape = columns_of[0].shape
    return width.reshape(shape), high.reshape(shape)


def pack_bias(bias: Array, width: int, *, blocks_of_zeros: int = 0) -> Array:
    """The bias in whole blocks of channels, followed by blocks of zeros."""
    return np.pad(bias.reshape(-1), (0, -bias.size % width + blocks_of_zeros * width))


def in_blocks(array: Array, width: int, axis: int = 0) -> Array:
    """An array with an axis split into blocks of `width`, the last one padded with zeros."""
    beyond = [(0, -size % width if at == axis else 0) for at, size in enumerate(array.shape)]
    shape = (*array.shape[:axis], -1, width, *array.shape[axis + 1 :])
    return np.pad(array, beyond).reshape(shape)


# Registers and local memory of GPUs, documented by their makers and not by OpenCL.


@dataclass(frozen=True)
class Architecture:
    """Registers and local memory of one maker's GPUs.

    `registers` is the number of 32-bit registers of a work-item; beyond it, kernels spill or too
    few waves run. Work-groups of a compute unit share `unit_registers` and `unit_local_bytes`; None
    is the limit of one work-group. With `local_is_memory`, local memory is no faster than global
    memory. Kernels with many registers have work-groups of `group_part` times the largest size.
    `unit_items` work-items keep a compute unit busy; with fewer, convolutions use smaller tiles and
    teams.
    """

    registers: int
    unit_registers: int
    unit_items: int = 384
    unit_local_bytes: int | None = None
    local_is_memory: bool = False
    group_part: float = 1.0


#: Architectures by a word of the device's name or platform.
ARCHITECTURES = {
    "nvidia": Architecture(256, 65536, unit_local_bytes=220_000),
    "adreno": Architecture(128, 49152, unit_items=1024),
    "qualcomm": Architecture(128, 49152, unit_items=1024),
    "mali": Architecture(64, 24576, local_is_memory=True, group_part=0.5),
    "immortalis": Architecture(64, 24576, local_is_memory=True, group_part=0.5),
    "amd": Architecture(256, 65536),
}
OTHERS = Architecture(128, 32768)
#: Registers of a work-item for addresses, counters and the like.
OTHER_REGISTERS = 24


def is_card(gpu: GpuSide) -> bool:
    """True where a work-item has enough registers for every tile worth trying."""
    return architecture_of(gpu).registers >= 255


def holds(gpu: GpuSide, numbers: Any) -> Any:
    """True where a work-item keeps `numbers` values in registers, beside `OTHER_REGISTERS`.

    Always true on a CPU, whose tiles are bounded by vector registers.
    """
    return gpu.is_cpu | (numbers + OTHER_REGISTERS <= architecture_of(gpu).registers)


def most_items(gpu: GpuSide) -> int:
    """The largest work-group of a kernel with many registers, in work-items."""
    return int(architecture_of(gpu).group_part * gpu.max_work_group_size)


def architecture_of(gpu: GpuSide) -> Architecture:
    """The architecture of a device; meaningless for a CPU."""
    told = f"{gpu.name} {gpu.platform}".lower()
    return next((each for word, each in ARCHITECTURES.items() if word in told), OTHERS)


# Register tiles on an OpenCL device that is a CPU: pixels x blocks of output channels.
#
# A kernel keeps the sums of a tile in vector registers, beside the weights of one input channel and
# the current pixel. A multiply-add costs an instruction, and a share of three others: loads of
# weights (once per tile's pixels), spreading a pixel over a vector (once per its blocks), and the
# loop. The best tile follows from `gpu.vector_registers` of the SoC file and the vector width.


#: Registers besides sums and weights: the current pixel and the next one.
UNDER_WAY = 2
#: With fewer sums, multiply-adds wait: each takes four cycles, and two start per cycle.
FEWEST_SUMS = 8
#: Pixels may need a pointer each, and 16 general registers hold few more.
MOST_PIXELS = 8
MOST_BLOCKS = 4
#: More blocks are more code to compile, so they must save this share of instructions.
WORTH = 0.1
#: Vector width at which spreading a pixel takes an instruction. With 16 (AVX-512) the multiply-add
#: broadcasts from memory, with 4 (NEON) it multiplies by a lane.
SPREADING_WIDTH = 8


def assumed_registers(gpu: GpuSide) -> int:
    """Vector registers of the SoC file, or the fewest of any CPU with this vector width.

    That is 32 for vectors of 16 floats, otherwise 16.
    """
    return gpu.vector_registers or (32 if gpu.vector_width == 16 else 16)


def most_sums(gpu: GpuSide) -> int:
    """The most sums of other kinds of tiles: three quarters of the registers."""
    return assumed_registers(gpu) * 3 // 4


def most_pixels(blocks: int, gpu: GpuSide, limit: int = MOST_PIXELS) -> int:
    """The most pixels whose sums fit beside the weights of `blocks` blocks, up to `limit`; or 0."""
    return max(0, min(limit, (assumed_registers(gpu) - UNDER_WAY) // blocks - 1))


def effort(pixels: Any, blocks: Any, gpu: GpuSide) -> Any:
    """Instructions per multiply-add in a tile of `pixels` x `blocks`."""
    return 1 + 1 / pixels + spreading(gpu) / blocks + 1 / (pixels * blocks)


def spreading(gpu: GpuSide) -> int:
    """Instructions that spread a pixel over a vector; 0 where the registers are unknown."""
    return int(bool(gpu.vector_registers) and gpu.vector_width == SPREADING_WIDTH)


def register_tiles(gpu: GpuSide, limit: int = MOST_PIXELS) -> tuple[tuple[int, int], ...]:
    """Tiles of pixels x blocks that fit the registers and keep the core busy, by blocks.

    For each number of blocks, the most pixels and some fewer, which waste less on small images.
    """
    fitting = []
    for blocks in range(1, MOST_BLOCKS + 1):
        most = most_pixels(blocks, gpu, limit)
        fewest = max(-(-FEWEST_SUMS // blocks), -(-2 * most // 3))
        fitting += [(pixels, blocks) for pixels in range(most, fewest - 1, -1)]
    return tuple(fitting)


def block_counts(gpu: GpuSide) -> tuple[int, ...]:
    """Numbers of blocks to compare on the device; empty where the registers are unknown."""
    if not gpu.is_cpu or not gpu.vector_registers:
        return ()
    return tuple(sorted({1, 2, MOST_BLOCKS, usual_blocks(gpu)}))


def usual_blocks(gpu: GpuSide) -> int:
    """The fewest blocks of a tile with nearly the least effort.

    It is 1 on a real GPU, and where the registers are unknown, because eight sums fit any CPU.
    """
    if not gpu.is_cpu or not gpu.vector_registers:
        return 1
    efforts = {tile: effort(*tile, gpu) for tile in register_tiles(gpu)}
    enough = min(efforts.values()) * (1 + WORTH)
    return min(blocks for (_, blocks), tile_effort in efforts.items() if tile_effort <= enough)


# Images.


def image_refusal(soc: Soc, shapes: Iterable[Shape]) -> str | None:
    """The reason why some tensor of these shapes cannot be an image; None if all can."""
    if not (soc.gpu.max_image_width and soc.gpu.max_image_height):
        return "the device must have images, got max_image_width=0"
    sizes = ((shape.w * ceil_div(shape.c, TEXEL), shape.n * shape.h, shape) for shape in shapes)
    return next(filter(None, (size_refusal(soc, *size) for size in sizes)), None)


def size_refusal(soc: Soc, width: int, height: int, content: object) -> str | None:
    """The reason why an image of some texels is too large for a device; None if it fits."""
    if fits(soc, width, height):
        return None
    return (
        f"images must be at most {soc.gpu.max_image_width}x{soc.gpu.max_image_height} texels, "
        f"got {width}x{height} for {content}"
    )


def fits(soc: Soc, width: Column | int, height: Column | int) -> NDArray[np.bool_]:
    within: NDArray[np.bool_] = np.less_equal(width, soc.gpu.max_image_width)
    return within & np.less_equal(height, soc.gpu.max_image_height)


def pack_filter(weight: Array) -> Array:
    """(oc, ic, kh, kw) -> (rows: oc block, kh, kw; columns: ic; 4 of oc), both padded to texels.

    This is MACE's filter image, I wide and ceil(O / 4) * H * W high.
    """
    ic, window = round_up(weight.shape[1], TEXEL), weight.shape[2] * weight.shape[3]
    flat = weight.reshape(*weight.shape[:2], window)
    whole = np.pad(flat, ((0, 0), (0, ic - weight.shape[1]), (0, 0)))
    return np.transpose(in_blocks(whole, TEXEL), (0, 3, 2, 1)).reshape(-1, ic, TEXEL)


# Activations: macros for `ACTIVATE` in `common.cl`, and costs.


CODES = {kind: code for code, kind in enumerate(ACTIVATIONS)}
#: Costs of expensive functions, in exponentials.
EXPONENTIALS: Mapping[str, float] = {
    "sigmoid": 1.0,
    "silu": 1.0,
    "gelu_tanh": 1.0,
    "tanh": 2.0,
    "elu": 2.0,
    "erf": 2.0,
    "gelu": 2.5,
}
_KIND = attrgetter("activation.kind")


def exponentials(ops: Sequence[Op]) -> NDArray[np.float64]:
    """Cost of the ops' activations, in exponentials, shaped (ops)."""
    each = np.array([EXPONENTIALS.get(kind, 0.0) for kind in map(_KIND, ops)])
    for at in np.flatnonzero(each).tolist():
        each[at] *= ops[at].output.elements
    return each


def float_literal(value: float) -> str:
    """A float32 literal of OpenCL C; without the suffix it would be a double."""
    if isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"({value!r}f)"


# Features over columns of ops: vector steps, cache misses, and choices.


def halvings(sizes: Column, width: int) -> Column:
    """Steps through `sizes` elements: vectors of `width`, then ever narrower ones for the rest."""
    steps = np.floor(sizes / width)
    left = sizes - steps * width
    while width > 1:
        width //= 2
        fits = left >= width
        steps += fits
        left -= fits * float(width)
    return steps


def packed_vectors(channels: Column, width: int) -> Column:
    """Vectors of ncnn's packed layout, of 16, 8 or 4 channels if these divide all, else of 1."""
    vectors = channels
    for lanes in (4, 8, 16):
        if lanes <= width:
            vectors = np.where(rest(channels, lanes) == 0, channels / lanes, vectors)
    return vectors


#: Bytes of a first-level cache, and the third-level cache in units of the second level. These are
#: usual values; SoC files have none.
FIRST_LEVEL, THIRD_LEVEL = 1 << 15, 16


def beyond(amount: Column, cache_bytes: float) -> Column:
    """Bytes that miss a cache when `amount` bytes are read repeatedly.

    None up to half the cache, all from one and a half times the cache, or if its size is 0
    (unknown).
    """
    result: Column = amount * np.clip(amount / max(cache_bytes, 1.0) - 0.5, 0.0, 1.0)
    return result


def by_level(name: str, amount: Column, cache_bytes: float) -> FeatureColumns:
    """Total bytes, bytes from beyond the second-level cache, and bytes from memory."""
    return {
        f"{name}_bytes": amount,
        f"{name}_beyond": beyond(amount, cache_bytes),
        f"{name}_far": beyond(amount, THIRD_LEVEL * cache_bytes),
    }


def gpu_cache_bytes(soc: Soc) -> float:
    """Bytes of a core's second-level cache on a CPU, or of the GPU's global cache."""
    if soc.gpu.is_cpu:
        return float(soc.cpu.l2_cache_bytes)
    return float(max(soc.gpu.global_mem_cache_size, FIRST_LEVEL))


def single(features: Mapping[str, Column]) -> dict[str, float]:
    """The features of one op, from columns of length 1."""
    return {name: float(values[0]) for name, values in features.items()}


#: Tuning parameters by name: a column with a value per op, or a number for all ops.
ChoiceColumns = Mapping[str, Any]


def unique(choices: Iterable[Choice | None]) -> tuple[Choice, ...]:
    distinct: list[Choice] = []
    for choice in choices:
        if choice is not None and choice not in distinct:
            distinct.append(choice)
    return tuple(distinct)


def first_choice(choice: ChoiceColumns) -> dict[str, int]:
    return {name: int(np.ravel(values)[0]) for name, values in choice.items()}


def least(choices: ChoiceColumns, cost: Column) -> ChoiceColumns:
    """The cheapest choice of each op; choices and cost are shaped (..., ops)."""
    best = np.argmin(cost.reshape(-1, cost.shape[-1]), axis=0)
    at = (*np.unravel_index(best, cost.shape[:-1]), np.arange(cost.shape[-1]))
    return {name: np.broadcast_to(rows, cost.shape)[at] for name, rows in choices.items()}


def in_order(choices: ChoiceColumns, cost: Column) -> tuple[Choice, ...]:
    """The first op's choices of finite cost, the cheapest first."""
    costs = cost[..., 0].ravel()
    table = {k: np.broadcast_to(rows, cost.shape)[..., 0].ravel() for k, rows in choices.items()}
    order = [row for row in np.argsort(costs, kind="stable") if np.isfinite(costs[row])]
    return unique({name: int(rows[row]) for name, rows in table.items()} for row in order)
