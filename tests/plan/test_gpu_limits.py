"""Plans for a GPU that has limits."""

from __future__ import annotations

import pytest
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticPredictors, inside

from codl.ir import parse
from codl.plan.cost_model import CostModel
from codl.records.gpu_limits import UNLIMITED, GpuLimits

OP = parse("conv2d in=1x64x56x56 oc=64 kernel=3x3 pad=1")


def cost(limits: GpuLimits) -> CostModel:
    return CostModel(SOC, SyntheticPredictors(exchange=Line(1e-6)), limits=limits)


def test_a_gpu_that_rests_takes_longer_and_the_cpu_does_not() -> None:
    usual, rested = cost(UNLIMITED), cost(GpuLimits(gpu_duty=0.5))
    for side, factor in (("cpu", 1.0), ("gpu", 2.0)):
        before, after = (own.fastest_ms([OP], side)[0] for own in (usual, rested))  # type: ignore[arg-type]
        assert after == pytest.approx(factor * before)


def test_every_further_launch_costs_a_call() -> None:
    predictors = SyntheticPredictors(inside={"gpu": inside(call_ms=0.25)})
    (whole_ms,) = CostModel(SOC, predictors).fastest_ms([OP], "gpu")
    limits = GpuLimits(max_kernel_ms=whole_ms / 3.5)
    (split_ms,) = CostModel(SOC, predictors, limits=limits).fastest_ms([OP], "gpu")
    assert split_ms == pytest.approx(whole_ms + 3 * 0.25)


def test_kernels_that_transform_and_copy_rest_too_and_maps_do_not() -> None:
    parts = {"transform": Line(0.0, 2.0), "map": Line(0.0, 0.5), "sync": Line(0.0, 0.25)}
    predictors = SyntheticPredictors(relayout=Line(0.0, 3.0), parts={"to_cpu": parts})
    rests = GpuLimits(gpu_duty=0.5)
    usual, limited = CostModel(SOC, predictors), CostModel(SOC, predictors, limits=rests)
    before, after = (own.sharing_parts("to_cpu", OP.output) for own in (usual, limited))
    assert after == {**before, "transform": 2 * before["transform"]}
    copied_ms = usual.sharing_ms("relayout", OP.output)
    assert limited.sharing_ms("relayout", OP.output) == 2 * copied_ms > 0


def test_a_transfer_that_is_known_as_a_whole_is_as_it_was() -> None:
    assert cost(GpuLimits(gpu_duty=0.5)).sharing_parts("to_gpu", OP.output) == cost(
        UNLIMITED
    ).sharing_parts("to_gpu", OP.output)
