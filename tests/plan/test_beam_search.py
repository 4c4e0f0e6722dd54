"""Dynamic programming against looking at every plan; latencies follow a law (simulated)."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.every_plan import every_chain, least_ms
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticPredictors

from codl.frontend.convert import convert, simplify
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network
from codl.plan.beam_search import fastest
from codl.plan.cost_model import CostModel
from codl.plan.search import Candidates, ChainSearch, greedy_chains, search, single_ops


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
@settings(max_examples=8, derandomize=True)
def test_it_finds_what_looking_at_every_plan_finds(name: str, law: SyntheticPredictors) -> None:
    """Over the same chains, at a third of all ratios."""
    net, cost = NETWORKS[name], CostModel(SOC, law)
    candidates = Candidates(net, cost)
    found = fastest(candidates.costs, candidates.starting, widest=10**6)
    assert found.exact
    every_ms = least_ms(candidates.costs, candidates.starting)
    assert found.latency_ms == pytest.approx(every_ms, rel=1e-12)


@given(name=st.sampled_from(sorted(NETWORKS)), law=LAWS)
@settings(max_examples=4, derandomize=True)
def test_chains_left_out_would_hardly_have_helped(name: str, law: SyntheticPredictors) -> None:
    net, cost = NETWORKS[name], CostModel(SOC, law)
    candidates = Candidates(net, cost)
    some = fastest(candidates.costs, candidates.starting)
    all_ = fastest(*every_chain(net, cost), widest=10**6)
    assert all_.exact
    assert all_.latency_ms * (1 - 1e-9) <= some.latency_ms <= 1.03 * all_.latency_ms


@given(name=st.sampled_from(sorted(NETWORKS)), law=LAWS)
@settings(max_examples=12, derandomize=True)
def test_the_plan_takes_what_the_search_says(name: str, law: SyntheticPredictors) -> None:
    """And never longer than one processor alone, or op by op, or by the paper's algorithm."""
    net, cost = NETWORKS[name], CostModel(SOC, law)
    candidates = Candidates(net, cost)
    found = fastest(candidates.costs, candidates.starting)
    plan = search(net, cost, "test")
    assert plan.predicted_ms is not None
    assert plan.predicted_ms <= found.latency_ms * (1 + 1e-9)
    alone = ChainSearch(net, cost, "missing")
    for chains in (single_ops(alone), greedy_chains(alone)):
        other = alone.plan("test", chains)
        assert plan.predicted_ms <= (other.predicted_ms or inf) * 1.01
