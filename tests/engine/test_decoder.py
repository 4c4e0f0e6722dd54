"""Decoders where they run: ONNX Runtime's greedy tokens, over caches that stay in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.common_checks import SyntheticContext
from support.decoders import SMALL, OrtDecoder, split_plan
from support.devices import here
from support.synthetic_predictors import SyntheticPredictors

from codl.api.decoders import weight_bytes
from codl.engine.decoder import DECODE, PREFILL, Decoder, PlannedStep
from codl.errors import CodlError, MismatchError
from codl.evaluation.decoders import plan_steps
from codl.frontend.decoders import Step, read_decoder, step_of
from codl.frontend.decoders.build import DecoderSource, built, with_weights
from codl.frontend.quantize import quantize
from codl.ir.executable import Launch
from codl.ir.executable_check import state_tensors
from codl.ir.network import Network
from codl.ir.plan import Plan
from codl.measure.decoder_speed import greedy
from codl.plan.build_plan import default_plan
from codl.records.soc import Soc
from codl.runtime.opencl import OpenClDevice
from codl.runtime.placement import LocalSoc
from codl.strategies import find
from codl.targets.connect import connect
from codl.targets.local import LocalTarget

CHUNK, CAPACITY, STEPS = 8, 48, 25
PROMPT = [int(word) for word in np.random.default_rng(0).integers(0, SMALL.words, 19)]
PLANS: Mapping[str, Callable[[Network, Soc], Plan]] = {
    "cpu": lambda network, soc: default_plan(network, soc, "cpu"),
    "gpu": lambda network, soc: default_plan(network, soc, "gpu"),
    "both": split_plan,
}


@pytest.fixture(scope="module")
def source() -> DecoderSource:
    return built("small", SMALL)


@pytest.fixture(scope="module")
def steps(source: DecoderSource) -> tuple[Step, Step]:
    return step_of(source, CHUNK, CAPACITY), step_of(source, 1, CAPACITY)


def decoder(steps: tuple[Step, Step], soc: LocalSoc, prefill: str, decode: str) -> Decoder:
    target = connect("local", soc)
    assert isinstance(target, LocalTarget)
    names = zip(steps, (prefill, decode), strict=True)
    return Decoder(*(PlannedStep(own, PLANS[n](own.network, soc)) for own, n in names), target)


@pytest.mark.parametrize("plan", PLANS)
def test_greedy_tokens_are_those_of_onnx_runtime(
    plan: str, source: DecoderSource, steps: tuple[Step, Step], soc: LocalSoc
) -> None:
    """A prompt whose last chunk is not full, twice: nothing is left of the first time."""
    expected = list(OrtDecoder(source, CAPACITY).greedy(PROMPT, STEPS))
    with decoder(steps, soc, plan, plan) as model:
        for _ in range(2):
            model.reset()
            logits = model.prefill(PROMPT)
            for token, wanted in expected:
                np.testing.assert_allclose(logits, wanted, atol=1e-5 * np.abs(wanted).max())
                assert logits.argmax() == token
                logits = model.decode(token)
        assert model.length == len(PROMPT) + STEPS


def test_kernels_for_gpus_write_the_same_tokens(
    source: DecoderSource, steps: tuple[Step, Step], as_gpu: OpenClDevice
) -> None:
    """With few launches: a layer's sums and its gate are parts of its products."""
    target = here(as_gpu.soc)
    planned = [PlannedStep(own, PLANS["gpu"](own.network, as_gpu.soc)) for own in steps]
    with Decoder(*planned, target) as model:
        logits = model.prefill(PROMPT)
        for token, wanted in OrtDecoder(source, CAPACITY).greedy(PROMPT, STEPS):
            np.testing.assert_allclose(logits, wanted, atol=1e-5 * np.abs(wanted).max())
            assert logits.argmax() == token
            logits = model.decode(token)
        launches = sum(isinstance(c, Launch) for c in model.session(DECODE).executable.commands)
    assert launches <= 14 * SMALL.layers + 10


def of_halves(soc: LocalSoc) -> LocalSoc:
    return replace(soc, gpu=replace(soc.gpu, element="float16"))


def test_the_cache_is_there_once(steps: tuple[Step, Step], first_soc: LocalSoc) -> None:
    """Both steps write the same memory, of which each processor has its own groups."""
    with decoder(steps, first_soc, "both", "both") as model:
        kept = [model.session(name) for name in (PREFILL, DECODE)]
        tensors = [state_tensors(own.executable) for own in kept]
        assert tensors[0].keys() == tensors[1].keys()
        assert len(tensors[0]) == 2 * 2 * SMALL.layers
        for state, number in tensors[0].items():
            held = kept[0].executable.tensors[number].held
            assert held.channels.size == SMALL.groups // 2
            places = [
                own.executable.tensors[one[state]].buffer
                for own, one in zip(kept, tensors, strict=True)
            ]
            if state[1] == "gpu":
                memory = [own.device_memory(at) for own, at in zip(kept, places, strict=True)]
                assert memory[0] is memory[1]


def test_the_table_of_words_is_there_once(steps: tuple[Step, Step], first_soc: LocalSoc) -> None:
    """Each processor has its columns of it, for both steps."""
    with decoder(steps, first_soc, "both", "both") as model:
        places = []
        for name in (PREFILL, DECODE):
            session = model.session(name)
            tensors, buffers = session.executable.tensors, session.executable.buffers
            places += [
                session.device_memory(own.buffer)
                for own in tensors
                if own.name == "embedding" and buffers[own.buffer].place == "gpu"
            ]
        first, second = places
        assert first is second
        assert first.size == 4 * SMALL.words * SMALL.features // 2


def test_packed_weights_are_once_on_both(tmp_path: Path, first_soc: LocalSoc) -> None:
    """The tokens are those of the CPU alone, which has ONNX Runtime's kernels."""
    path, target = tmp_path / "small.onnx", connect("local", first_soc)
    assert isinstance(target, LocalTarget)
    model, _ = quantize(with_weights(built("small", replace(SMALL, layers=1)), CAPACITY))
    onnx.save(model, path)
    packed = read_decoder(str(path))
    steps = step_of(packed, CHUNK, CAPACITY), step_of(packed, 1, CAPACITY)
    context = SyntheticContext(first_soc, predictors=SyntheticPredictors(flops=1e4, least_ms=1e-6))
    made = []
    for name in ("cpu", "codl"):
        plans = plan_steps(*steps, find(name), context, weights="once")
        with Decoder(*map(PlannedStep, steps, plans), target) as model:
            held = model.memory
            made.append(greedy(model, PROMPT, STEPS))
    assert made[0] == made[1]
    assert min(held.cpu_weight_bytes, held.gpu_weight_bytes) > 0.1 * held.weight_bytes
    assert held.weight_bytes <= 1.1 * weight_bytes(steps[1].network)


def test_weights_are_with_kernels_and_libraries_alone(
    steps: tuple[Step, Step], first_soc: LocalSoc
) -> None:
    with decoder(steps, first_soc, "both", "both") as model:
        constants = model.session(DECODE).executable.constants
        assert all(own.weights is None for own in constants)
        with pytest.raises(CodlError, match="were let go when they had been loaded"):
            constants[0].arrays()
        with pytest.raises(CodlError, match="were let go"):
            model.session(DECODE).executable.digest()


def test_tokens_come_one_by_one_where_no_chunk_fits(
    source: DecoderSource, steps: tuple[Step, Step], first_soc: LocalSoc
) -> None:
    words = (PROMPT * 3)[:CAPACITY]
    reference = OrtDecoder(source, CAPACITY)
    for word in words:
        wanted = reference.decode(word)
    with decoder(steps, first_soc, "cpu", "cpu") as model:
        model.prefill(words[:3])
        logits = model.prefill(words[3:])
        np.testing.assert_allclose(logits, wanted, atol=1e-5 * np.abs(wanted).max())
        with pytest.raises(CodlError, match=f"1 tokens .* capacity of {CAPACITY} 0 are left"):
            model.decode(1)
        model.reset()
        with pytest.raises(CodlError, match=f"give 1 to {CAPACITY}, or a larger capacity"):
            model.prefill([0] * (CAPACITY + 1))
        with pytest.raises(CodlError, match="0 tokens are to be appended"):
            model.prefill([])


def test_plans_that_keep_a_cache_in_two_places_are_refused(
    steps: tuple[Step, Step], first_soc: LocalSoc
) -> None:
    with pytest.raises(MismatchError, match="must cut what writes it alike"):
        decoder(steps, first_soc, "cpu", "both")


def test_plans_that_store_a_cache_in_two_ways_are_refused(
    steps: tuple[Step, Step], first_soc: LocalSoc
) -> None:
    prefill, decode = (
        PlannedStep(own, default_plan(own.network, soc, "gpu"))
        for own, soc in zip(steps, (first_soc, of_halves(first_soc)), strict=True)
    )
    target = connect("local", first_soc)
    assert isinstance(target, LocalTarget)
    with pytest.raises(MismatchError, match=r"\(planar float32\) of the state .*float16"):
        Decoder(prefill, decode, target)
