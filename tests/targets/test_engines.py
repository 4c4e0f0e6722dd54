"""Engines on targets: the same outputs everywhere, also after an agent or its driver was lost."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import pytest
from support.devices import here
from support.executables import network_of, numbers
from support.plans import image, make_plan, row
from support.references import converted, evaluate
from support.some import some

from codl.engine.engine import Engine
from codl.errors import CodlError, CodlWarning, DeviceError
from codl.frontend.models.builder import ModelBuilder
from codl.ir import Network, Op, parse
from codl.ir.constants import array_digest
from codl.ir.executable_json import encode as encode_executable
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.machine.placement import LocalSoc
from codl.measure.timing import Effort
from codl.plan.build_plan import default_plan
from codl.registry import VARIABLE
from codl.targets.base import Target
from codl.targets.client import COMMAND
from codl.targets.connect import connect
from codl.targets.connection import AgentLostError, Connection
from codl.targets.local import LocalTarget
from codl.targets.model_requests import Load, LoadedModel, Run
from codl.targets.remote import RemoteTarget
from codl.targets.requests import Arrays
from codl.targets.wire import SentArray, decode, encode

#: An agent whose device refuses the first kernels of every executable that has them.
REFUSING = """
from codl.ir.executable import GpuOp, Refusal
from codl.runtime.loaded import RefusedError
from codl.targets.local import LocalTarget
load, refused = LocalTarget.load, []
def refusing(self, executable, **how):
    ops = [step for step in executable.steps if isinstance(step, GpuOp)]
    if ops and not refused:
        refused.append(ops[0])
        own = ops[0]
        raise RefusedError([Refusal(own.label, own.variant, own.choice, "it does not build")])
    return load(self, executable, **how)
LocalTarget.load = refusing
from codl.targets.agent import main
main(0.0)
"""


ONCE = Effort(min_rounds=1, min_seconds=0.0, warm=1)


@pytest.fixture
def network() -> Network:
    return row(3)


@pytest.fixture
def process(first_soc: Soc) -> Iterator[RemoteTarget]:
    with closing(RemoteTarget("process", COMMAND, first_soc)) as target:
        yield target


def plan_of(network: Network, soc: Soc) -> Plan:
    return default_plan(network, soc, "gpu")


def test_an_engine_runs_on_every_target(target: Target, network: Network) -> None:
    soc, inputs = target.soc, image(network)
    plan = plan_of(network, soc)
    with Engine(network, plan, target) as engine, Engine(network, plan, here(soc)) as local:
        for name, expected in local(inputs).items():
            np.testing.assert_array_equal(engine(inputs)[name], expected)
        assert engine.executable.digest() == local.executable.digest()
        assert engine.memory == local.memory
        labels = {span.label for span in engine.profile(1)}
        assert labels == {span.label for span in local.profile(1)}
        times = target.time({"one": engine.loaded}, Effort(min_rounds=2, min_seconds=0.0, warm=3))
        assert (times.cold_ms["one"].runs, times.latency_ms["one"].runs) == (2, 6)
        assert times.latency_ms["one"].median > 0
        assert target.binaries(engine.loaded)
        assert dict(target.open())
        with pytest.raises(CodlError, match="The inputs must be"):
            engine({"nothing": np.zeros(1, np.float32)})


def test_the_cpu_alone_needs_no_driver(first_soc: LocalSoc, network: Network) -> None:
    soc = replace(first_soc, gpu=replace(first_soc.gpu, platform="Nowhere"))
    inputs, plan = image(network), default_plan(network, soc, "cpu")
    with (
        closing(LocalTarget(soc)) as target,
        Engine(network, plan, target) as engine,
        Engine(network, plan, here(first_soc)) as other,
    ):
        for name, expected in other(inputs).items():
            np.testing.assert_array_equal(engine(inputs)[name], expected)
        assert {span.processor for span in engine.profile(1)} == {"cpu"}
        times = target.time({"one": engine.loaded}, ONCE)
        assert times.latency_ms["one"].runs == 1
        with pytest.raises(DeviceError, match="has no device"):
            Engine(network, plan_of(network, soc), target)


def test_each_output_is_its_own(target: Target) -> None:
    """Of one shape, and not in the order of their names."""
    b = ModelBuilder("two")
    x = b.input("x", (1, 4, 6, 5))
    first, second = b.node("Sin", [x]), b.node("Abs", [x])
    b.output(second)
    b.output(first)
    network = converted(b)
    value = np.linspace(-3, 3, 120, dtype=np.float32).reshape(1, 4, 6, 5)
    with Engine(network, plan_of(network, target.soc), target) as engine:
        got = engine({"x": value})
    np.testing.assert_allclose(got[first], np.sin(value), atol=1e-5)
    np.testing.assert_array_equal(got[second], np.abs(value))


def test_what_is_timed_and_profiled_is_what_is_fed(target: Target, network: Network) -> None:
    """Each of two engines its own, and not what it ran on last."""
    soc, given = target.soc, [image(network, seed) for seed in range(2)]
    plan = plan_of(network, soc)
    with Engine(network, plan, target) as one, Engine(network, plan, target) as other:
        expected = [one(inputs) for inputs in given]
        one.feed(given[0])
        other.feed(given[1])
        one.loaded.profile()
        target.time({"other": other.loaded}, ONCE)
        for engine, wanted in zip((one, other), expected, strict=True):
            for name, values in engine.outputs.items():
                np.testing.assert_array_equal(values, wanted[name])


def test_a_cold_start_is_that_of_a_new_process(target: Target, network: Network) -> None:
    inputs, plan = image(network), plan_of(network, target.soc)
    with Engine(network, plan, target) as engine:
        expected = engine(inputs)
    begin = perf_counter()
    with closing(target.fresh()) as fresh:
        with Engine(network, plan, fresh) as engine:
            for name, values in engine(inputs).items():
                np.testing.assert_array_equal(values, expected[name])
        times = fresh.cold_start()
        whole_ms = 1e3 * (perf_counter() - begin)
    parts = (times.import_ms, times.load_ms, times.first_run_ms)
    assert all(part > 0 for part in parts)
    assert sum(parts) == pytest.approx(times.without_interpreter_ms)
    assert times.without_interpreter_ms < times.process_ms < whole_ms


def test_a_kill_in_a_run_is_an_error_and_the_next_run_works(
    process: RemoteTarget, network: Network
) -> None:
    soc, inputs = process.soc, image(network)
    with Engine(network, plan_of(network, soc), process) as engine:
        expected = engine(inputs)
        assert process.agent.pid is not None
        os.kill(process.agent.pid, signal.SIGKILL)
        with pytest.raises(AgentLostError, match=r"The agent of 'process' crashed \(signal 9\)"):
            engine(inputs)
        for name, values in engine(inputs).items():
            np.testing.assert_array_equal(values, expected[name])
        os.kill(process.agent.pid, signal.SIGKILL)
        with pytest.raises(AgentLostError):
            process.time({"one": engine.loaded}, ONCE)
        assert process.time({"one": engine.loaded}, ONCE).latency_ms["one"].runs == 1


def test_threads_share_an_agent(process: RemoteTarget, network: Network) -> None:
    soc, given = process.soc, [image(network, seed) for seed in range(2)]
    plan = plan_of(network, soc)
    with (
        Engine(network, plan, process) as one,
        Engine(network, plan, process) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        expected = [one(inputs) for inputs in given]
        runs = [pool.submit((one, other)[n % 2], given[n % 2]) for n in range(20)]
        for n, run in some(enumerate(runs)):
            for name, values in some(run.result().items()):
                np.testing.assert_array_equal(values, expected[n % 2][name])


def test_a_kill_in_a_load_is_an_error_and_the_next_load_works(
    process: RemoteTarget, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Connection.send

    def kill(self: Connection[Any, Any], message: Any, *blobs: Any) -> None:
        send(self, message, *blobs)
        if message.kind == "Load" and process.agent.generation == 1:
            assert process.agent._running is not None
            process.agent._running.child.kill()

    monkeypatch.setattr(Connection, "send", kill)
    plan = plan_of(network, process.soc)
    with pytest.raises(AgentLostError, match="crashed"):
        Engine(network, plan, process)
    with Engine(network, plan, process) as engine:
        engine(image(network))


def test_what_a_device_refuses_is_lowered_again_without(first_soc: Soc, network: Network) -> None:
    with closing(RemoteTarget("odd", [sys.executable, "-c", REFUSING], first_soc)) as target:
        with pytest.warns(CodlWarning, match="it does not build"):
            engine = Engine(network, plan_of(network, first_soc), target)
        with engine:
            (fallback,) = engine.fallbacks
            assert fallback.reason == "it does not build"
            engine(image(network))


def encoded(network: Network, soc: Soc) -> tuple[bytes, dict[str, Any]]:
    """An executable of a network as it is sent, and its arrays by their digests."""
    arrays: dict[str, Any] = {}

    def put(array: Any) -> str:
        arrays[array_digest(array)] = array
        return array_digest(array)

    with Engine(network, plan_of(network, soc), here(soc)) as local:
        return encode_executable(local.executable, put), arrays


def load(target: RemoteTarget, content: bytes, arrays: dict[str, Any]) -> LoadedModel:
    loaded = target.agent.ask(Load(content, arrays), lambda kind, step, value: None)
    assert isinstance(loaded, LoadedModel)
    return loaded


def test_executables_that_are_damaged_load_nothing(process: RemoteTarget, network: Network) -> None:
    content, arrays = encoded(network, process.soc)
    with pytest.raises(CodlError, match="no executable"):
        load(process, content[:-40], {})
    with pytest.raises(CodlError, match="was not sent"):
        load(process, content, {})
    digest, array = next(iter(arrays.items()))
    with pytest.raises(CodlError, match=f"its digest is not {digest}"):
        load(process, content, {digest: array + 1})
    with pytest.raises(CodlError, match="There is no model 7 here; there are: none"):
        process.agent.ask(Run(7, {}))


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (SentArray("object", (1,), 0), "Arrays of 'object' cannot be sent"),
        (SentArray("float32", (-1, 2), 0), "cannot have the shape"),
        (SentArray("float32", (3,), 0), "needs 12 bytes; 8 came"),
        (SentArray("float32", (2,), 1), "refers to blob 1, but has 1"),
    ],
)
def test_arrays_that_do_not_fit_their_bytes_are_refused(record: SentArray, message: str) -> None:
    sent = msgspec.Raw(msgspec.json.encode({"x": record}))
    with pytest.raises(CodlError, match=message):
        decode(Arrays, sent, [bytearray(8)])


def test_arrays_come_as_they_went() -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(1, 2, 3),
        "b": np.array(True),
        "c": np.zeros((0, 4), np.int64),
        "d": np.arange(8, dtype=np.uint8)[::2],
        "e": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    }
    sent, blobs = encode(arrays)
    out = decode(Arrays, sent, [bytearray(blob) for blob in blobs])
    for name, array in arrays.items():
        assert out[name].dtype == array.dtype
        np.testing.assert_array_equal(out[name], array)


def test_a_model_that_several_ops_hold_is_sent_once() -> None:
    text = "onnx in=1x8 to=1x8 nodes=CumSum digest=0123456789abcdef"
    op = replace(parse(text), model=b"model")  # type: ignore[call-arg]
    sent, blobs = encode((op, op, parse("fc in=1x4x1x1 oc=2")))
    assert blobs == [b"model"]
    first, second, other = decode(tuple[Op, ...], sent, [bytearray(b"model")])
    assert first.model == second.model == b"model"
    assert other == parse("fc in=1x4x1x1 oc=2")


NETWORK = network_of(
    (
        ("conv2d in=1x8x6x5 oc=8 kernel=3 pad=1", ("x",)),
        ("pooling in=1x8x6x5 mode=max kernel=2 stride=2", ("t0",)),
    )
)
INPUT = numbers((1, 8, 6, 5))
#: A driver that crashes or hangs at a kernel's first launch, or in an inference.
PLUGIN = """
import os, signal, threading
from codl.runtime.launch import BoundKernel
from codl.runtime.session import Session

def fail():
    {fail}

def enqueue(self, queue, usual=BoundKernel.enqueue):
    if self.kernel.function_name == "{kernel}":
        fail()
    return usual(self, queue)

def run(self, usual=Session.run):
    if {in_runs} and self.executable.needs_gpu:
        fail()
    usual(self)

BoundKernel.enqueue, Session.run = enqueue, run
"""
CRASH, HANG = "os.kill(os.getpid(), signal.SIGSEGV)", "threading.Event().wait()"
Failing = Callable[..., None]


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Makes drivers of agents fail."""

    def fail(how: str, *, kernel: str = "", in_runs: bool = False) -> None:
        folder = tmp_path / "failing_plugin"
        folder.mkdir()
        text = PLUGIN.format(fail=how, kernel=kernel, in_runs=in_runs)
        (folder / "__init__.py").write_text(text)
        monkeypatch.setenv(VARIABLE, str(folder))

    return fail


@pytest.fixture
def expected() -> np.ndarray:
    return evaluate(NETWORK, {"x": INPUT})["y"]


@pytest.mark.parametrize(
    ("how", "said"), [(CRASH, r"crashed \(signal 11\)"), (HANG, "gave no answer in time")]
)
def test_an_inference_outlives_its_driver(
    how: str,
    said: str,
    failing: Failing,
    first_soc: LocalSoc,
    expected: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Run, "limit_s", 1.0)
    failing(how, in_runs=True)
    plan = make_plan(NETWORK, first_soc, [(2, "H", 0.5)])
    with (
        closing(connect("process", first_soc)) as target,
        Engine(NETWORK, plan, target, recovers=True) as engine,
    ):
        with pytest.warns(CodlWarning, match=f"Running 'small': The agent of 'process' {said}"):
            found = engine(INPUT)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(engine(INPUT), expected, rtol=1e-4, atol=1e-5)
        assert "process" in engine.gpu_failure


@pytest.mark.parametrize("how", [CRASH, HANG])
def test_a_kernel_that_takes_its_process_down_is_named_and_replaced(
    how: str,
    failing: Failing,
    first_soc: LocalSoc,
    expected: np.ndarray,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Load, "limit_s", 1.5)
    failing(how, kernel="conv2d_direct")
    plan = default_plan(NETWORK, first_soc, "gpu", variants={"op0": "gpu_direct"}, chained=False)
    with closing(connect("process", first_soc)) as target:
        with pytest.warns(CodlWarning, match="'op0' runs in .* and not in gpu_direct"):
            engine = Engine(NETWORK, plan, target)
        with engine:
            (fallback,) = engine.fallbacks
            assert (fallback.layer, fallback.variant) == ("op0", "gpu_direct")
            assert "The agent of 'process'" in fallback.reason
            np.testing.assert_allclose(engine(INPUT), expected, rtol=1e-4, atol=1e-4)


def test_who_measures_is_told_of_a_driver_that_crashes(
    failing: Failing, first_soc: LocalSoc
) -> None:
    failing(CRASH, in_runs=True)
    plan = make_plan(NETWORK, first_soc, [(2, "H", 0.5)])
    with (
        closing(connect("process", first_soc)) as target,
        Engine(NETWORK, plan, target) as engine,
        pytest.raises(DeviceError, match=r"crashed \(signal 11\)"),
    ):
        engine(INPUT)
