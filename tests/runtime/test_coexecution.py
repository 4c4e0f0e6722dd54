"""Engines against ONNX Runtime and the interpreter: any plan gives the network's outputs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import here
from support.executables import small_network, small_plan
from support.numpy_interpreter import Interpreter
from support.plans import CUTS, Case, branching_case, legal, make_plan
from support.random_networks import random_networks, random_plans
from support.references import converted
from support.some import some

from codl.engine.engine import Engine
from codl.errors import CodlError, MismatchError
from codl.frontend.models.builder import ModelBuilder
from codl.ir import parse
from codl.ir.executable import Executable
from codl.ir.network import Network
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.kernels import registry
from codl.lower import pieces
from codl.lower.partition import partition_plan
from codl.measure.closeness import closeness, max_rel_err
from codl.measure.inputs import random_inputs
from codl.measure.op_runner import operands
from codl.runtime.loaded import sharing_ms
from codl.runtime.session import host_session


@pytest.fixture(scope="module")
def case() -> Case:
    return branching_case()


@given(cuts=CUTS, sharing=st.sampled_from(["gather", "missing"]))
@settings(max_examples=10, derandomize=True)
def test_any_plan_gives_the_same_outputs(
    cuts: list[tuple[int, str, float]], sharing: str, case: Case, soc: Soc
) -> None:
    network, x, expected = case
    plan = make_plan(network, soc, legal(network, cuts), sharing)
    with Engine(network, plan, here(soc)) as engine:
        for _ in range(2):  # the second run reuses everything
            outputs = engine({"image": x})
            for name, reference in some(expected.items()):
                assert outputs[name].shape == reference.shape
                assert max_rel_err(outputs[name], reference) <= 1e-4
                assert closeness(outputs[name], reference).cosine >= 0.99999


@pytest.mark.parametrize("shift", range(3))
def test_layers_of_a_chain_may_want_different_options_of_ncnn(
    shift: int, case: Case, first_soc: Soc
) -> None:
    network, x, expected = case
    plan = make_plan(network, first_soc, [(4, "H", 0.4), (len(network.layers), "H", 0.0)])
    names = {}
    for index, layer in enumerate(network.layers):
        found = registry.variants(layer.op, "cpu", first_soc, include_unfit=True)
        names[layer.name] = found[(3 * index + shift) % len(found)].name
    chains = [
        replace(chain, variants={op: {**chain.variants[op], "cpu": names[op]} for op in chain.ops})
        for chain in plan.chains
    ]
    with Engine(network, replace(plan, chains=tuple(chains)), here(first_soc)) as engine:
        for _ in range(2):
            outputs = engine({"image": x})
            for name, reference in some(expected.items()):
                assert max_rel_err(outputs[name], reference) <= 1e-3


@pytest.fixture
def engine(case: Case, first_soc: Soc) -> Iterator[Engine]:
    cuts = [(2, "H", 0.5), (1, "OC", 0.5), (3, "H", 0.4)]
    with Engine(case[0], make_plan(case[0], first_soc, cuts), here(first_soc)) as made:
        yield made


def test_the_steady_state_allocates_no_tensor(engine: Engine, case: Case) -> None:
    """What every run allocates is in every round; what Python keeps for the next time, in some."""
    engine.feed({"image": case[1]})
    peaks, kept = [], []
    tracemalloc.start()
    try:
        for _ in range(8):
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            for _ in range(15):
                engine.run()
            after, peak = tracemalloc.get_traced_memory()
            peaks.append(peak - before)
            kept.append(after - before)
    finally:  # it slows all that runs
        tracemalloc.stop()
    smallest = min(shape.bytes for shape in case[0].shapes.values() if shape.bytes > 4096)
    assert min(peaks) < smallest
    assert min(kept) < 4096


def test_only_missing_rows_move_between_splits_alike(case: Case, first_soc: Soc) -> None:
    network = case[0]
    cuts = [(2, "H", 0.5), (1, "H", 0.5)]
    pooled = network.layers[1].output
    moved = {}
    for sharing in ("gather", "missing"):
        program = partition_plan(network, make_plan(network, first_soc, cuts, sharing), first_soc)
        moves = [m for m in program.segments[1].transfers if m.tensor == pooled]
        moved[sharing] = sum(m.region.rows.size for m in moves)
    assert moved["missing"] == 2  # one halo row each way
    assert moved["gather"] == network.shapes[pooled].h


def test_a_profile_covers_both_processors(engine: Engine, case: Case) -> None:
    engine.feed({"image": case[1]})
    spans = engine.profile()
    assert {span.processor for span in spans} == {"cpu", "gpu"}
    assert all(span.end_ms >= span.start_ms for span in spans)
    assert sharing_ms(spans) > 0
    after = engine({"image": case[1]})
    for name, reference in case[2].items():
        assert max_rel_err(after[name], reference) <= 1e-4


def test_wrong_inputs_are_refused_with_the_value(engine: Engine, case: Case) -> None:
    with pytest.raises(CodlError, match=r"must be 1x3x37x29, got \(1, 3, 8, 8\)"):
        engine({"image": np.zeros((1, 3, 8, 8), np.float32)})
    with pytest.raises(CodlError, match="inputs must be image, got picture"):
        engine({"picture": case[1]})
    with pytest.raises(CodlError, match="give a dict"):
        engine(case[1])


def test_a_plan_for_another_model_or_soc_is_refused(case: Case, first_soc: Soc) -> None:
    network = case[0]
    plan = make_plan(network, first_soc, [])
    b = ModelBuilder("other")
    b.output(b.conv(b.input("image", (1, 3, 9, 9)), 8, 3, pad=1))
    other = converted(b)
    with pytest.raises(MismatchError, match="not for 'other'"):
        Engine(other, plan, here(first_soc))
    elsewhere = Plan(**{**plan.__dict__, "soc": "elsewhere"})
    with pytest.raises(MismatchError, match="SoC 'elsewhere'"):
        Engine(network, elsewhere, here(first_soc))
    short = Plan(**{**plan.__dict__, "chains": plan.chains[:-1]})
    with pytest.raises(MismatchError, match="each once"):
        Engine(network, short, here(first_soc))


def test_nets_with_memory_of_their_own_compute_the_same(first_soc: Soc) -> None:
    op = parse("conv2d in=1x32x9x11 oc=24 kernel=3x3 pad=1 act=relu")
    (x,), weights = operands(op)
    variant = registry.variants(op, "cpu", first_soc)[0]
    results = []
    for own_memory in (False, True, True):
        executable = pieces.net_alone([op], variant, [weights], first_soc)
        session = host_session(executable, first_soc, own_memory=own_memory)
        session.inputs["x0"][...] = x
        for _ in range(3):
            session.run()
        results.append(session.outputs["y"])
        del session  # gives back its memory, of which the arrays are no part
    assert np.abs(results[0]).max() > 0
    assert all(np.array_equal(results[0], other) for other in results[1:])


def check_alike(network: Network, plan: Plan, soc: Soc) -> None:
    inputs = random_inputs(network)
    with Engine(network, plan, here(soc)) as engine:
        outputs = engine(inputs)
        interpreted = run(engine.executable, inputs)
    tolerance = 3e-2 if soc.gpu.element == "float16" else 1e-4
    for name, expected in interpreted.items():
        most = max(np.abs(expected).max(), 1)
        assert np.abs(outputs[name] - expected).max() <= tolerance * most, name


def run(executable: Executable, inputs: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
    interpreter = Interpreter(executable)
    for name, array in interpreter.inputs.items():
        np.copyto(array, inputs[name].reshape(array.shape))
    interpreter.run()
    return interpreter.outputs


def test_the_small_executable(soc: Soc) -> None:
    network = small_network()
    check_alike(network, small_plan(network, soc), soc)


@pytest.mark.filterwarnings("ignore::codl.errors.CodlWarning")
def test_random_executables(first_soc: Soc) -> None:
    @given(data=st.data(), network=random_networks(5))
    @settings(max_examples=12, derandomize=True)
    def look(data: st.DataObject, network: Network) -> None:
        check_alike(network, data.draw(random_plans(network, first_soc)), first_soc)

    look()
