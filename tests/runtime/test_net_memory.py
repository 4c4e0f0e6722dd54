"""Nets of the CPU give back the memory that they took."""

from __future__ import annotations

from itertools import pairwise
from multiprocessing import get_context
from statistics import median

import pytest
from support.worker_tasks import resident_bytes

from codl.ir import parse, to_text
from codl.runtime.placement import LocalSoc

OP = parse("conv2d in=1x64x160x160 oc=64 kernel=3x3 pad=1")


@pytest.mark.parametrize("name", ["cpu_gemm", "cpu_winograd", "cpu_direct"])
def test_works_that_are_gone_hold_no_memory(first_soc: LocalSoc, name: str) -> None:
    """What is measured has memory of its own, so that who ran before makes no difference.

    In a process of its own: what each work left behind would be in most steps.
    """
    with get_context("spawn").Pool(1) as pool:
        sizes = pool.apply(resident_bytes, (to_text(OP), name, first_soc, 12))
    grown = [after - before for before, after in pairwise(sizes)]
    assert median(grown) < OP.output.bytes / 4
