"""Dynamic programming against looking at every plan; latencies follow a law (simulated)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticPredictors

from codl.errors import CodlError
from codl.frontend.convert import convert, simplify
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan import chain_costs
from codl.plan.beam_search import GOALS, Objective, every_plan, fastest
from codl.plan.candidates import Candidates
from codl.plan.cost_model import CostModel
from codl.plan.price import price
from codl.plan.search import search
from codl.records.soc import PowerW


def network(build: Callable[[ModelBuilder, str], str]) -> Network:
    b = ModelBuilder("small")
    b.output(build(b, b.input("x", (1, 16, 20, 20))))
    return convert(simplify(import_onnx(b.build(), "small")))


def line(b: ModelBuilder, x: str) -> str:
    x = b.relu(b.conv(x, 32, 3, pad=1))
    return b.conv(b.max_pool(x, 2, 2), 16, 1, pad=0)


def residual(b: ModelBuilder, x: str) -> str:
    return b.add(b.conv(b.relu(b.conv(x, 32, 3, pad=1)), 16, 3, pad=1), x)


def branches(b: ModelBuilder, x: str) -> str:
    return b.concat([b.conv(x, 16, 3, pad=1), b.conv(x, 16, 5, pad=2)])


NETWORKS = {build.__name__: network(build) for build in (line, residual, branches)}
LAWS = st.builds(
    lambda gpu, fixed, per_mb: SyntheticPredictors(gpu=gpu, exchange=Line(fixed, per_mb)),
    st.sampled_from([0.3, 1.0, 3.0]),
    st.sampled_from([1e-4, 0.01, 0.1, 3.0]),
    st.sampled_from([0.0, 0.1, 2.0]),
)


@given(name=st.sampled_from(sorted(NETWORKS)), law=LAWS)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_it_finds_what_looking_at_every_plan_finds(name: str, law: SyntheticPredictors) -> None:
    """Over the same chains, at a third of all ratios."""
    net, cost = NETWORKS[name], CostModel(SOC, law)
    candidates = Candidates(net, cost)
    found, every = fastest(candidates, widest=10**6), every_plan(candidates)
    assert found.exact
    assert found.latency_ms == pytest.approx(every.latency_ms, rel=1e-12)


@given(name=st.sampled_from(sorted(NETWORKS)), law=LAWS)
@settings(max_examples=4, deadline=None, derandomize=True)
def test_chains_left_out_would_hardly_have_helped(name: str, law: SyntheticPredictors) -> None:
    net, cost = NETWORKS[name], CostModel(SOC, law)
    some = fastest(Candidates(net, cost))
    all_ = fastest(Candidates(net, cost, complete=True), widest=10**6)
    assert all_.exact
    assert all_.latency_ms <= some.latency_ms <= 1.03 * all_.latency_ms


@given(name=st.sampled_from(sorted(NETWORKS)), law=LAWS)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_the_plan_takes_what_the_search_says(name: str, law: SyntheticPredictors) -> None:
    """And never longer than one processor alone, or op by op, or by the paper's algorithm."""
    net, cost = NETWORKS[name], CostModel(SOC, law)
    found = fastest(Candidates(net, cost))
    plan = search(net, cost, "test")
    assert plan.predicted_ms is not None
    assert plan.predicted_ms <= found.latency_ms * (1 + 1e-9)
    walked = price(lower(net, plan, SOC, Tuning()), cost)
    assert plan.predicted_ms == pytest.approx(walked.latency_ms, rel=1e-9)
    for method in ("serial", "greedy"):
        other = search(net, cost, "test", method=method)
        assert plan.predicted_ms <= (other.predicted_ms or inf) * 1.01


@pytest.mark.parametrize("most", [1, 7])
def test_walks_that_are_evaluated_in_batches_cost_the_same(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = CostModel(SOC, SyntheticPredictors.with_all_terms())
    plans = [search(net, cost, "test") for net in NETWORKS.values()]
    monkeypatch.setattr(chain_costs, "MOST_WALKS", most)
    for net, plan in zip(NETWORKS.values(), plans, strict=True):
        found = search(net, cost, "test")
        assert found.predicted_ms == pytest.approx(plan.predicted_ms, rel=1e-12)


def test_dear_sharing_leaves_everything_on_one_processor() -> None:
    predictors = SyntheticPredictors(gpu=0.5, exchange=Line(100.0))
    plan = search(NETWORKS["residual"], CostModel(SOC, predictors), "test")
    assert {chain.gpu_ratio for chain in plan.chains} == {0.0}
    assert plan.method == "dp, exact"


def test_an_exhaustive_search_of_many_layers_is_refused() -> None:
    def long(b: ModelBuilder, x: str) -> str:
        for _ in range(6):
            x = b.relu(b.conv(x, 16, 3, pad=1))
        return x

    with pytest.raises(CodlError, match="at most 5 ops; 'small' has 6"):
        search(network(long), CostModel(SOC, SyntheticPredictors()), "test", method="exhaustive")


#: Watts of a simulated SoC whose GPU is slow and frugal.
POWER = PowerW(idle=1.0, cpu=9.0, gpu=3.0, both=11.0, sensors=("simulated",))
FRUGAL = replace(SOC, power_w=POWER)


@given(name=st.sampled_from(sorted(NETWORKS)), law=LAWS, goal=st.sampled_from(GOALS))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_an_objective_finds_what_looking_at_every_plan_finds(
    name: str, law: SyntheticPredictors, goal: str
) -> None:
    net, cost = NETWORKS[name], CostModel(FRUGAL, law)
    objective, candidates = Objective.of(goal, FRUGAL), Candidates(net, cost)
    found = fastest(candidates, objective=objective, widest=10**6)
    every = every_plan(candidates, objective=objective)
    assert found.exact
    assert found.value == pytest.approx(every.value, rel=1e-12)


def test_energy_is_what_each_processor_takes_while_it_works() -> None:
    objective = Objective.of("energy", FRUGAL)
    spent = objective.spent((2.0, 5.0), weights=0.0)
    # 2 ms of both at 11 W, 3 ms of the GPU at 3 W, and 4 more of nobody at 1 W.
    assert objective.energy_mj(9.0, spent) == pytest.approx(2 * 11 + 3 * 3 + 4 * 1)
    assert objective.value(9.0, spent) == pytest.approx(35.0)
    assert Objective.of("energy-delay", FRUGAL).value(9.0, spent) == pytest.approx(9 * 35.0)


def test_a_frugal_gpu_gets_all_when_energy_counts() -> None:
    cost = CostModel(FRUGAL, SyntheticPredictors(gpu=0.7, exchange=Line(1e-4, 0.1)))
    plans = {
        goal: search(NETWORKS["line"], cost, "test", objective=Objective.of(goal, FRUGAL))
        for goal in ("latency", "energy")
    }
    assert any(0 < chain.gpu_ratio < 1 for chain in plans["latency"].chains)
    assert [chain.gpu_ratio for chain in plans["energy"].chains] == [1.0]
    assert plans["energy"].predicted_mj is not None


def test_without_a_sensor_there_is_no_energy_to_plan_for() -> None:
    with pytest.raises(
        CodlError, match=r"objective 'energy' needs `power_w` in the SoC file of 'simulated'"
    ):
        Objective.of("energy", SOC)
    with pytest.raises(CodlError, match=r"Unknown objective 'speed'"):
        Objective.of("speed", SOC)


def test_a_memory_limit_keeps_weights_on_one_side() -> None:
    """Rows split leave all weights on both sides; channels split, or one processor, does not."""
    net = NETWORKS["residual"]
    cost = CostModel(SOC, SyntheticPredictors(exchange=Line(1e-5, 0.01)))
    own = sum(w.nbytes for layer in net.layers for w in layer.weights.values())
    free = search(net, cost, "test")
    tight = search(net, cost, "test", objective=Objective(memory_limit=own))
    assert any(chain.dim == "H" and 0 < chain.gpu_ratio < 1 for chain in free.chains)
    weighty = {layer.name for layer in net.layers if layer.weights}
    for chain in tight.chains:
        assert chain.dim == "OC" or chain.gpu_ratio in (0, 1) or not weighty.intersection(chain.ops)
    assert (tight.predicted_ms or 0) > (free.predicted_ms or 0)
    with pytest.raises(CodlError, match=rf"within 10 bytes \(the model's own are {own}\)"):
        search(net, cost, "test", objective=Objective(memory_limit=10))
