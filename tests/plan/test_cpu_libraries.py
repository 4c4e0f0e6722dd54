"""Which library computes each layer on the CPU, against all ways to choose them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticPredictors, inside

from codl.ir import Layer, Network, parse
from codl.kernels.base import LIBRARIES
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.measure.op_runner import filler
from codl.plan import chain_costs
from codl.plan.cost_model import CostModel
from codl.plan.predicted_plan import cpu_plans, one_processor
from codl.plan.price import price
from codl.plan.shards import ANY, cpu_libraries

#: Ops of one input behind each other.
OPS = (
    "conv2d in=1x16x16x16 oc=32 kernel=3x3 pad=1",
    "pooling in=1x32x16x16 kernel=2x2 stride=2",
    "conv2d in=1x32x8x8 oc=64 kernel=1x1",
    "eltwise in=1x64x8x8 mode=identity act=sigmoid",
    "conv2d in=1x64x8x8 oc=64 kernel=3x3 pad=1 groups=64",
)


@pytest.fixture(scope="module")
def network() -> Network:
    ops = [parse(text) for text in OPS]
    layers = [
        Layer(f"op{at}", op, (f"t{at}",), f"t{at + 1}", filler(op)) for at, op in enumerate(ops)
    ]
    last = layers[-1]
    outputs = {"y": (last.output, tuple(last.op.output))}
    return Network("row", tuple(layers), {"t0": ops[0].input}, outputs)


def law(seed: int, packing: Line) -> SyntheticPredictors:
    """Libraries that are faster by turns."""

    def times(target: str) -> float:
        return float(np.random.default_rng([seed, *target.encode()]).uniform(0.5, 1.5))

    return SyntheticPredictors(
        bytes=1e7,
        times=times,
        packing=packing,
        inside={"cpu": inside(0.002), "openvino": inside(0.006)},
    )


def planned_ms(network: Network, cost: CostModel) -> float:
    """What the plan is predicted to take, which is the price of what it is lowered to."""
    plan = one_processor(network, cost, "cpu", strategy="test")
    priced = price(lower(network, plan, SOC, Tuning()), cost).latency_ms
    assert plan.predicted_ms == pytest.approx(priced)
    return priced


@pytest.mark.parametrize("packing", [Line(0.0005, 0.01), Line(0.005, 1.0)])
@pytest.mark.parametrize("seed", range(3))
def test_a_row_of_layers_has_the_best_of_all_libraries(
    network: Network, seed: int, packing: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = CostModel(SOC, law(seed, packing))
    chosen_ms = planned_ms(network, cost)
    every = []
    for libraries in product(range(len(LIBRARIES)), repeat=len(OPS)):
        monkeypatch.setattr(chain_costs, "cpu_libraries", lambda *_, a=libraries: np.array(a))
        every.append(planned_ms(network, cost))
    assert chosen_ms == pytest.approx(min(every))
    assert min(every) < max(every)


def test_a_library_without_predictors_is_not_planned(network: Network) -> None:
    known = SyntheticPredictors()
    ours = {"conv2d", "pooling", "eltwise"}
    without = frozenset(
        name
        for name in known.targets
        if name.split("_")[0] in ours and ("_ort" in name or "_openvino" in name)
    )
    chosen = cpu_libraries(network, CostModel(SOC, SyntheticPredictors(without=without)))
    assert set(chosen.tolist()) <= {0, ANY}


@pytest.mark.parametrize("library", ["ncnn", "ort"])
def test_plans_of_the_cpu_begin_with_the_best_and_have_whole_libraries(
    network: Network, library: str
) -> None:
    def times(target: str) -> float:
        return 1.0 if ("cpu_ort" in target) == (library == "ort") else 2.0

    cost = CostModel(SOC, SyntheticPredictors(times=times, packing=Line(0.0, 0.001)))
    plans = cpu_plans(network, cost, strategy="test")
    assert plans[0].chains == one_processor(network, cost, "cpu", strategy="test").chains
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    names = [{sides["cpu"] for sides in plan.chains[0].variants.values()} for plan in plans]
    assert {"cpu_ort"} in names
    assert ({"cpu_ort"} == names[0]) == (library == "ort")
