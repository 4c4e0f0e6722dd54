"""The placement table: where every op runs, why, and its share of what was measured."""

from __future__ import annotations

import re
from dataclasses import asdict

import numpy as np
import pytest
from onnx import helper
from support.onnx_models import floats, model
from support.references import imported
from support.simulated import SOC
from support.some import some
from support.synthetic_predictors import of_few_kinds

from codl.frontend.convert import load_structure
from codl.ir import Network
from codl.ir.plan import Chain, Plan
from codl.ir.records.results import TimeSpan
from codl.ir.types import PROCESSORS
from codl.plan.build_plan import preferring
from codl.plan.cost_model import CostModel
from codl.plan.coverage import covered
from codl.plan.op_placement import measured, predicted
from codl.runtime.loaded import totals_ms


@pytest.fixture(scope="module")
def network() -> Network:
    """A convolution, a cumulative sum, a softmax and a sum of both."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("CumSum", ["c", "axis"], ["s"], name="cumsum"),
        helper.make_node("Softmax", ["s"], ["t"], name="softmax", axis=1),
        helper.make_node("Add", ["c", "t"], ["y"], name="add"),
    ]
    constants = {"w": floats(8, 3, 3, 3), "axis": np.int64(1)}
    return imported(model(nodes, {"x": [1, 3, 16, 16]}, ["y"], constants))


@pytest.fixture(scope="module")
def plan(network: Network) -> Plan:
    both = {"cpu": "cpu_direct", "gpu": "gpu_direct"}
    ort = {"cpu": "cpu_ort"}
    chains = (
        Chain(("conv",), "H", 0.5, {"conv": both}),
        Chain(("cumsum", "softmax"), "H", 0.0, {"cumsum": ort, "softmax": ort}),
        Chain(("add",), "H", 1.0, {"add": {"gpu": "gpu_direct"}}),
    )
    return Plan(network.name, network.digest, SOC.name, "test", "law", "missing", None, chains)


def test_every_part_has_a_row_that_says_why(network: Network, plan: Plan) -> None:
    cost = covered(CostModel(SOC, of_few_kinds()), network)
    rows = predicted(network, plan, SOC, cost)
    assert [(one.op, one.processor, one.variant) for one in rows] == [
        ("conv", "cpu", "cpu_direct"),
        ("conv", "gpu", "gpu_direct"),
        ("cumsum", "cpu", "cpu_ort"),
        ("softmax", "cpu", "cpu_ort"),
        ("add", "gpu", "gpu_direct"),
    ]
    reasons = [one.reason for one in rows]
    assert all(
        one.startswith("split on H, 50% on the GPU, as test plans it") for one in reasons[:2]
    )
    assert re.search(r"\(alone \d+\.\d{3} ms here, \d+\.\d{3} ms on the gpu\)$", reasons[0])
    assert reasons[2].startswith("codl has no operator for CumSum")
    assert reasons[3].startswith("whole, as test plans it")
    assert [one.reason for one in predicted(network, plan, SOC, None)][
        4
    ] == "whole, as test plans it"
    assert all(one.latency_ms and one.latency_ms > 0 for one in rows)
    assert [one.latency_ms for one in predicted(network, plan, SOC, None)] == [None] * 5


@pytest.mark.parametrize("model", ["fast_style_transfer", "mobilenet_v2", "deit_tiny", "matmul"])
def test_every_op_of_a_model_has_all_of_a_row(model: str) -> None:
    """Nothing is empty, and nothing runs anywhere without a word why."""
    network = load_structure(model)
    for processor in some(PROCESSORS):
        rows = predicted(network, preferring(network, SOC, processor), SOC, None)
        assert {one.op for one in rows} == {layer.name for layer in network.layers}
        for own in rows:
            row = {name: value for name, value in asdict(own).items() if name != "latency_ms"}
            assert all(value not in ("", None) for value in row.values()), row
            if own.processor != processor:
                assert re.search("no kernel variant|no operator", own.reason), row


def test_measured_latencies_are_shared_out_as_predicted(network: Network, plan: Plan) -> None:
    cost = covered(CostModel(SOC, of_few_kinds()), network)
    before = predicted(network, plan, SOC, cost)
    spans = [
        TimeSpan("cpu", "net", "conv", 0.0, 2.0),
        TimeSpan("gpu", "kernel", "conv", 0.5, 1.0),
        TimeSpan("gpu", "kernel", "conv", 1.0, 1.75),
        TimeSpan("cpu", "net", "cumsum ... softmax", 2.0, 5.0),
        TimeSpan("cpu", "copy", "add", 2.0, 5.0),
        TimeSpan("gpu", "kernel", "add", 6.0, 6.5),
    ]
    nets = {"conv": ("conv",), "cumsum ... softmax": ("cumsum", "softmax")}
    rows = measured(before, totals_ms(spans), {"cpu": nets, "gpu": {}})
    assert [one.together for one in rows] == [1, 1, 2, 2, 1]
    assert [rows[i].latency_ms for i in (0, 1, 4)] == pytest.approx([2.0, 1.25, 0.5])
    shares = [one.latency_ms or 0.0 for one in rows[2:4]]
    assert sum(shares) == pytest.approx(3.0)
    expected = [one.latency_ms or 0.0 for one in before[2:4]]
    assert shares[0] / shares[1] == pytest.approx(expected[0] / expected[1])
