"""Ops left whole: what splitting each would save, and what stands against it."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import row
from support.random_networks import random_networks, random_plans
from support.simulated import SOC
from support.some import some
from support.synthetic_predictors import Line, SyntheticPredictors, synthetic_predictors

from codl.frontend.convert import convert, simplify
from codl.frontend.graph.onnx_import import import_onnx
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network, Op
from codl.ir.ops.base import split
from codl.ir.plan import Chain, Plan
from codl.ir.types import PROCESSORS
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan.build_plan import chain_of, make_plan
from codl.plan.cost_model import CostModel
from codl.plan.price import price
from codl.plan.waterfall import left_whole
from codl.records.waterfall import WholeOp

#: Both processors alike, nothing but computing and exchanges, and a copy takes 0.01 ms.
PLAIN = SyntheticPredictors(least_ms=0.0, flops=1e6, exchange=Line(0.01))
OP_MS = row(1).layers[0].op.flops / PLAIN.flops


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


def test_nothing_is_shared_where_exchanges_are_free() -> None:
    free = replace(PLAIN, exchange=Line(0.0), asked=[])
    for op in some(found(row(3), [(3, "H", 1.0)], free)):
        assert op.sharing_ms == 0
        assert op.net_ms == pytest.approx(-op.saves_ms)


@pytest.mark.parametrize(("copy_ms", "is_faster"), [(0.01, True), (0.1, True), (20.0, False)])
def test_a_split_op_among_whole_ones_moves_one_tensor_more(copy_ms: float, is_faster: bool) -> None:
    """The first needs the CPU's rows on the GPU behind it, the last the GPU's rows on the CPU."""
    predictors = replace(PLAIN, exchange=Line(copy_ms), asked=[])
    for op in some(found(row(2), [(2, "H", 1.0)], predictors)):
        assert op.sharing_ms == pytest.approx(copy_ms)
        assert op.net_ms == pytest.approx(copy_ms - OP_MS / 2)
        assert (op.net_ms < 0) is is_faster


def test_parts_without_the_variant_of_the_whole() -> None:
    """One row of 32 channels: the CPU has Winograd kernels for more than 16 of them only."""
    b = ModelBuilder("thin")
    b.output(b.relu(b.conv(b.input("x", (1, 16, 1, 24)), 32, 3, pad=1)))
    network = convert(simplify(import_onnx(b.build(), "thin")))
    predictors = replace(
        PLAIN, times=lambda name: 0.9 if name == "conv2d_cpu_winograd" else 1.0, asked=[]
    )
    ms = network.layers[0].op.flops / PLAIN.flops
    (op,) = found(network, [(1, "H", 0.0)], predictors)
    assert (op.dim, op.gpu_ratio) == ("OC", 0.5)
    assert op.whole_ms == pytest.approx(0.9 * ms)
    assert op.best_ms == pytest.approx(0.5 * ms)
    assert op.variants_ms == pytest.approx(0.5 * (1.0 - 0.9) * ms)
    assert op.cuts_ms == pytest.approx(0.5 * ms - ms / (1 + 1 / 0.9) - op.variants_ms)


def test_ops_on_both_processors_are_not_left_whole() -> None:
    network = row(3)
    ops = found(network, [(1, "H", 0.5), (1, "H", 0.0), (1, "OC", 0.5)], PLAIN)
    assert [op.op for op in ops] == [network.layers[1].name]
    assert found(network, [(3, "H", 0.5)], PLAIN) == []


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
