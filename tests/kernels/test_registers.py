"""Register tiles: what a SoC file states of its registers is what kernels keep their sums in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support.kernel_runs import Case
from support.random_ops import convolutions
from support.simulated import SOC

from codl.ir import Op, parse
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

#: Vectors of so many floats in so many registers: AVX2, AVX-512, NEON, SSE.
KINDS = ((8, 16), (16, 32), (4, 32), (4, 16))


def cpu(width: int, known: int | None) -> Soc:
    gpu = replace(SOC.gpu, type="cpu", vector_width=width, vector_registers=known, wave_size=1)
    return replace(SOC, gpu=gpu)


def held(plan: Any) -> int:
    """Registers that a kernel's inner loop needs: its sums, weights, and the pixel under way."""
    defined = plan.defines
    return int(defined.get("PIXELS", defined.get("TOGETHER")) + 1) * int(defined["OUTS"]) + 1


@given(op=convolutions())
@settings(max_examples=200)
def test_the_default_tile_of_any_convolution_fits_its_registers(op: Op) -> None:
    for width, known in KINDS:
        soc = cpu(width, known)
        for name in ("gpu_direct", "gpu_winograd"):
            variant: Any = registry.find(op, name)
            if variant.refusal(op, soc) is None:
                assert held(variant.plan(op, soc)) <= known


@pytest.mark.parametrize(("width", "known"), [(8, 16), (16, 32)])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("conv2d in=1x20x7x7 oc=192 kernel=1x1 act=relu", "gpu_direct"),
        ("conv2d in=1x19x4x5 oc=90 kernel=3x3", "gpu_winograd"),
    ],
)
def test_every_number_of_blocks_computes_the_same(
    text: str, name: str, width: int, known: int, gpu: OpenClDevice
) -> None:
    from support import devices

    own = replace(gpu.soc.gpu, vector_width=width, vector_registers=known)
    device = devices.here(replace(gpu.soc, gpu=own)).device
    op = parse(text)
    case, variant = Case.of(op, seed=3), registry.find(op, name)
    choices = variant.choices(op, device.soc)  # type: ignore[attr-defined]
    by_blocks = {choice["outs"]: choice for choice in choices}
    assert not gpu.soc.gpu.is_cpu or {1, 2} <= by_blocks.keys()
    for choice in by_blocks.values():
        case.on_gpu(variant, device, choice=choice)
        assert np.isfinite([*variant.features(op, device.soc, choice).values()]).all()  # type: ignore[call-arg]
