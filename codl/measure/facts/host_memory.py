"""Whether memory of the host is mapped without a copy: does it take longer, the more it is?

A buffer of the host's memory (`CL_MEM_ALLOC_HOST_PTR`) is written by a kernel, mapped for reading
and writing, touched and unmapped. Where both processors have the same memory that is a matter of
tables and caches; where they do not, every byte goes to the host and back. The time of the pair of
map and unmap is laid beside the time in which the host's core copies as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from codl.measure.facts.fact import Fact, points
from codl.records.statistic import level
from codl.runtime.drivers import cl_module
from codl.runtime.probe import BareDevice

KEY = "gpu.zero_copy"
SOURCE = "kernel void fill(global int *out, int value) { out[get_global_id(0)] = value; }"
#: Bytes, as far as the device allows so large a buffer.
SIZES = tuple(1 << exponent for exponent in range(16, 27, 2))
ROUNDS = 9
#: A byte more may cost at most this share of what the host's own copy of one costs. No bus and no
#: copying engine moves bytes there and back ten times as fast as a core.
MOST_SHARE = 0.1


def measure_zero_copy(device: BareDevice) -> Fact:
    """Whether mapping takes as long however large a buffer is, and the latencies that tell."""
    most = min(device.device.max_mem_alloc_size, device.device.global_mem_size // 4)
    sizes = [size for size in SIZES if size <= most]
    kernel = device.kernel(SOURCE, "fill")
    mapping: dict[int, list[float]] = {size: [] for size in sizes}
    copying: dict[int, list[float]] = {size: [] for size in sizes}
    flags = cl_module().mem_flags
    for size in sizes:
        buffer = cl_module().Buffer(device.context, flags.READ_WRITE | flags.ALLOC_HOST_PTR, size)
        source, copy = (np.ones(size, np.uint8) for _ in range(2))
        for turn in range(ROUNDS + 1):
            kernel.set_args(buffer, np.int32(turn))
            device.run(kernel, size // 4)
            map_ms, copy_ms = _map_ms(device, buffer, size), _copy_ms(copy, source)
            if turn:  # pages are there only after the first
                mapping[size].append(map_ms)
                copying[size].append(copy_ms)
    value, reason = is_zero_copy(
        sizes,
        map_ms=[level(mapping[size]) for size in sizes],
        copy_ms=[level(copying[size]) for size in sizes],
    )
    found = [points("map and unmap", size, mapping[size]) for size in sizes]
    found += [points("copy by the host", size, copying[size]) for size in sizes]
    return Fact(KEY, value, reason, tuple(found))


def is_zero_copy(
    sizes: Sequence[int], *, map_ms: Sequence[float], copy_ms: Sequence[float]
) -> tuple[bool | None, str]:
    """What latencies by size in bytes say, and why; None where even the host's copies do not grow.

    The growth is the median of the slopes between all pairs of sizes (Theil and Sen), which a few
    disturbed latencies do not change.
    """
    by_map, by_copy = _slope(sizes, map_ms), _slope(sizes, copy_ms)
    if by_copy <= 0:
        return None, "the host's own copies take no longer, the larger they are"
    share = max(0.0, by_map) / by_copy
    grows = f"map and unmap take {max(0.0, by_map) * 2**20:.4f} ms more a MiB"
    return share < MOST_SHARE, f"{grows}, {share:.2f} of what a copy by the host takes"


def _slope(sizes: Sequence[int], latencies: Sequence[float]) -> float:
    """Milliseconds a byte."""
    pairs = combinations(zip(sizes, latencies, strict=True), 2)
    slopes = [(b - a) / (large - small) for (small, a), (large, b) in pairs]
    return float(np.median(slopes)) if slopes else 0.0


def _map_ms(device: BareDevice, buffer: object, size: int) -> float:
    """Milliseconds of map and unmap, without those in which the host writes a word."""
    cl = cl_module()
    access = cl.map_flags.READ | cl.map_flags.WRITE
    begin = perf_counter()
    array, _ = cl.enqueue_map_buffer(
        device.queue, buffer, access, 0, (size // 4,), np.int32, is_blocking=True
    )
    mapped = perf_counter()
    array[-1] = 0
    unmapping = perf_counter()
    array.base.release(device.queue)
    device.queue.finish()
    return 1e3 * (perf_counter() - unmapping + mapped - begin)


def _copy_ms(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> float:
    begin = perf_counter()
    np.copyto(target, source)
    return 1e3 * (perf_counter() - begin)
