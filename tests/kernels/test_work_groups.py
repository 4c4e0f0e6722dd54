"""Work-groups and register tiles: lanes that work, and the limits of phones and small devices."""

from __future__ import annotations

import copy
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support.kernel_runs import Case, operands, reference, run_gpu
from support.op_examples import EVERY_KIND, OF_MODELS
from support.random_ops import convolutions
from support.simulated import SOC, soc_with
from support.some import some

from codl.ir import Op, Region, parse
from codl.ir.records.soc import GpuSide, Soc
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

#: As phones have them: units, the largest work-group, lanes in lockstep, and 32 KiB to share.
ADRENO = replace(
    SOC.gpu, name="Adreno 640", max_work_group_size=1024, wave_size=64,
    memory_types=("buffer", "image2d"),
)  # fmt: skip
MALI = replace(
    ADRENO, name="Mali-G76", compute_units=16, max_work_group_size=384, wave_size=8,
    global_mem_cache_size=1 << 19,
)  # fmt: skip
PHONES = (ADRENO, replace(ADRENO, wave_size=128), MALI, replace(MALI, wave_size=16))


@pytest.mark.parametrize("gpu", PHONES[:3:2], ids=lambda gpu: gpu.name)
@pytest.mark.parametrize(
    "text",
    [
        "conv2d in=1x96x7x7 oc=20 kernel=3x3 pad=1 act=relu",
        "conv2d in=1x67x7x9 oc=24 kernel=1x1",
        "conv2d in=1x70x9x9 oc=40 kernel=3x3 stride=2 pad=1",
        "conv2d in=1x128x5x7 oc=64 kernel=3x3 pad=1 groups=2",
        "conv2d in=1x20x9x9 oc=12 kernel=7x7 pad=3",
        "conv2d in=1x36x7x7 oc=36 kernel=3x3 pad=1 groups=36",
        "pooling in=1x36x9x9 kernel=3x3 stride=2 pad=1",
        "eltwise in=1x40x7x7,1x40x7x7 act=relu",
        "fc in=1x128x3x3 oc=70",
    ],
)
def test_kernels_within_the_limits_of_phones(text: str, gpu: GpuSide, as_gpu: OpenClDevice) -> None:
    """In as many work-items as the phone's groups have, with the memory that they may share."""
    from support.devices import here

    driver = as_gpu.soc.gpu
    facts = replace(gpu, platform=driver.platform, name=driver.name, driver=driver.driver)
    device = here(replace(as_gpu.soc, gpu=facts)).device
    case = Case.of(parse(text), seed=3)
    variants: list[Any] = registry.variants(case.op, "gpu", device.soc, include_unfit=True)
    for variant in some(v for v in variants if v.meant_for != {"cpu"}):
        for launch in variant.plan(case.op, device.soc).launches:
            assert prod(launch.local_size or (1,)) <= gpu.max_work_group_size
        case.on_gpu(variant, device)


def test_teams_of_a_card_with_many_units_sum_once(as_gpu: OpenClDevice) -> None:
    """An activation that says its argument twice is of one sum."""
    from support.devices import here

    device = here(replace(as_gpu.soc, gpu=replace(as_gpu.soc.gpu, compute_units=132))).device
    case = Case.of(parse("conv2d in=1x20x1x1 oc=80 kernel=1x1 act=clip:0:1"), seed=3)
    variants: list[Any] = registry.variants(case.op, "gpu", device.soc, include_unfit=True)
    for variant in some(v for v in variants if v.base_name.startswith("gpu_direct")):
        assert variant.choices(case.op, device.soc)[0]["teams"] > 1
        case.on_gpu(variant, device)


OPS = (*map(parse, EVERY_KIND), *OF_MODELS)
#: Small ones of the kinds whose work-items share rows, sums or tiles.
SHARING = (
    "fc in=1x40x3x3 oc=100",
    "softmax in=1x50x3x1 axes=1",
    "softmax in=1x2x3x70 axes=3",
    "transpose in=100x17 perm=1x0",
    "norm in=64x32 axis=1",
    "reduce in=64x32 axes=1 mode=sum",
)


@pytest.mark.parametrize("most", [1, 4, 12, 32])
@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_no_work_group_is_larger_than_the_device_allows(most: int, kind: str) -> None:
    soc = soc_with(type=kind, max_work_group_size=most)
    sizes: dict[tuple[str, str], int] = {}
    for op in OPS:
        variants = [v for v in registry.of_kind(op.kind) if v.backend == "opencl"]
        able = [variant for variant in variants if not variant.refusal(op, soc)]
        assert able or not variants, f"nothing is left for {op}"
        for variant in able:
            for choice in variant.choices(op, soc):
                for launch in variant.plan(op, soc, choice).launches:
                    sizes[variant.name, f"{op} {choice}"] = prod(launch.local_size or ())
    assert {key: size for key, size in some(sizes.items()) if size > most} == {}


@pytest.mark.parametrize("text", SHARING)
def test_small_work_groups_compute_the_same(text: str, first_gpu: OpenClDevice) -> None:
    op, device = parse(text), copy.copy(first_gpu)
    device.soc = replace(first_gpu.soc, gpu=replace(first_gpu.soc.gpu, max_work_group_size=12))
    inputs, weights = operands(op)
    expected = reference(op, inputs, weights)
    for variant in some(registry.variants(op, "gpu", device.soc)):
        found, _ = run_gpu(variant, op, Region.whole(op.output), inputs, weights, device)
        np.testing.assert_allclose(found, expected, 1e-3, 1e-3, err_msg=variant.name)


#: Vectors of so many floats in so many registers: AVX2, AVX-512, NEON, SSE.
KINDS = ((8, 16), (16, 32), (4, 32), (4, 16))


def cpu(width: int, known: int | None) -> Soc:
    return soc_with(type="cpu", vector_width=width, vector_registers=known, wave_size=1)


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
