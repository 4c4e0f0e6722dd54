"""Register tiles on a device that is a CPU: sums of some pixels by some blocks of output channels.

A kernel that multiplies matrices keeps the sums of a tile in vector registers, beside the weights
of one input channel and the pixel under way. Every multiply-add costs an instruction, and its share
of what loads the weights (once for all pixels of the tile), of what spreads the pixel over the
lanes of a vector (once for all of its blocks) and of the loop's own. Which tile is best follows
from how many registers the SoC file states (`gpu.vector_registers`) and from what its vectors do.
"""

from __future__ import annotations

from functools import cache

from codl.ir import Op, parse
from codl.records.soc import GpuSide

#: Registers beside sums and weights: the pixel that is multiplied, and the next one on its way.
UNDER_WAY = 2
#: Fewer sums wait for themselves: a multiply-add takes four cycles, and two begin in each.
FEWEST_SUMS = 8
#: A pixel may need a pointer of its own, and 16 general registers hold few more beside the rest.
MOST_PIXELS = 8
MOST_BLOCKS = 4
#: Convolutions whose tiles stand for those of others: small, and of every kind of loop. How many
#: blocks should share a pixel depends on the device and its compiler far more than on the op, so
#: what is found for these holds for ops that were not tuned themselves. Those of a kind have the
#: same tiles, so that their kernels are compiled once. Output channels are whole blocks of any
#: width, and any number of up to four of them.
TYPICAL = (
    "conv2d in=1x128x28x28 oc=192 kernel=1x1",
    "conv2d in=1x192x14x14 oc=192 kernel=1x1",
    "conv2d in=1x64x28x28 oc=192 kernel=3x3 pad=1",
    "conv2d in=1x128x28x28 oc=192 kernel=3x3 pad=1",
)
#: More blocks are more code to compile: they must save such a share of the instructions.
WORTH = 0.1
#: The vectors for which a pixel is spread by an instruction of its own. Those of 16 (AVX-512) take
#: it from memory in the multiply-add, and those of 4 (NEON) multiply by a lane of another vector.
SPREADING_WIDTH = 8


def assumed_registers(gpu: GpuSide) -> int:
    """The vector registers that the SoC file states, or as many as every CPU with such vectors has.

    32 with vectors of 16 floats, 16 otherwise.
    """
    return gpu.vector_registers or (32 if gpu.vector_width == 16 else 16)


def most_sums(gpu: GpuSide) -> int:
    """Sums for which three registers in four are kept, where a tile is not of pixels x blocks."""
    return assumed_registers(gpu) * 3 // 4


def most_pixels(blocks: int, gpu: GpuSide, limit: int = MOST_PIXELS) -> int:
    """Pixels whose sums fit beside the weights of `blocks` blocks, `limit` at most; 0 for none."""
    return max(0, min(limit, (assumed_registers(gpu) - UNDER_WAY) // blocks - 1))


def effort(pixels: float, blocks: int, gpu: GpuSide) -> float:
    """Instructions for a multiply-add in such a tile."""
    return 1 + 1 / pixels + spreading(gpu) / blocks + 1 / (pixels * blocks)


def spreading(gpu: GpuSide) -> int:
    """Instructions that spread a pixel over the lanes of a vector; none where it is not known."""
    return int(bool(gpu.vector_registers) and gpu.vector_width == SPREADING_WIDTH)


def tiles(gpu: GpuSide, limit: int = MOST_PIXELS) -> tuple[tuple[int, int], ...]:
    """Tiles of pixels x blocks that fit the registers and keep the core busy, by blocks.

    Of every number of blocks the one with most pixels, and some with fewer, which waste less of a
    small image.
    """
    fitting = []
    for blocks in range(1, MOST_BLOCKS + 1):
        most = most_pixels(blocks, gpu, limit)
        fewest = max(-(-FEWEST_SUMS // blocks), -(-2 * most // 3))
        fitting += [(pixels, blocks) for pixels in range(most, fewest - 1, -1)]
    return tuple(fitting)


def block_counts(gpu: GpuSide) -> tuple[int, ...]:
    """Numbers of blocks worth comparing on the device; none where nothing is known of registers."""
    if not gpu.is_cpu or not gpu.vector_registers:
        return ()
    return tuple(sorted({1, 2, MOST_BLOCKS, usual_blocks(gpu)}))


def usual_blocks(gpu: GpuSide) -> int:
    """The fewest blocks of a tile with about the least effort.

    One on a device that is no CPU, and where the number of registers is not known: eight sums fit
    in those of any CPU.
    """
    if not gpu.is_cpu or not gpu.vector_registers:
        return 1
    efforts = {tile: effort(*tile, gpu) for tile in tiles(gpu)}
    enough = min(efforts.values()) * (1 + WORTH)
    return min(blocks for (_, blocks), tile_effort in efforts.items() if tile_effort <= enough)


@cache
def typical_ops() -> tuple[Op, ...]:
    return tuple(map(parse, TYPICAL))
