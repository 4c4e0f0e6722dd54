"""Plans that ran correct predictions: by how much, of which ops, and which plan is then taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.simulated import SOC
from support.synthetic_predictors import SyntheticPredictors
from test_engine import image, row

from codl.errors import UnsupportedError
from codl.ir import Network, parse, to_text
from codl.ir.executable import GpuOp, NetLayer
from codl.ir.plan import Plan
from codl.ir.soc import Soc
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.lower.program import build_program
from codl.measure.interleave import Effort
from codl.measure.protocol import Latency
from codl.plan.build_plan import chain_of, make_plan
from codl.plan.cost_model import CostModel
from codl.plan.objective import Objective
from codl.plan.profile_feedback import OpRatio, ProfileCorrections
from codl.plan.single_processor import default_plan
from codl.runtime.engine import Engine
from codl.runtime.profiler import Span
from codl.strategies import codl_refined, find
from codl.strategies.base import Context

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
    after = cost.corrected(corrections).prefetch([op], "gpu")[0]
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

    def spans() -> Iterator[Span]:
        for net in executable.nets:
            yield Span("cpu", "net", net.label, 0.0, slower["cpu"] * law_ms(net.layers, 1.0))
        for step in executable.steps:
            if isinstance(step, GpuOp):
                ms = slower["gpu"] * sum(1e-8 * parse(op).flops / 2.0 + 1e-3 for op in step.ops)
                yield Span("gpu", "kernel", step.label, 0.0, ms)

    stand_in: Any = SimpleNamespace(executable=executable, profile=lambda runs: [*spans()])
    samples = codl_refined.observe(stand_in, cost, runs=3)
    segments = build_program(network, plan, SOC).segments
    assert len(samples) == sum(len(s.cpu.parts) + len(s.gpu.parts) for s in segments)
    for sample in samples:
        side = "gpu" if "_gpu_" in sample.target else "cpu"
        assert sample.ratio == pytest.approx(slower[side], rel=0.01)


def law_ms(layers: Sequence[NetLayer], speed: float) -> float:
    return sum(1e-8 * parse(layer.op).flops / speed + 1e-3 for layer in layers)


@dataclass(frozen=True)
class Mistaken(Context):
    """Predictors that think the GPU a thousand times faster than the CPU, or slower."""

    gpu: float = 1.0

    def cost(self, default: str, *, by_op: bool = False) -> CostModel:
        return CostModel(self.soc, SyntheticPredictors(gpu=self.gpu), by_op)


@pytest.mark.parametrize("gpu", [1e3, 1e-3])
def test_a_mistaken_predictor_still_gives_a_plan_that_runs(gpu: float, first_soc: Soc) -> None:
    network = row(3)
    plan = find("codl-refined").plan(network, Mistaken(first_soc, gpu=gpu))
    assert plan.strategy == "codl-refined"
    assert "plans that ran" in plan.method
    inputs = image(network)
    with (
        Engine(network, plan, first_soc) as engine,
        Engine(network, default_plan(network, first_soc, "cpu"), first_soc) as reference,
    ):
        for name, expected in reference(inputs).items():
            np.testing.assert_allclose(engine(inputs)[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("both_ms", "taken"), [(9.9, "one"), (9.6, "both")])
def test_two_processors_must_be_worth_it(
    both_ms: float, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan on both that gains 1 % over one processor alone is not taken, one of 4 % is."""
    latency_ms = {"one": 10.0, "both": both_ms}
    network = row(2)
    plans = {name: replace(default_plan(network, SOC, "gpu"), strategy=name) for name in latency_ms}
    plans["both"] = replace(plans["both"], chains=plans["both"].chains * 2)

    class StandIn:
        def __init__(self, network: Network, plan: Plan, soc: Soc, tuning: Tuning) -> None:
            self.plan = plan

        def run(self) -> None: ...

        feed = close = lambda self, *inputs: None

    def known(runs: dict[str, Any], effort: Effort) -> dict[str, Latency]:
        engines = {name: timed.args[0].__self__ for name, timed in runs.items()}
        return {
            name: Latency.of([1e-3 * latency_ms[engine.plan.strategy]] * 3)
            for name, engine in engines.items()
        }

    monkeypatch.setattr(codl_refined, "Engine", StandIn)
    monkeypatch.setattr(codl_refined, "interleave", known)
    monkeypatch.setattr(codl_refined, "observe", lambda engine, cost: [])
    notes: list[str] = []
    with codl_refined.Trials(
        network, CostModel(SOC, SyntheticPredictors()), notes.append
    ) as trials:
        trials.run(plans["one"])
        assert trials.run(plans["both"])
        assert trials.result(plans["one"]).strategy == taken
    assert len(notes) == 2


def test_what_it_cannot_compare_is_refused(first_soc: Soc) -> None:
    network: Network = row(1)
    objective = Objective("energy", None)
    with pytest.raises(UnsupportedError, match="the objective 'energy'"):
        find("codl-refined").plan(network, Context(first_soc, objective=objective))
    with pytest.raises(UnsupportedError, match="source: replayed"):
        find("codl-refined").plan(network, Mistaken(replace(first_soc, source="replayed")))
