"""Devices of small work-groups: every variant that does not refuse them keeps to their size."""

from __future__ import annotations

import copy
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from support.kernel_runs import operands, reference, run_gpu
from support.op_examples import EVERY_KIND, OF_MODELS
from support.simulated import SOC
from support.some import some

from codl.ir import Region, parse
from codl.kernels import registry
from codl.runtime.opencl import OpenClDevice

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
    gpu = replace(SOC.gpu, type=kind, max_work_group_size=most)
    soc = replace(SOC, gpu=gpu)
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
