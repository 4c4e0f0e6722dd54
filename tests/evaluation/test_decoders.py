"""Plans of a decoder's two steps: each processor keeps the same part of every cache in both."""

from __future__ import annotations

import numpy as np
import pytest
from support.common_checks import CPU_DEVICE, SyntheticContext
from support.decoders import SMALL, OrtDecoder, split_plan
from support.synthetic_predictors import Line, SyntheticPredictors

from codl.evaluation.decoders import kept_of, plan_steps
from codl.frontend.decoders import Step, step_of
from codl.frontend.decoders.build import TOKENS, DecoderSource, built
from codl.frontend.graph.graph import PAST_LENGTH
from codl.ir import Network
from codl.ir.plan import Plan
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.plan.build_plan import default_plan
from codl.runtime.numpy_interpreter import Interpreter
from codl.strategies import Context, Strategy, find

CAPACITY = 24
#: Processors that are as fast as each other, and next to each other.
BALANCED = SyntheticPredictors(flops=1e4, least_ms=1e-6, exchange=Line(1e-4))


@pytest.fixture(scope="module")
def source() -> DecoderSource:
    return built("small", SMALL)


@pytest.fixture(scope="module")
def steps(source: DecoderSource) -> tuple[Step, Step]:
    return step_of(source, 4, CAPACITY), step_of(source, 1, CAPACITY)


def context() -> Context:
    return SyntheticContext(soc=CPU_DEVICE)


@pytest.mark.parametrize("name", ["cpu", "gpu", "codl"])
def test_both_steps_keep_the_same(name: str, steps: tuple[Step, Step]) -> None:
    plans = plan_steps(*steps, find(name), context())
    kept = [
        dict(kept_of(step.network, plan, CPU_DEVICE))
        for step, plan in zip(steps, plans, strict=True)
    ]
    assert kept[0] == kept[1]
    assert len(kept[0]) == SMALL.layers
    for own in kept[0].values():
        assert sum(own.sizes) == SMALL.groups


def _halved(network: Network, context: Context) -> Plan:
    """Prefilling on the CPU alone, decoding on both processors."""
    words = network.inputs[TOKENS].elements
    if words > 1:
        return default_plan(network, context.soc, "cpu")
    return split_plan(network, context.soc)


def test_prefilling_follows_decoding(source: DecoderSource, steps: tuple[Step, Step]) -> None:
    """Its attention is taken out of the chain that it is in; the rest stays where it was."""
    prefill, decode = plan_steps(*steps, Strategy("halved", _halved), context())
    assert [chain.gpu_ratio for chain in prefill.chains] == [0.0, 0.5, 0.0, 0.5, 0.0]
    assert all(len(chain.ops) == 1 for chain in prefill.chains[1::2])
    kept = dict(kept_of(steps[0].network, prefill, CPU_DEVICE))
    assert kept == dict(kept_of(steps[1].network, decode, CPU_DEVICE))
    check_prefill(source, steps[0], prefill)


def check_prefill(source: DecoderSource, step: Step, plan: Plan) -> None:
    """A plan of a first chunk gives ONNX Runtime's logits."""
    network, words = step.network, [3, 1, 4, 1]
    interpreter = Interpreter(lower(network, plan, CPU_DEVICE, Tuning()), poisoned=True)
    interpreter.inputs[TOKENS].reshape(-1)[:] = words
    interpreter.inputs[PAST_LENGTH][:] = 0
    interpreter.inputs["last_row"][:] = 3
    interpreter.run()
    reference = OrtDecoder(source, CAPACITY)
    for word in words:
        wanted = reference.decode(word)
    found = interpreter.outputs[step.logits].reshape(-1)
    np.testing.assert_allclose(found, wanted, atol=2e-5 * np.abs(wanted).max())
