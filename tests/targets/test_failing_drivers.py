"""Drivers that crash or hang behind an agent: the inference ends all the same, and says why."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.executables import network_of, numbers
from support.plans import make_plan

from codl.engine.engine import Engine
from codl.errors import CodlWarning, DeviceError
from codl.machine.placement import LocalSoc
from codl.plan.build_plan import default_plan
from codl.registry import VARIABLE
from codl.targets.connect import connect
from codl.targets.model_requests import Load, Run

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
def expected(first_soc: LocalSoc) -> np.ndarray:
    layers = NETWORK.layers
    values = {"x": INPUT}
    for layer in layers:
        inputs = [values[name] for name in layer.inputs]
        values[layer.output] = layer.op.reference(inputs, layer.weights).astype(np.float32)
    return values[layers[-1].output]


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
