"""The planner writes products as partial sums where that is predicted to be faster."""

from __future__ import annotations

import numpy as np
import pytest
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticPredictors

from codl.ir import Network, Op, Shape, parse
from codl.ir.network import Layer
from codl.ir.ops.base import Weights
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered, without
from codl.plan.price import price
from codl.plan.search import search
from codl.plan.waterfall import predicted_totals


@pytest.fixture(scope="module")
def network() -> Network:
    """Two feed-forward pairs of one token."""
    layers = []
    for at in range(2):
        up, down = (
            parse("matmul in=1x1x64 matrix=64x256 act=gelu"),
            parse("matmul in=1x1x256 matrix=256x64"),
        )
        add = parse("eltwise in=1x1x64x1,1x1x64x1")
        layers += [
            Layer(f"up{at}", up, (f"x{at}",), f"wide{at}", _weights(up)),
            Layer(f"down{at}", down, (f"wide{at}",), f"y{at}", _weights(down)),
            Layer(f"add{at}", add, (f"x{at}", f"y{at}"), f"x{at + 1}", {}),
        ]
    return Network("pairs", tuple(layers), {"x0": Shape(1, 1, 64, 1)}, {"x2": ("x2", (1, 1, 64))})


def _weights(op: Op) -> Weights:
    return op.weights_of(lambda shape: np.zeros(shape, np.float32))


def _cost(exchange_ms: float) -> CostModel:
    return CostModel(SOC, SyntheticPredictors(flops=2e4, exchange=Line(exchange_ms)))


def test_sums_save_exchanges(network: Network) -> None:
    cost = _cost(0.2)
    plain = search(network, without(cost, "partial-sums"), "codl")
    found = search(network, cost, "codl")
    assert found.sums.keys() == {"down0", "down1"}
    assert all(0.3 * 256 <= found.sums[f"down{at}"] <= 0.7 * 256 for at in range(2))
    assert not plain.sums
    assert found.predicted_ms is not None
    assert plain.predicted_ms is not None
    assert found.predicted_ms < plain.predicted_ms


def test_where_nothing_is_shared_there_are_none(network: Network) -> None:
    cost = _cost(100.0)
    assert not search(network, cost, "codl", may_be_alone=True).sums


def test_sums_that_nobody_was_timed_at_are_estimated(network: Network) -> None:
    found = search(network, _cost(0.2), "codl")
    assert set(found.estimated) <= {f"{name}.sum" for name in found.sums}


def test_it_is_explained(network: Network) -> None:
    """Its terms add up to what was predicted, and its bound is no more than that."""
    cost = _cost(0.2)
    plan = search(network, cost, "codl")
    written, applied = plan.applied(network)
    executable, cost = lower(network, plan, SOC, Tuning()), covered(cost, written)
    totals = predicted_totals(written, applied, executable, cost)
    assert totals[-1].ms == pytest.approx(plan.predicted_ms)
    assert totals[0].ms <= totals[-1].ms
    assert price(executable, cost).latency_ms == pytest.approx(plan.predicted_ms)
