"""Waterfalls: totals lead from the bound to the price; what splitting a whole op would save."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import planned, row
from support.random_networks import random_networks, random_plans
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticPredictors, synthetic_predictors

from codl.ir import Network, Op
from codl.ir.ops.base import split
from codl.ir.plan import Chain, Plan
from codl.ir.records.waterfall import BOUND, PREDICTED_TERMS, Total, WholeOp
from codl.ir.types import PROCESSORS
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.plan.build_plan import chain_of
from codl.plan.cost_model import CostModel
from codl.plan.predicted_plan import make_plan
from codl.plan.price import price
from codl.plan.waterfall import left_whole, predicted_totals, side_by_side_ms
from codl.predict.in_network_cost import InNetworkCosts

#: Both processors alike, nothing but computing and exchanges, and a copy takes 0.01 ms.
PLAIN = SyntheticPredictors(least_ms=0.0, flops=1e6, exchange=Line(0.01))
OP_MS = row(1).layers[0].op.flops / PLAIN.flops


def totals_of(network: Network, plan: Plan, predictors: SyntheticPredictors) -> list[Total]:
    executable = lower(network, plan, SOC, Tuning())
    return predicted_totals(network, plan, executable, CostModel(SOC, predictors))


def terms_of(totals: list[Total]) -> dict[str, float]:
    """Milliseconds by term, and of the bound."""
    found = {totals[0].name: totals[0].ms}
    for before, after in pairwise(totals):
        found[after.name] = after.ms - before.ms
    return found


def near_zero(terms: dict[str, float], *names: str) -> bool:
    return all(abs(terms[name]) < 1e-12 for name in names)


@given(network=random_networks(), predictors=synthetic_predictors(), data=st.data())
@settings(max_examples=40, derandomize=True)
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
    assert min(terms["sharing"], terms["launches"]) > -1e-9
    assert terms["overlap"] < 1e-9
    assert totals[0].ms <= side_by_side_ms(network, cost) + 1e-9


def test_two_convolutions_in_a_chain_by_hand() -> None:
    """24 rows in halves; of the first convolution each side computes one row more."""
    network = row(2)
    plan = planned(network, [(2, "H", 0.5)], PLAIN)
    totals = totals_of(network, plan, PLAIN)
    op_ms = network.layers[0].op.flops / PLAIN.flops
    by_hand = {
        BOUND: op_ms,
        "chains": op_ms / 24,
        "sharing": 0.02,  # the input for the GPU, and its rows of the output
    }
    wanted = {**dict.fromkeys(PREDICTED_TERMS, 0.0), **by_hand}
    assert terms_of(totals) == pytest.approx(wanted, abs=1e-12)
    assert totals[-1].chains_ms == pytest.approx((25 / 24 * op_ms + 0.01, 0.01))


ALL = SyntheticPredictors.with_all_terms()


def without(cost: str) -> InNetworkCosts:
    """The costs inside a network but for one."""
    return {side: replace(own, **{cost: 0.0}) for side, own in ALL.inside.items()}


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


# Ops left whole.


def found(
    network: Network, cuts: list[tuple[int, Any, float]], predictors: SyntheticPredictors
) -> list[WholeOp]:
    plan = planned(network, cuts, predictors)
    return left_whole(network, plan, CostModel(SOC, predictors))


def priced(network: Network, plan: Plan, predictors: SyntheticPredictors) -> float:
    """By the commands of the executable, and not by the search's clocks."""
    return price(lower(network, plan, SOC, Tuning()), CostModel(SOC, predictors)).latency_ms


def whole_layers(plan: Plan) -> list[str]:
    return [name for chain in plan.chains if chain.gpu_ratio in (0, 1) for name in chain.ops]


def test_one_op_in_halves_by_hand() -> None:
    """On the GPU alone as many tensors move as in halves; on the CPU alone none does."""
    for ratio, side, moved_ms in ((1.0, "gpu", 0.0), (0.0, "cpu", 0.02)):
        (op,) = found(row(1), [(1, "H", ratio)], PLAIN)
        assert (op.processor, op.dim, op.gpu_ratio) == (side, "H", 0.5)
        assert op.whole_ms == pytest.approx(OP_MS)
        assert op.best_ms == pytest.approx(OP_MS / 2)
        assert op.saves_ms == pytest.approx(OP_MS / 2)
        assert op.sharing_ms == pytest.approx(moved_ms)
        assert op.net_ms == pytest.approx(moved_ms - OP_MS / 2)
        assert op.cuts_ms == pytest.approx(0, abs=1e-12)
        assert op.variants_ms == 0


def slower_ms(op: Op, dim: Any, ratio: float, cost: CostModel) -> float:
    """The slower part; infinite where a part is of nothing, or a processor cannot do it."""
    shares = split(op, dim, ratio, align=SOC.gpu.vector_width)
    if any(share is None or share.is_empty for share in shares):
        return inf
    parts = [op.restrict(share) for share in shares if share is not None]
    return max(cost.fastest_ms([p], side)[0] for p, side in zip(parts, PROCESSORS, strict=True))


@given(network=random_networks(most_layers=6), predictors=synthetic_predictors(), data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_every_whole_op_once_with_what_its_plan_changes_by(
    network: Network, predictors: SyntheticPredictors, data: st.DataObject
) -> None:
    drawn, cost = data.draw(random_plans(network, SOC)), CostModel(SOC, predictors)
    rows = left_whole(network, drawn, cost)
    assert sorted(row.op for row in rows) == sorted(whole_layers(drawn))
    assert [row.saves_ms for row in rows] == sorted((row.saves_ms for row in rows), reverse=True)
    layers = {layer.name: layer for layer in network.layers}
    how: Any = {"strategy": "test", "sharing": drawn.sharing}
    now_ms = priced(network, make_plan(network, cost, drawn.chains, **how), predictors)
    for row_ in rows:
        op = layers[row_.op].op
        assert row_.saves_ms == pytest.approx(row_.whole_ms - row_.best_ms)
        if row_.dim is None or row_.gpu_ratio is None:
            assert not any(slower_ms(op, dim, 0.5, cost) < inf for dim in op.dims)
            continue
        alone = [cost.fastest_ms([op], side)[0] for side in PROCESSORS]
        assert row_.best_ms == pytest.approx(slower_ms(op, row_.dim, row_.gpu_ratio, cost))
        tried = [slower_ms(op, dim, step / 20, cost) for dim in op.dims for step in range(1, 20)]
        assert row_.best_ms <= min(tried) + 1e-12
        bound_ms = 1 / sum(1 / ms for ms in alone)
        assert row_.best_ms == pytest.approx(bound_ms + row_.cuts_ms + row_.variants_ms)
        chains: list[Chain] = []
        for chain in drawn.chains:
            before, found_, behind = _around(chain.ops, row_.op)
            chains += [replace(chain, ops=before)] if before else []
            if found_:
                chains.append(chain_of([layers[row_.op]], row_.dim, row_.gpu_ratio))
            chains += [replace(chain, ops=behind)] if behind else []
        split_ms = priced(network, make_plan(network, cost, chains, **how), predictors)
        assert row_.net_ms == pytest.approx(split_ms - now_ms, abs=1e-9)


def _around(ops: tuple[str, ...], name: str) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    if name not in ops:
        return ops, False, ()
    at = ops.index(name)
    return ops[:at], True, ops[at + 1 :]
