"""Plans that ran correct predictions: by how much, and of which ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from support.plans import row
from support.simulated import SOC
from support.synthetic_predictors import SyntheticPredictors

from codl.ir import parse
from codl.ir.executable import Executable, GpuOp, NetLayer
from codl.ir.records.profile import PlanRun
from codl.ir.types import Processor
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.lower.partition import partition_plan
from codl.plan.build_plan import chain_of
from codl.plan.corrections import Evidence, OpRatio, ProfileCorrections, corrected, op_ratios
from codl.plan.cost_model import CostModel
from codl.plan.predicted_plan import make_plan
from codl.plan.price import price, stage_times

CONV = "conv2d in=1x64x{h}x56 oc={oc} kernel=3x3 pad=1"
TARGET = "conv2d_gpu_direct"


def sample(text: str, ratio: float, target: str = TARGET) -> OpRatio:
    side: Processor = "gpu" if "_gpu_" in target else "cpu"
    return OpRatio(side, target, parse(text), ratio)


def factor(corrections: ProfileCorrections, text: str, target: str = TARGET) -> float:
    side: Processor = "gpu" if "_gpu_" in target else "cpu"
    return float(corrections.factors(side, target, [parse(text)])[0])


def network_of(slow: float) -> list[OpRatio]:
    """Twenty layers of one kernel variant that take about what was predicted; one takes `slow`."""
    random = np.random.default_rng(0)
    texts = [f"conv2d in=1x{8 * c}x28x28 oc={8 * c} kernel=1x1" for c in range(1, 21)]
    others = [sample(text, float(np.exp(random.normal(0, 0.03)))) for text in texts]
    return [sample(CONV.format(h=40, oc=64), slow), *others]


def test_a_layer_speaks_for_its_cuts_and_little_for_other_layers() -> None:
    slow = ProfileCorrections(network_of(2.0))
    same = factor(slow, CONV.format(h=40, oc=64))
    rows, channels = factor(slow, CONV.format(h=20, oc=64)), factor(slow, CONV.format(h=40, oc=32))
    assert 1.8 < same < 2.1
    assert 1.6 < rows < same
    assert 1.6 < channels < same
    assert factor(slow, "conv2d in=1x100x28x28 oc=96 kernel=1x1") == pytest.approx(1.0, abs=0.1)
    assert factor(slow, CONV.format(h=40, oc=64), "conv2d_cpu_gemm") == 1.0
    assert factor(ProfileCorrections(), CONV.format(h=40, oc=64)) == 1.0


def test_a_variant_that_did_not_run_gets_what_is_usual_on_its_processor() -> None:
    """It would otherwise win just because nobody has looked at it."""
    texts = [f"conv2d in=1x{8 * c}x28x28 oc={8 * c} kernel=1x1" for c in range(1, 21)]
    everywhere = ProfileCorrections([sample(text, 1.5, "conv2d_cpu_gemm") for text in texts])
    assert factor(everywhere, texts[3], "conv2d_cpu_gemm") == pytest.approx(1.5, rel=0.02)
    assert factor(everywhere, texts[3], "conv2d_cpu_direct") == pytest.approx(1.5, rel=0.1)
    assert factor(everywhere, texts[3], TARGET) == 1.0


def executable_of(cost: CostModel) -> tuple[Executable, PlanRun]:
    """A plan of two chains, and what is known of it where nothing ran."""
    network = row(3)
    layers = network.layers
    cuts = [chain_of(layers[:2], "H", 0.5), chain_of(layers[2:], "OC", 0.5)]
    plan = make_plan(network, cost, cuts, strategy="test", sharing="missing")
    executable = lower(network, plan, SOC, Tuning())
    digest = executable.digest(weights=False)
    return executable, PlanRun(plan=plan, executable=digest, latency_ms=1.0, parts_ms={})


def law(executable: Executable, slower: Mapping[str, float], *, layers: bool) -> PlanRun:
    """Parts made up from the predictors' law: ops of a processor take so many times as long."""
    parts: dict[str, dict[str, float]] = {"net": {}, "layer": {}, "kernel": {}}
    for net in executable.nets:
        parts["net"][net.label] = slower["cpu"] * law_ms(net.layers, 1.0)
        for layer in net.layers if layers else ():
            parts["layer"][layer.name] = slower["cpu"] * law_ms([layer], 1.0)
    for step in executable.steps:
        if isinstance(step, GpuOp):
            ms = slower["gpu"] * sum(1e-8 * parse(op).flops / 2.0 + 1e-3 for op in step.ops)
            parts["kernel"][step.label] = ms
    return PlanRun(plan=None, executable="", latency_ms=1.0, parts_ms=parts)  # type: ignore[arg-type]


def law_ms(layers: Sequence[NetLayer], speed: float) -> float:
    return sum(1e-8 * parse(layer.op).flops / speed + 1e-3 for layer in layers)


@pytest.mark.parametrize("layers", [False, True])
@pytest.mark.parametrize("slower", [{"cpu": 3.0, "gpu": 1.0}, {"cpu": 1.0, "gpu": 0.5}])
def test_ratios_are_those_of_measured_to_predicted(slower: dict[str, float], layers: bool) -> None:
    cost = CostModel(SOC, SyntheticPredictors(gpu=2.0))
    executable, run = executable_of(cost)
    samples = op_ratios(executable, law(executable, slower, layers=layers).totals, cost)
    segments = partition_plan(row(3), run.plan, SOC).segments
    assert len(samples) == sum(len(s.cpu.parts) + len(s.gpu.parts) for s in segments)
    for ratio in samples:
        assert ratio.ratio == pytest.approx(slower[ratio.processor], rel=0.01)


def test_a_plan_that_ran_is_predicted_as_it_ran_unless_it_is_lowered_to_something_else() -> None:
    cost = CostModel(SOC, SyntheticPredictors(gpu=2.0))
    executable, run = executable_of(cost)
    parts = law(executable, {"cpu": 3.0, "gpu": 3.0}, layers=True).parts_ms
    ran = PlanRun(plan=run.plan, executable=run.executable, latency_ms=1.0, parts_ms=parts)
    works = [stage_times(executable, c)[0].works_ms for c in
             (cost, corrected(cost, [Evidence.of(row(3), ran, cost, SOC)]))]  # fmt: skip
    np.testing.assert_allclose(works[1], 3 * np.array(works[0]), rtol=0.05)
    other = PlanRun(plan=run.plan, executable="other", latency_ms=1.0, parts_ms=parts)
    same = corrected(cost, [Evidence.of(row(3), other, cost, SOC)])
    assert price(executable, same).latency_ms == price(executable, cost).latency_ms
