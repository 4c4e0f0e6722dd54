"""Nets of the CPU give back the memory that they took."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from codl.ir import parse
from codl.kernels import registry
from codl.measure.op_runner import cpu_work
from codl.runtime.opencl import OpenClDevice

OP = parse("conv2d in=1x64x160x160 oc=64 kernel=3x3 pad=1")


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("name", ["cpu_gemm", "cpu_winograd", "cpu_direct"])
def test_works_that_are_gone_hold_no_memory(gpu: OpenClDevice, name: str) -> None:
    """What is measured has memory of its own, so that who ran before makes no difference.

    Others in this process may take some once; what each work left behind would be in most steps.
    """
    variant = registry.find(OP, name)
    sizes = []
    for _ in range(12):
        cpu_work(OP, variant, gpu.soc)(1)
        sizes.append(resident_bytes())
    grown = [after - before for before, after in pairwise(sizes)]
    assert median(grown) < OP.output.bytes / 4
