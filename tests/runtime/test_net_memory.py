"""Nets of the CPU give back the memory that they took."""

from __future__ import annotations

from multiprocessing import get_context
from statistics import median

import pytest
from support.worker_tasks import resident_bytes

from codl.ir import parse, to_text
from codl.machine.placement import LocalSoc

OP = parse("conv2d in=1x64x160x160 oc=64 kernel=3x3 pad=1")


@pytest.mark.parametrize("name", ["cpu_gemm", "cpu_winograd", "cpu_direct"])
def test_works_that_are_gone_hold_no_memory(first_soc: LocalSoc, name: str) -> None:
    """Works one after the other, in a process of their own, do not add up in memory.

    Allocators keep some freed blocks, so that single steps rise and fall. A work that kept its
    output would add its bytes at every step, and four times the limit between the halves.
    """
    times = 16
    with get_context("spawn").Pool(1) as pool:
        sizes = pool.apply(resident_bytes, (to_text(OP), name, first_soc, times))
    first, second = sizes[: times // 2], sizes[times // 2 :]
    assert median(second) - median(first) < OP.output.bytes * times / 8
