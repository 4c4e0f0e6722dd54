"""Planning with ops that nobody has measured: their latencies follow the SoC's rates."""

from __future__ import annotations

from math import isfinite
from pathlib import Path

import pytest
from onnx import helper
from support.onnx_models import floats, model
from support.references import converted
from support.simulated import SOC
from support.synthetic_predictors import SyntheticContext, SyntheticPredictors, of_few_kinds

from codl.ir import Layer, Network, Op, parse
from codl.ir.plan import load_plan
from codl.kernels import registry
from codl.lower.partition import partition_plan
from codl.plan.cost_model import CostModel
from codl.plan.coverage import (
    OTHERS_SHARE,
    PRODUCTS_SHARE,
    SAFETY,
    covered,
    rates_of,
)
from codl.plan.strategies import STRATEGIES, find


@pytest.fixture(scope="module")
def network() -> Network:
    """A convolution, a softmax of its channels, and a product with those."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Softmax", ["c"], ["s"], name="softmax", axis=1),
        helper.make_node("Mul", ["c", "s"], ["y"], name="mul"),
    ]
    return converted(model(nodes, {"x": [1, 3, 16, 16]}, ["y"], {"w": floats(8, 3, 3, 3)}))


@pytest.mark.parametrize(
    "strategy", [n for n, s in STRATEGIES.items() if n != "gpu-image" and not s.runs_plans]
)
def test_every_strategy_plans_and_names_what_is_estimated(
    strategy: str, network: Network, tmp_path: Path
) -> None:
    plan = find(strategy).plan(network, SyntheticContext(SOC, predictors=of_few_kinds()))
    assert plan.predicted_ms is not None
    assert isfinite(plan.predicted_ms)
    assert plan.estimated == ("softmax",)
    partition_plan(network, plan, SOC)
    assert load_plan(plan.save(tmp_path / "plan.json")) == plan


def test_rates_are_those_of_what_was_measured() -> None:
    cpu, gpu = (rates_of(side, of_few_kinds(), SOC) for side in ("cpu", "gpu"))  # type: ignore[arg-type]
    assert cpu is not None
    assert gpu is not None
    assert cpu.flops_per_ms == pytest.approx(1e8, rel=0.01)
    assert gpu.flops_per_ms == pytest.approx(2e8, rel=0.01)
    # Without the least that each takes.
    assert cpu.bytes_per_ms == pytest.approx(1e7, rel=0.01)
    assert gpu.bytes_per_ms == pytest.approx(2e7, rel=0.01)
    assert (cpu.safety, gpu.safety) == (SAFETY["cpu"], SAFETY["gpu"])
    assert 0 < cpu.least_ms < 0.002
    softmax, product = parse("softmax in=64x64 axes=1"), parse("matmul in=64x64,64x64")
    assert cpu.latency_ms(softmax) == pytest.approx(
        cpu.least_ms + max(softmax.flops / OTHERS_SHARE / 1e8, softmax.bytes / cpu.bytes_per_ms),
        rel=0.01,
    )
    assert cpu.latency_ms(product) == pytest.approx(
        cpu.least_ms + product.flops / PRODUCTS_SHARE / cpu.flops_per_ms
    )


def test_an_op_that_stands_for_others_takes_what_they_take() -> None:
    """Attention that nobody measured, where its products were measured and a softmax was not."""
    op = parse("attention in=1x2x64x16,1x2x64x16,1x2x64x16 scale=0.25")
    layer = Layer("attention", op, ("q", "k", "v"), "y", {})
    network = Network("test", (layer,), dict(zip("qkv", op.inputs, strict=True)), {}, {})
    predictors = SyntheticPredictors(kinds=("conv2d", "pooling", "eltwise", "matmul"))
    cost = covered(CostModel(SOC, predictors), network)
    scores, softmax, values = op.stands_for
    rates = rates_of("gpu", predictors, SOC)
    assert rates is not None

    def target(one: Op) -> str:
        return registry.target(registry.variants(one, "gpu", SOC)[0], one)

    products = [predictors.latency_ms(target(one), [one])[0] for one in (scores, values)]
    found = cost.predictors.latency_ms(target(op), [op, op])
    assert found == pytest.approx([sum(products) + rates.latency_ms(softmax)] * 2)


def test_a_target_of_a_few_items_counts_for_those(network: Network) -> None:
    """Too few convolutions on the GPU were measured, and say that they are ten times faster."""
    measured, smaller, larger = (f"conv2d in=1x8x8x8 oc={oc} kernel=1x1" for oc in (16, 8, 64))
    target = "conv2d_gpu_direct"
    predictors = of_few_kinds(
        few={target: frozenset([measured])}, times=lambda name: 0.1 if name == target else 1.0
    )
    cost = covered(CostModel(SOC, predictors), network)
    ops = [parse(measured), parse(smaller), parse(larger)]
    own_ms = predictors.latency_ms(target, ops)
    known_ms, estimated_ms, scaled_ms = cost.predictors.latency_ms(target, ops)
    assert known_ms == own_ms[0]
    rates = rates_of("gpu", predictors, SOC)
    assert rates is not None
    assert estimated_ms == pytest.approx(rates.latency_ms(ops[1]))
    assert estimated_ms > own_ms[1]
    # Four times the work of what was measured takes four times as long at most.
    assert scaled_ms == pytest.approx(4 * own_ms[0])
    assert own_ms[2] < scaled_ms < rates.latency_ms(ops[2])
