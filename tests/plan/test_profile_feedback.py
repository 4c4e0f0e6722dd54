"""Plans that ran correct predictions: by how much, of which ops, and which plan is then taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.plans import row
from support.simulated import SOC
from support.synthetic_predictors import SyntheticPredictors

from codl.ir import parse, to_text
from codl.ir.executable import GpuOp, NetLayer
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.lower.partition import partition_plan
from codl.plan.build_plan import chain_of, make_plan
from codl.plan.cost_model import CostModel
from codl.plan.profile_feedback import OpRatio, ProfileCorrections, ProfiledTimes
from codl.records.results import TimeSpan
from codl.strategies import codl_refined

CONV = "conv2d in=1x64x{h}x56 oc=64 kernel=3x3 pad=1"
TARGET = "conv2d_gpu_direct"


def factor(corrections: ProfileCorrections, text: str, target: str = TARGET) -> float:
    return float(corrections.factors(target, [parse(text)])[0])


def test_a_sample_speaks_for_its_like_and_for_nothing_else() -> None:
    slow = ProfileCorrections([OpRatio(TARGET, parse(CONV.format(h=40)), 2.0)])
    same, near = factor(slow, CONV.format(h=40)), factor(slow, CONV.format(h=28))
    assert 1.6 < same < 2.0
    assert 1.2 < near < same
    assert factor(slow, "conv2d in=1x8x4x4 oc=8 kernel=1x1") == pytest.approx(1.0, abs=1e-3)
    assert factor(slow, CONV.format(h=40), "conv2d_gpu_winograd") == 1.0
    assert factor(ProfileCorrections(), CONV.format(h=40)) == 1.0


def test_many_samples_outweigh_doubt_and_agree_on_their_mean() -> None:
    op = parse(CONV.format(h=40))
    found = ProfileCorrections([OpRatio(TARGET, op, ratio) for ratio in (1.5, 6.0) * 20])
    assert factor(found, to_text(op)) == pytest.approx(3.0, rel=0.02)


def test_corrected_costs_are_those_times_the_factors() -> None:
    op = parse(CONV.format(h=40))
    cost = CostModel(SOC, SyntheticPredictors(gpu=2.0))
    before = cost.prefetch([op], "gpu")[0]
    corrections = ProfileCorrections([OpRatio("conv2d_gpu_direct", op, 3.0)])
    after = cost.corrected(corrections.factors).prefetch([op], "gpu")[0]
    for name, choice in before.items():
        expected = factor(corrections, to_text(op), f"conv2d_{name}") * choice.latency_ms
        assert after[name].latency_ms == pytest.approx(expected)
    assert after["gpu_direct"].latency_ms > 2 * before["gpu_direct"].latency_ms


@pytest.mark.parametrize("slower", [{"cpu": 3.0, "gpu": 1.0}, {"cpu": 1.0, "gpu": 0.5}])
def test_ratios_are_those_of_measured_to_predicted(slower: dict[str, float]) -> None:
    """Spans made up from the law: every op of a processor takes so many times as long."""
    network, cost = row(3), CostModel(SOC, SyntheticPredictors(gpu=2.0))
    layers = network.layers
    cuts = [chain_of(layers[:2], "H", 0.5), chain_of(layers[2:], "OC", 0.5)]
    plan = make_plan(network, cost, cuts, strategy="test", sharing="missing")
    executable = lower(network, plan, SOC, Tuning())

    def spans() -> Iterator[TimeSpan]:
        for net in executable.nets:
            yield TimeSpan("cpu", "net", net.label, 0.0, slower["cpu"] * law_ms(net.layers, 1.0))
        for step in executable.steps:
            if isinstance(step, GpuOp):
                ms = slower["gpu"] * sum(1e-8 * parse(op).flops / 2.0 + 1e-3 for op in step.ops)
                yield TimeSpan("gpu", "kernel", step.label, 0.0, ms)

    stand_in: Any = SimpleNamespace(executable=executable, profile=lambda runs: [*spans()])
    samples = codl_refined.observe(stand_in, cost, runs=3)
    segments = partition_plan(network, plan, SOC).segments
    assert len(samples) == sum(len(s.cpu.parts) + len(s.gpu.parts) for s in segments)
    for sample in samples:
        side = "gpu" if "_gpu_" in sample.target else "cpu"
        assert sample.ratio == pytest.approx(slower[side], rel=0.01)


def law_ms(layers: Sequence[NetLayer], speed: float) -> float:
    return sum(1e-8 * parse(layer.op).flops / speed + 1e-3 for layer in layers)


def test_parts_of_the_runs_that_count_add_up() -> None:
    """Each run but the first is disturbed, in another part each time."""
    parts = [(1.0, 1.0), (4.0, 1.0), (1.0, 4.5), (1.0, 5.0), (5.5, 1.0), (90.0, 1.0), (1.0, 99.0)]
    runs = [ProfiledTimes({0: cpu}, {1: gpu}, {}, [cpu, gpu]) for cpu, gpu in parts]
    found = ProfiledTimes.typical(runs)
    near = parts[:3]  # around the second: a fifth of the way from the shortest to the longest
    assert found.nets_ms == {0: pytest.approx(sum(cpu for cpu, _ in near) / 3)}
    assert found.kernels_ms == {1: pytest.approx(sum(gpu for _, gpu in near) / 3)}
    assert sum(found.stages_ms) == pytest.approx(found.nets_ms[0] + found.kernels_ms[1])
    assert ProfiledTimes.typical(runs[:1]) == runs[0]
