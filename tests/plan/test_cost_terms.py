"""Every term of a plan's cost counts, signals and limits of the GPU too."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf
from typing import Any

import numpy as np
import pytest
from support.references import converted
from support.simulated import SOC, WITH_IMAGES
from support.synthetic_predictors import Line, SyntheticPredictors, inside

from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network, parse
from codl.ir.plan import Chain, Plan
from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits
from codl.ir.types import PROCESSORS, Processor
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.plan import price as prices
from codl.plan.build_plan import chain_of
from codl.plan.cost_model import CostModel
from codl.plan.predicted_plan import make_plan as planned
from codl.predict.in_network_cost import InNetworkCost


@pytest.fixture(scope="module")
def network() -> Network:
    """Two images through convolutions and a residual add."""
    b = ModelBuilder("batch")
    x = b.relu(b.conv(b.input("x", (2, 16, 40, 40)), 32, 3, pad=1))
    x = b.add(b.conv(x, 32, 3, pad=1), x)
    b.output(b.conv(b.max_pool(x, 2, 2), 24, 1, pad=0))
    return converted(b)


def price(network: Network, predictors: SyntheticPredictors) -> float:
    """Of a plan with two engines in the CPU's nets, and two storages on the GPU."""
    cpu = ["cpu_direct", "cpu_direct", "cpu_ort", "cpu_direct", "cpu_gemm"]
    gpu = ["gpu_direct", "gpu_direct", "gpu_direct", "gpu_direct_image", "gpu_direct"]
    layers = network.layers
    variants = {
        layer.name: {"cpu": own_cpu, "gpu": own_gpu}
        for layer, own_cpu, own_gpu in zip(layers, cpu, gpu, strict=True)
    }
    cuts = [(layers[:2], "H", 0.5), (layers[2:], "N", 0.5)]
    chains = tuple(
        Chain(names, dim, ratio, {name: variants[name] for name in names})  # type: ignore[arg-type]
        for names, dim, ratio in (
            (tuple(layer.name for layer in own), dim, ratio) for own, dim, ratio in cuts
        )
    )
    plan = Plan(network.name, network.digest, SOC.name, "test", "law", "missing", None, chains)
    cost = CostModel(WITH_IMAGES, predictors)
    return prices.price(lower(network, plan, WITH_IMAGES, Tuning()), cost).latency_ms


@pytest.mark.parametrize(
    ("term", "off", "gpu"),
    [
        ("inside", {}, 1.0),
        ("packing", None, 1.0),
        ("relayout", None, 0.2),
        ("exchange", Line(0.0), 1.0),
    ],
)
def test_a_term_makes_a_plan_dearer(term: str, off: Any, gpu: float, network: Network) -> None:
    """On a SoC whose later processor has to do with it."""
    every = SyntheticPredictors.with_all_terms(gpu=gpu)
    changes: dict[str, Any] = {term: off, **({"parts": {}} if term == "exchange" else {})}
    assert price(network, replace(every, asked=[], **changes)) < price(network, every)


#: Costs of what the plans here do not do: transform weights.
ELSEWHERE = {"transformed_ms"}


@pytest.mark.parametrize(
    "cost", [field.name for field in fields(InNetworkCost) if field.name not in ELSEWHERE]
)
@pytest.mark.parametrize("side", PROCESSORS)
def test_each_cost_inside_a_network_makes_a_plan_dearer(
    cost: str, side: Processor, network: Network
) -> None:
    """On the processor that is the later one; only the CPU's nets are packed, and no weights are
    transformed.
    """
    if (cost, side) == ("packed_ms", "gpu"):
        return
    late: dict[str, Any] = {"gpu": 20.0 if side == "cpu" else 0.05, "asked": []}
    every = replace(SyntheticPredictors.with_all_terms(), **late)
    off = replace(every.inside[side], **{cost: 1.0 if cost == "alone" else 0.0})
    rest = replace(every, asked=[], inside={**every.inside, side: off})
    assert price(network, rest) < price(network, every)


def slow_elsewhere(target: str) -> float:
    """Convolutions are faster in images, all else in buffers."""
    return 2.0 if target.startswith("conv2d") != ("_image" in target) else 1.0


def test_the_planner_weighs_storages_against_copies() -> None:
    b = ModelBuilder("two")
    b.output(b.max_pool(b.conv(b.input("x", (1, 8, 16, 16)), 8, 3, pad=1), 2, 2))
    network = converted(b)
    for relayout, copies in ((0.1, True), (3.0, False)):
        predictors = SyntheticPredictors(
            flops=inf, least_ms=1.0, times=slow_elsewhere, relayout=Line(relayout), exchange=Line(0)
        )
        chain = chain_of(network.layers, "H", 1.0)
        cost = CostModel(WITH_IMAGES, predictors)
        plan = planned(network, cost, [chain], strategy="test", sharing="missing")
        chosen = ["image" in own["gpu"] for own in plan.chains[0].variants.values()]
        assert (len(set(chosen)) == 2) == copies
        assert plan.predicted_ms == pytest.approx(2.1 if copies else 3.0)


OP = parse("conv2d in=1x64x56x56 oc=64 kernel=3x3 pad=1")


def limited_cost(limits: GpuLimits) -> CostModel:
    return CostModel(SOC, SyntheticPredictors(exchange=Line(1e-6)), limits=limits)


def test_a_gpu_that_rests_takes_longer_and_the_cpu_does_not() -> None:
    usual, rested = limited_cost(UNLIMITED), limited_cost(GpuLimits(gpu_duty=0.5))
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


def test_split_kernels_cost_launches_and_everything_the_rest() -> None:
    taken_ms = np.array([0.0, 0.5, 1.0, 3.5])
    limits = GpuLimits(max_kernel_ms=1.0, gpu_duty=0.5)
    assert limits.launches(taken_ms).tolist() == [1, 1, 1, 4]
    assert limits.kept_ms(taken_ms, 0.1).tolist() == pytest.approx([0.0, 1.0, 2.0, 7.6])
    assert limits.rest == 1.0
    assert UNLIMITED.kept_ms(taken_ms, 0.1).tolist() == taken_ms.tolist()
