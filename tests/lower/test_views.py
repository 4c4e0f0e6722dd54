"""What the GPU does not launch: reshapes of planar tensors, and copies around element-wise ops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.common_checks import CPU_DEVICE
from support.kernel_runs import Case
from support.numpy_interpreter import Interpreter
from support.plans import CUTS, legal, make_plan
from support.references import converted, evaluate
from support.simulated import SOC
from support.some import some
from support.synthetic_predictors import SyntheticPredictors

from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network, parse
from codl.ir.executable import Executable, GpuOp, Relayout
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.kernels.tuning import Tuning
from codl.lower.lowering import lower
from codl.plan import predicted_plan
from codl.plan.cost_model import CostModel
from codl.plan.predicted_plan import one_processor
from codl.plan.price import price
from codl.runtime.opencl import OpenClDevice

HEADS, FEATURES, TOKENS = 4, 8, 6
WIDE = HEADS * FEATURES


@pytest.fixture(scope="module")
def network() -> Network:
    """Tokens that are seen as heads and back, with sums and gates between products."""
    b = ModelBuilder("heads")
    x = b.input("x", (1, TOKENS, WIDE))
    y = b.softmax(b.reshape(b.linear(x, WIDE), (1, TOKENS, HEADS, FEATURES)))
    y = b.add(b.reshape(y, (1, TOKENS, WIDE)), x)
    b.output(b.add(b.linear(b.gelu(b.linear(y, WIDE)), WIDE), y))
    return converted(b)


def launched(executable: Executable, network: Network) -> list[str]:
    """The kinds of what kernels compute, in order, with copies between layouts."""
    kinds = {layer.name: layer.op.kind for layer in network.layers}
    found = []
    for step in executable.steps:
        if isinstance(step, GpuOp):
            found.append(kinds[step.layers[0]])
        elif isinstance(step, Relayout):
            found.append("relayout")
    return found


def on_gpu(network: Network, soc: Soc) -> Executable:
    cost = CostModel(soc, SyntheticPredictors())
    plan = one_processor(network, cost, "gpu", strategy="gpu", sharing="missing")
    return lower(network, plan, soc, Tuning())


def test_reshapes_and_layouts_cost_no_launch(network: Network) -> None:
    kinds = launched(on_gpu(network, SOC), network)
    assert "reshape" in {layer.op.kind for layer in network.layers}
    assert "reshape" not in kinds
    assert "relayout" not in kinds
    assert kinds.count("eltwise") == 2


@given(cuts=CUTS, sharing=st.sampled_from(["missing", "gather"]))
@settings(max_examples=40, derandomize=True)
def test_views_hold_what_their_tensors_would(cuts: Any, sharing: Any, network: Network) -> None:
    """Wherever chains begin and end; memory that is not written is not read.

    What the planner says of them is what is there.
    """
    cost = CostModel(CPU_DEVICE, SyntheticPredictors.with_all_terms())
    drawn = make_plan(network, CPU_DEVICE, legal(network, cuts), sharing)
    chains = [replace(chain, variants={}) for chain in drawn.chains]
    plan = predicted_plan.make_plan(network, cost, chains, strategy="test", sharing=sharing)
    executable = lower(network, plan, CPU_DEVICE, Tuning())
    assert price(executable, cost).latency_ms == pytest.approx(plan.predicted_ms, rel=1e-9)
    interpreter = Interpreter(executable, poisoned=True)
    x = np.random.default_rng(1).standard_normal((1, TOKENS, WIDE)).astype(np.float32)
    interpreter.inputs["x"][...] = x.reshape(interpreter.inputs["x"].shape)
    for _ in range(2):
        interpreter.run()
    for name, wanted in evaluate(network, {"x": x}).items():
        np.testing.assert_allclose(interpreter.outputs[name], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "eltwise in=1x7x33x1,1x1x33x1 mode=mul act=silu",
        "eltwise in=5x40x1x1,1x40x1x1 mode=sub",
        "eltwise in=2x3x5x67,2x3x1x67",
        "eltwise in=2x3x5x67,1x3x5x1 mode=div",
        "eltwise in=1x1x1x1,2x9x1x5 mode=pow",
        "eltwise in=1x9x1x40,1x1x6x1 mode=max",
        "eltwise in=1x1x577x1 mode=identity act=gelu",
        "eltwise in=1x3x5x7 mode=shrink alpha=0.1 beta=0.2",
    ],
)
def test_any_axis_is_stretched_among_planar_tensors(text: str, gpu: OpenClDevice) -> None:
    case = Case.of(parse(text), seed=1)
    for variant in some(registry.of_kind("eltwise", "gpu")):
        if variant.name.startswith("gpu_planar"):
            case.on_gpu(variant, gpu)
