"""Totals of waterfalls: they lead from the bound to the price, and each term has one cause."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import row
from support.random_networks import random_networks, random_plans
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticPredictors, synthetic_predictors

from codl.ir import Network
from codl.ir.plan import Plan
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan.build_plan import chain_of, make_plan
from codl.plan.cost_model import CostModel
from codl.plan.price import price
from codl.plan.search import search
from codl.plan.waterfall import lossless, predicted_totals, side_by_side_ms
from codl.predict.in_network_cost import InNetworkCosts
from codl.records.waterfall import BOUND, PREDICTED_TERMS, Total

#: Both processors alike, nothing but computing and exchanges, and a copy takes 0.01 ms.
PLAIN = SyntheticPredictors(least_ms=0.0, flops=1e6, exchange=Line(0.01))


def totals_of(network: Network, plan: Plan, predictors: SyntheticPredictors) -> list[Total]:
    executable = lower(network, plan, SOC, Tuning())
    return predicted_totals(network, plan, executable, CostModel(SOC, predictors))


def terms_of(totals: list[Total]) -> dict[str, float]:
    """Milliseconds by term, and of the bound."""
    found = {totals[0].name: totals[0].ms}
    for before, after in pairwise(totals):
        found[after.name] = after.ms - before.ms
    return found


def planned(
    network: Network, cuts: list[tuple[int, Any, float]], predictors: SyntheticPredictors
) -> Plan:
    """A plan of chains of so many layers, at a dimension and a ratio."""
    layers, chains = list(network.layers), []
    for length, dim, ratio in cuts:
        chains.append(chain_of(layers[:length], dim, ratio))
        layers = layers[length:]
    cost = CostModel(SOC, predictors)
    return make_plan(network, cost, chains, strategy="test", sharing="missing")


def near_zero(terms: dict[str, float], *names: str) -> bool:
    return all(abs(terms[name]) < 1e-12 for name in names)


@given(network=random_networks(), predictors=synthetic_predictors(), data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_totals_lead_from_the_bound_to_the_price(
    network: Network, predictors: SyntheticPredictors, data: st.DataObject
) -> None:
    drawn = data.draw(random_plans(network, SOC))
    totals = totals_of(network, drawn, predictors)
    assert [total.name for total in totals] == [BOUND, *PREDICTED_TERMS]
    assert all(len(total.chains_ms) == len(drawn.chains) + 1 for total in totals)
    cost = CostModel(SOC, predictors)
    priced = price(lower(network, drawn, SOC, Tuning()), cost).latency_ms
    assert totals[-1].ms == pytest.approx(priced, rel=1e-9)
    terms = terms_of(totals)
    assert sum(terms.values()) == pytest.approx(priced, rel=1e-9)
    # What is only a choice never gains, and no chain ends later for beginning sooner.
    assert min(terms["steps"], terms["choices"], terms["sharing"], terms["launches"]) > -1e-9
    assert terms["overlap"] < 1e-9
    assert totals[0].ms <= side_by_side_ms(network, cost) + 1e-9


@given(network=random_networks(most_layers=6), predictors=synthetic_predictors())
@settings(max_examples=15, deadline=None, derandomize=True)
def test_the_totals_of_a_found_plan_end_at_its_prediction(
    network: Network, predictors: SyntheticPredictors
) -> None:
    plan = search(network, CostModel(SOC, predictors), "test")
    assert totals_of(network, plan, predictors)[-1].ms == pytest.approx(plan.predicted_ms, rel=1e-9)


def test_two_convolutions_in_a_chain_by_hand() -> None:
    """24 rows in halves; of the first convolution each side computes one row more."""
    network = row(2)
    plan = planned(network, [(2, "H", 0.5)], PLAIN)
    totals = totals_of(network, plan, PLAIN)
    op_ms = network.layers[0].op.flops / PLAIN.flops
    by_hand = {
        BOUND: op_ms,
        "halo": op_ms / 24,
        "sharing": 0.02,  # the input for the GPU, and its rows of the output
    }
    wanted = {**dict.fromkeys(PREDICTED_TERMS, 0.0), **by_hand}
    assert terms_of(totals) == pytest.approx(wanted, abs=1e-12)
    assert totals[-1].chains_ms == pytest.approx((25 / 24 * op_ms + 0.01, 0.01))


def test_what_both_compute_whole_is_halo() -> None:
    """The second convolution reads all channels of the first: each side computes all of that."""
    network = row(2)
    plan = planned(network, [(2, "OC", 0.5)], PLAIN)
    terms = terms_of(totals_of(network, plan, PLAIN))
    op_ms = network.layers[0].op.flops / PLAIN.flops
    assert terms[BOUND] == pytest.approx(op_ms)
    assert terms["halo"] == pytest.approx(op_ms / 2)
    assert near_zero(terms, "cuts", "steps", "chains", "choices")


def test_a_bad_ratio_is_a_choice() -> None:
    """Of 24 rows 4 are the GPU's share, and 12 are planned."""
    network, slow_gpu = row(1), replace(PLAIN, gpu=0.2, asked=[])
    plan = planned(network, [(1, "H", 0.5)], slow_gpu)
    terms = terms_of(totals_of(network, plan, slow_gpu))
    op_ms = network.layers[0].op.flops / PLAIN.flops
    assert terms[BOUND] == pytest.approx(op_ms / 1.2)
    assert near_zero(terms, "cuts", "steps")
    assert terms["choices"] == pytest.approx(12 / 24 * op_ms / 0.2 - 20 / 24 * op_ms)


def test_what_is_less_than_a_row_is_lost_to_cuts() -> None:
    """The CPU's share would be 0.8 rows of 24: it gets none."""
    network, fast_gpu = row(1), replace(PLAIN, gpu=29.0, asked=[])
    plan = planned(network, [(1, "H", 1.0)], fast_gpu)
    terms = terms_of(totals_of(network, plan, fast_gpu))
    op_ms = network.layers[0].op.flops / PLAIN.flops
    assert terms["cuts"] == pytest.approx(op_ms / 29 - op_ms / 30)
    assert near_zero(terms, "steps", "chains", "choices", "halo")


def test_finer_steps_than_the_search_tries() -> None:
    """Of 240 rows 0.475 would be best, and twentieths are tried."""
    network = row(1, size=240)
    ratio = 0.475 / 0.525
    predictors = replace(PLAIN, gpu=ratio, asked=[])
    plan = planned(network, [(1, "H", 0.5)], predictors)
    terms = terms_of(totals_of(network, plan, predictors))
    op_ms = network.layers[0].op.flops / PLAIN.flops
    assert terms[BOUND] == pytest.approx(0.525 * op_ms)
    assert terms["cuts"] == pytest.approx(0, abs=1e-9)
    assert terms["steps"] == pytest.approx(min(0.5 / ratio, 0.55) * op_ms - 0.525 * op_ms)


ALL = SyntheticPredictors.with_all_terms()


def without(cost: str) -> InNetworkCosts:
    """The costs inside a network but for one."""
    return {side: replace(own, **{cost: 0.0}) for side, own in ALL.inside.items()}


def test_the_cpu_alone_shares_waits_and_repeats_nothing() -> None:
    network = row(3)
    terms = terms_of(totals_of(network, planned(network, [(3, "H", 0.0)], ALL), ALL))
    assert near_zero(terms, "chains", "halo", "overlap", "sharing", "launches", "contention")
    assert terms["choices"] > 0
    assert terms["fusion"] < 0
    assert terms["layouts"] > 0


def test_the_gpu_alone_contends_with_nobody() -> None:
    network = row(3)
    terms = terms_of(totals_of(network, planned(network, [(3, "H", 1.0)], ALL), ALL))
    assert near_zero(terms, "chains", "halo", "overlap", "contention", "layouts")
    assert terms["sharing"] > 0
    assert near_zero(terms, "launches")  # the CPU enqueues while the GPU computes


def test_single_ops_are_bound_to_none_and_repeat_nothing() -> None:
    network = row(3)
    cuts = [(1, "H", 0.5), (1, "OC", 0.5), (1, "H", 0.3)]
    terms = terms_of(totals_of(network, planned(network, cuts, ALL), ALL))
    assert near_zero(terms, "chains", "halo")
    assert terms["contention"] > 0


@pytest.mark.parametrize(
    ("term", "changes"),
    [
        ("contention", {"inside": without("beside_ms")}),
        ("layouts", {"packing": None, "inside": without("packed_ms")}),
        ("sharing", {"parts": {}, "exchange": Line(0.0), "signals": {}}),
        ("launches", {"dispatch": {}, "signals": {}}),
        ("fusion", {"inside": without("call_ms")}),
    ],
)
def test_a_term_whose_cause_is_gone_is_nothing(term: str, changes: dict[str, Any]) -> None:
    network, cuts = row(4), [(2, "H", 0.5), (2, "H", 0.4)]
    plan = planned(network, cuts, ALL)
    assert not near_zero(terms_of(totals_of(network, plan, ALL)), term)
    less = replace(ALL, asked=[], **changes)
    assert near_zero(terms_of(totals_of(network, plan, less)), term)


def test_what_a_processor_cannot_do_is_the_others() -> None:
    assert lossless(3.0, 6.0) == pytest.approx(2.0)
    assert lossless(3.0, float("inf")) == 3.0
    assert lossless(0.0, 3.0) == 0.0
