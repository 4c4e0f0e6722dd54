"""Winograd on a CPU: blocks of tiles that fit its caches, and sums that fit its registers."""

from __future__ import annotations

import numpy as np

from codl.ir.columns import Column, ceil_div
from codl.ir.ops.convolution import ConvColumns
from codl.kernels.conv2d.winograd import WinogradTiling, odd, sides_of, tile_counts
from codl.kernels.cpu_device import registers
from codl.kernels.feature_columns import ChoiceColumns
from codl.records.soc import GpuSide, Soc

#: Tiles that are multiplied at once by one block of output channels, by vector width: as many as
#: registers hold sums. Fewer than `registers.FEWEST_SUMS` are for the smallest images.
TOGETHER = {16: (4, 8, 9, 12, 16, 20, 25), 8: (4, 8, 10, 12), 4: (4, 8)}
#: The most by several blocks, where the registers hold them.
MOST_TOGETHER = 14
#: Share of the second-level cache that the scratch memory of a block of tiles should take, and the
#: fewest tiles for which weights should be read.
SCRATCH_SHARE, FEWEST = 0.35, 16
#: What things cost, in multiplications of vectors: an element of either transform; a pass over a
#: weight vector, and every tile that it is for; and the share more that all of it costs where
#: scratch memory fills the second-level cache.
TRANSFORM, PASS, WIDTH, STRAIN = 8, 0.2, 0.003, 0.1
#: The first pass over a weight vector costs so much more than others, and takes at least so long:
#: from the cache beyond the second, and from memory, where the weights are many times as large.
BEYOND, MEMORY, MANY = (1, 8), (1.5, 12), 12


def ranked_cuts(
    ops: ConvColumns, soc: Soc, blocks: int | None = None
) -> tuple[ChoiceColumns, Column]:
    """Ways to cut the tiles into blocks, by name, and what each costs, infinity where it is none.

    Shaped (sizes of tiles, tiles together, times these, ops), or 1 where all agree. `blocks`: of
    output channels that share a tile, where that is fixed.
    """
    sides = sides_of(ops)
    tile = (sides - ops.kw) / ops.sw + 1
    tiles = tile_counts(ops, tile)[1]
    width = soc.gpu.vector_width
    tile_bytes = 4 * sides**2 * width * (ceil_div(ops.ic, width) + 1)
    fitting = np.floor(SCRATCH_SHARE * soc.cpu.l2_cache_bytes / tile_bytes)
    fitting = np.minimum(np.maximum(FEWEST, fitting), tiles)
    pairs = np.array(_register_tiles(soc.gpu, blocks), np.float64)
    together, outs = pairs.T[..., None, None, None].swapaxes(1, 2)
    short = np.maximum(1, np.floor(fitting / together)) * together
    most = short * np.reshape((1.0, 4.0), (-1, 1))
    choices = {"tile": tile, "together": together, "outs": outs, "most": most}
    cost = _cost(WinogradTiling.of(ops, soc, choices), ops, soc)
    few = (together * outs < registers.FEWEST_SUMS) & (together < tiles)
    return choices, np.where(few | np.isnan(tile), np.inf, cost)


def _register_tiles(gpu: GpuSide, blocks: int | None) -> list[tuple[int, int]]:
    """Tiles that are multiplied at once, and the blocks of output channels that they are for."""
    counts = {1, registers.usual_blocks(gpu)} if blocks is None else {blocks}
    alone = [(together, 1) for together in TOGETHER[gpu.vector_width]]
    several = [pair for pair in registers.tiles(gpu, MOST_TOGETHER) if pair[1] > 1]
    return [pair for pair in alone + several if pair[1] in counts]


def _cost(cut: WinogradTiling, ops: ConvColumns, soc: Soc) -> Column:
    """Multiplications of vectors, and what takes as long.

    A block of tiles reads its weights once from where they are, and then from the cache.
    """
    cache, width = soc.cpu.l2_cache_bytes, soc.gpu.vector_width
    vectors = ops.ic * cut.padded_blocks
    spreading = registers.spreading(soc.gpu)
    a_tile = 1 + spreading / cut.outs + max(PASS, spreading) / cut.together
    products = cut.computed * (a_tile + WIDTH * cut.together)
    weight_bytes = 4 * cut.weight_points * vectors * width
    few = weight_bytes <= MANY * cache
    more, least = (np.where(few, near, far) for near, far in zip(BEYOND, MEMORY, strict=True))
    first_passes = cut.blocks * (more + np.maximum(0, least - cut.together))
    products = products + first_passes * (weight_bytes > cache)
    transforms = TRANSFORM * cut.tiles * (cut.in_blocks + cut.out_blocks)
    scratch_tiles = odd(cut.in_blocks * cut.most)
    scratch_tiles += cut.outs * odd(cut.most)
    filled = np.multiply(4 * width / cache * cut.points, scratch_tiles, out=scratch_tiles)
    strained = 1 + STRAIN * np.minimum(1, filled, out=filled)
    result: Column = vectors * products
    result += transforms
    result *= cut.points
    result *= strained
    return result
