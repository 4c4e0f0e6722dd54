"""Plans of a decoder's two steps: each processor keeps the same part of every cache in both."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from support.common_checks import CPU_DEVICE, SyntheticContext
from support.decoders import SMALL, OrtDecoder, split_plan
from support.plans import make_plan
from support.synthetic_predictors import Line, SyntheticPredictors

from codl.evaluation.decoders import Kept, kept_of, plan_steps
from codl.frontend.decoders import Step, step_of
from codl.frontend.decoders.build import TOKENS, DecoderSource, built
from codl.frontend.graph.graph import PAST_LENGTH
from codl.ir import Network
from codl.ir.network import terms_of, with_sums
from codl.ir.plan import Chain, Plan
from codl.ir.region import Span
from codl.kernels.tuning import Tuning
from codl.lower import lower
from codl.lower.partition import partition_plan
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


def _summed(network: Network, context: Context) -> Plan:
    """Prefilling with partial sums behind attention, of 3 of 4 groups; decoding on halves."""
    if network.inputs[TOKENS].elements == 1:
        return split_plan(network, context.soc)
    makers = {layer.output: layer for layer in network.layers}
    sums = {}
    for layer in network.layers:
        found = terms_of(layer, makers, 48)
        if found is not None and makers[found[0]].op.states:
            sums[layer.name] = 48
    written = with_sums(network, sums)
    cuts = [
        (1, "N", 0.5) if layer.op.sets_cut else (1, "H", 0.75 if layer.op.states else 0.0)
        for layer in written.layers
    ]
    return make_plan(written, context.soc, cuts, "missing").restored(network, sums)


def _joined(plan: Plan) -> Plan:
    """Attention in one chain with the partial sums behind it."""
    chains: list[Chain] = []
    for chain in plan.chains:
        if chain.dim == "N":
            before = chains.pop()
            variants = {**before.variants, **chain.variants}
            chain = replace(chain, ops=before.ops + chain.ops, variants=variants)
        chains.append(chain)
    return replace(plan, chains=tuple(chains))


@pytest.mark.parametrize("joined", [False, True])
def test_partial_sums_follow_decoding(joined: bool) -> None:
    """They are cut behind the groups that decoding keeps, and give the same."""
    source = built("small", replace(SMALL, groups=4))
    steps = step_of(source, 4, CAPACITY), step_of(source, 1, CAPACITY)

    def plan(network: Network, context: Context) -> Plan:
        made = _summed(network, context)
        return _joined(made) if joined and made.sums else made

    prefill, decode = plan_steps(*steps, Strategy("summed", plan), context())
    assert set(prefill.sums.values()) == ({32} if joined else {48})
    assert len(prefill.sums) == SMALL.layers
    kept = dict(kept_of(steps[0].network, prefill, CPU_DEVICE))
    assert kept == dict(kept_of(steps[1].network, decode, CPU_DEVICE))
    check_prefill(source, steps[0], prefill)


def held_elements(steps: tuple[Step, Step], plans: tuple[Plan, Plan]) -> tuple[int, int]:
    """Elements of products' weights that processors hold for both steps, and those that there are.

    Each has a number of its own, which is cut like it.
    """
    held: set[tuple[str, str, str, int]] = set()
    wholes: dict[tuple[str, str], int] = {}
    for step, plan in zip(steps, plans, strict=True):
        for segment in partition_plan(step.network, plan, CPU_DEVICE).segments:
            parts = [("cpu", part) for part in segment.cpu.parts]
            parts += [("gpu", part) for part in segment.gpu.parts]
            for side, part in parts:
                shapes = part.layer.op.weight_shapes if part.op.is_product else {}
                numbers = {n: np.arange(prod(s)).reshape(s) for n, s in shapes.items()}
                wholes |= {(part.layer.name, n): own.size for n, own in numbers.items()}
                for n, own in part.layer.op.restrict_weights(numbers, part.region).items():
                    held |= {(side, part.layer.name, n, at) for at in own.ravel().tolist()}
    return len(held), sum(wholes.values())


@pytest.mark.parametrize("tokens", [(4096, 1), (1, 4096)])
def test_weights_are_once_where_they_are_to_be(
    tokens: tuple[int, int], source: DecoderSource, steps: tuple[Step, Step]
) -> None:
    """Whichever step has its way: both processors work, and what they compute is right."""
    given = SyntheticContext(CPU_DEVICE, predictors=BALANCED)
    plans = plan_steps(*steps, find("codl"), given, weights="once", tokens=tokens)
    assert all(any(0 < chain.gpu_ratio < 1 for chain in plan.chains) for plan in plans)
    held, whole = held_elements(steps, plans)
    assert held <= 1.01 * whole
    check_prefill(source, steps[0], plans[0])


def test_weights_are_on_both_where_that_is_faster(steps: tuple[Step, Step]) -> None:
    plans = plan_steps(*steps, find("codl"), SyntheticContext(CPU_DEVICE, predictors=BALANCED))
    held, whole = held_elements(steps, plans)
    assert held > 1.2 * whole


def test_groups_that_both_keep_go_to_one() -> None:
    whole = Kept(Span(0, 3), Span(0, 3), 3).split
    assert whole == Kept(Span(2, 3), Span(0, 2), 3)
    own = Kept(Span(1, 3), Span(0, 1), 3)
    assert own.split == own
    assert Kept(Span(0, 3), Span(0, 0), 3).split.sizes == (3, 0)
    assert Kept(Span(0, 0), Span(0, 3), 3).split.sizes == (0, 3)
