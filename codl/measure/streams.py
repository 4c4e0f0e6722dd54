"""Streams: an op that moves more than any cache holds, so that it is as fast as the memory."""

from __future__ import annotations

from codl.ir import Op, Shape
from codl.ir.ops.pooling import Pool2d
from codl.ir.ops.window import Size2
from codl.records.soc import Soc
from codl.runtime.examination import memory_of

#: Bytes that a stream moves at least: more than those caches of phones hold that SoC files do not
#: know of. At most, a part of the memory.
LEAST_BYTES, MEMORY_PART = 64 << 20, 1 / 16
#: What goes through the caches to empty them is no more: between two runs of an op the rest of a
#: network moves no more either, and what stays in a cache of 300 MB there stays in it here.
MOST_EVICTED = 128 << 20
#: A CPU's library divides it among threads by blocks of channels, so that there are enough.
CHANNELS, COLUMNS = 256, 64


def far_bytes(soc: Soc) -> int:
    """Twice what the largest cache of the CPU holds, as far as the memory is enough for that."""
    largest = max((cache.bytes for cache in soc.cpu.caches), default=0)
    most = int(MEMORY_PART * memory_of().total)
    return max(LEAST_BYTES, min(2 * largest, most))


def stream_op(soc: Soc) -> Op:
    """Moves `far_bytes`."""
    return _moving(far_bytes(soc))


def evicting_op(soc: Soc) -> Op:
    """Moves as much, but no more than `MOST_EVICTED`: it runs before every sample of an exchange or
    a stage.
    """
    return _moving(min(far_bytes(soc), MOST_EVICTED))


def _moving(moved: int) -> Op:
    """Reads half of some bytes and writes the other half, and computes next to nothing."""
    row_bytes = 2 * 4 * CHANNELS * COLUMNS
    shape = Shape(1, CHANNELS, moved // row_bytes, COLUMNS)
    return Pool2d(inputs=(shape,), kernel=Size2(1, 1))
