"""Flags in shared memory: the same outputs as with events, none is lost, none hangs for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.devices import here
from support.plans import CUTS, Case, branching_case, image, legal, make_plan, row
from support.references import evaluate

from codl.engine.engine import Engine
from codl.errors import DeviceError
from codl.ir.executable import FLAG_BYTES, Raise
from codl.machine.placement import LocalSoc
from codl.measure.closeness import max_rel_err
from codl.measure.exchanges import make_flag
from codl.measure.facts import measure_svm_atomics
from codl.runtime import memory
from codl.runtime.drivers import cl_module
from codl.runtime.launch import BoundKernel
from codl.runtime.memory import Flag, shared_zeros
from codl.runtime.opencl import OpenClDevice
from codl.runtime.probe import BareDevice

#: Of a small network, with two flags or more each; thousands were run by hand.
RUNS = 300


@pytest.fixture(scope="module")
def flagged(gpu: OpenClDevice) -> LocalSoc:
    """The SoC around a device whose kernels and the host meet at a flag."""
    soc = gpu.soc
    meets = measure_svm_atomics(BareDevice(gpu.device)).value
    if not (meets and soc.gpu.sees_host_memory):
        pytest.skip(f"{soc.gpu.name} has no flags")
    return replace(soc, gpu=replace(soc.gpu, svm_atomics=True, signal="flag"))


@pytest.fixture
def flag(flagged: LocalSoc) -> Iterator[Flag]:
    device = here(flagged).device
    with device.lock:
        yield make_flag(device)
        device.queue.finish()


@pytest.fixture(scope="module")
def case() -> Case:
    return branching_case()


@given(cuts=CUTS, sharing=st.sampled_from(["gather", "missing"]))
@settings(max_examples=8, derandomize=True)
def test_any_plan_gives_the_same_outputs_either_way(
    cuts: list[tuple[int, str, float]], sharing: str, case: Case, flagged: LocalSoc
) -> None:
    network, x, expected = case
    plan = make_plan(network, flagged, legal(network, cuts), sharing)
    by_event = replace(flagged, gpu=replace(flagged.gpu, signal="event"))
    for soc in (flagged, by_event):
        with Engine(network, plan, here(soc)) as engine:
            raised = any(isinstance(one, Raise) for one in engine.executable.commands)
            assert not (raised and soc is by_event)
            for _ in range(2):
                outputs = engine({"image": x})
                for name, reference in expected.items():
                    assert max_rel_err(outputs[name], reference) <= 1e-4


def test_no_flag_is_lost_in_many_runs(flagged: LocalSoc) -> None:
    """Each inference is on another input than the one before."""
    network = row(3)
    plan = make_plan(network, flagged, [(1, "H", 0.5), (1, "OC", 0.5), (1, "H", 0.3)], "missing")
    inputs = [image(network, seed) for seed in range(5)]
    expected = [evaluate(network, own) for own in inputs]
    with Engine(network, plan, here(flagged)) as engine:
        assert sum(isinstance(one, Raise) for one in engine.executable.commands) >= 2
        for turn in range(RUNS):
            outputs = engine(inputs[turn % 5])
            for name, reference in expected[turn % 5].items():
                assert max_rel_err(outputs[name], reference) <= 1e-4, turn


def test_a_flag_counts_on_beyond_its_last_word(flag: Flag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "WORDS", 4)
    monkeypatch.setattr(memory, "HALF", 2)
    for _ in range(9):
        flag.enqueue()
        flag.wait()
        assert flag.is_up


def test_a_flag_that_never_comes_is_an_error(
    flagged: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = here(flagged).device
    program = device.programs.build_text("idle", "kernel void idle(global uint *flag) {}")
    words, seen = shared_zeros(device, FLAG_BYTES // 4, atomic=True)
    idle = BoundKernel("idle", cl_module().Kernel(program, "idle"), (1,), (1,), [seen])
    monkeypatch.setattr(memory, "ASK_S", 0.0)
    flag = Flag(device, words, idle)
    flag.enqueue()
    with device.lock, pytest.raises(DeviceError, match="does not see the flag"):
        flag.wait()


def test_a_command_that_failed_is_told(flag: Flag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "ASK_S", 0.0)
    failed = property(lambda event: -36)
    monkeypatch.setattr(cl_module().Event, "command_execution_status", failed)
    monkeypatch.setattr(Flag, "is_up", property(lambda self: False))
    flag.enqueue()
    with pytest.raises(DeviceError, match=r"A command failed on .* \(INVALID_COMMAND_QUEUE"):
        flag.wait()
