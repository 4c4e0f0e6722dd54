"""Drivers that fail in any of their calls: a right answer or an error, and nothing left behind."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.devices import here
from support.executables import network_of, numbers
from support.failing_driver import Calls, calls_of
from support.plans import make_plan
from support.synthetic_predictors import SyntheticContext

from codl.engine.engine import Engine
from codl.errors import CodlError, CodlWarning, DeviceError
from codl.ir import Array, Network
from codl.ir.executable import Executable
from codl.ir.plan import Plan
from codl.ir.records.soc import Soc
from codl.jobs.run import measure
from codl.lower import lowering
from codl.machine import cache
from codl.machine.placement import LocalSoc
from codl.plan.build_plan import default_plan
from codl.plan.strategies.adapter import FIRST, PlanAdapter
from codl.runtime.opencl import OpenClDevice

OUT_OF_RESOURCES, NO_MEMORY, NO_HOST_MEMORY, GONE, LOST = -5, -4, -6, -2, -36
#: A convolution, a join, a pooling and a product, cut along every dimension: so data is shared.
NETWORK = network_of(
    (
        ("conv2d in=2x8x6x5 oc=8 kernel=3 pad=1", ("x",)),
        ("eltwise in=2x8x6x5,2x8x6x5 act=relu", ("t0", "x")),
        ("pooling in=2x8x6x5 mode=max kernel=2 stride=2", ("t1",)),
        ("fc in=2x8x3x2 oc=12", ("t2",)),
    )
)
CUTS = ((2, "H", 0.5), (1, "N", 0.5), (1, "OC", 0.4))
INPUT = numbers((2, 8, 6, 5))


@pytest.fixture
def calls(devices: object) -> Iterator[Calls]:
    with calls_of() as own:
        yield own


@pytest.fixture
def expected(first_soc: LocalSoc) -> Array:
    plan = default_plan(NETWORK, first_soc, "cpu")
    with Engine(NETWORK, plan, here(first_soc)) as engine:
        return engine(INPUT)


@pytest.fixture(autouse=True)
def lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many engines of few plans are made here, which is nothing of what is tested."""
    known: dict[object, Executable] = {}

    def lower(network: Network, plan: Plan, soc: Soc, *args: Any, **options: Any) -> Executable:
        key = (network.name, plan.strategy, repr(soc), repr(options))
        if key not in known:
            known[key] = lowering.lower(network, plan, soc, *args, **options)
        return known[key]

    monkeypatch.setattr("codl.engine.engine.lower", lower)


def ways(soc: LocalSoc) -> list[LocalSoc]:
    """Memory that both processors see, where there is such, and memory that is mapped."""
    mapped = replace(soc, gpu=replace(soc.gpu, fine_grained_svm=False))
    return [soc, mapped] if soc.gpu.fine_grained_svm else [mapped]


def close(got: Array, expected: Array) -> bool:
    return np.allclose(got, expected, rtol=1e-4, atol=1e-5)


def threads_of_engines() -> int:
    """All but those of the process, which are made as a batch first needs them and stay."""
    return sum(not thread.name.startswith("lane_") for thread in threading.enumerate())


def test_a_call_that_fails_in_an_inference_is_made_up_for_by_the_cpu(
    soc: LocalSoc, calls: Calls, expected: Array
) -> None:
    failed = set()
    for way in ways(soc):
        target, plan = here(way), make_plan(NETWORK, way, CUTS)
        with Engine(NETWORK, plan, target, recovers=True) as engine:
            calls.plan()
            assert close(engine(INPUT), expected)
            last = calls.count
        threads, sessions = threads_of_engines(), []
        for number in range(1, last + 1):
            with Engine(NETWORK, plan, target, recovers=True) as engine:
                sessions.append(weakref.ref(engine.loaded))
                # By turns one call, and from that one on every call.
                calls.plan(number, *((OUT_OF_RESOURCES, 1), (LOST, inf))[number % 2])
                with pytest.warns(CodlWarning, match="The CPU does this inference again"):
                    found = engine(INPUT)
                failed.add(calls.failed[0])
                assert close(found, expected), calls.failed
                assert close(engine(INPUT), expected)
                assert engine.plan.strategy == "cpu"
                assert engine.gpu_failure.startswith("Running 'small', ")
            calls.plan()
        gc.collect()
        assert not any(session() for session in sessions)
        assert threads_of_engines() == threads
    assert failed >= {"enqueue_map_buffer", "MemoryMap.release", "CommandQueue.flush"}


def test_a_call_that_fails_while_an_engine_is_made_is_got_around_or_told(
    soc: LocalSoc, calls: Calls, expected: Array
) -> None:
    told = 0
    for way in ways(soc):
        target, plan = here(way), make_plan(NETWORK, way, CUTS)
        Engine(NETWORK, plan, target).close()
        calls.plan()
        with Engine(NETWORK, plan, target):
            numbers = calls.every_kind()
        for number in numbers:
            calls.plan(number, (NO_MEMORY, NO_HOST_MEMORY, GONE)[number % 3])
            try:
                with warnings.catch_warnings(action="ignore"):
                    engine = Engine(NETWORK, plan, target)
            except CodlError:
                told += 1
                continue
            finally:
                assert calls.failed
                calls.plan()
            with engine:
                assert close(engine(INPUT), expected)
    assert told


def test_a_call_that_fails_while_a_device_is_opened_is_told(
    soc: LocalSoc, calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    OpenClDevice(soc)
    for number in range(1, calls.count + 1):
        calls.plan(number, NO_HOST_MEMORY, inf)
        with pytest.raises(DeviceError, match="OUT_OF_HOST_MEMORY"):
            OpenClDevice(soc)


def test_who_measures_is_told_of_a_gpu_that_fails(soc: LocalSoc, calls: Calls) -> None:
    with Engine(NETWORK, make_plan(NETWORK, soc, CUTS), here(soc)) as engine:
        calls.plan(1, LOST, inf)
        with pytest.raises(DeviceError, match=r"^Running 'small', .*INVALID_COMMAND_QUEUE: "):
            engine(INPUT)
        with pytest.raises(DeviceError, match="INVALID_COMMAND_QUEUE"):
            engine.profile()
        calls.plan()


def test_a_gpu_that_fails_while_it_is_timed_is_made_up_for(
    first_soc: LocalSoc, calls: Calls, expected: Array
) -> None:
    target, plan = here(first_soc), make_plan(NETWORK, first_soc, CUTS)
    with Engine(NETWORK, plan, target, recovers=True) as engine:
        calls.plan()
        engine(INPUT)
        calls.plan(calls.count + 1, OUT_OF_RESOURCES)
        with pytest.warns(CodlWarning, match="OUT_OF_RESOURCES"):
            done = measure(engine, target, {"x": INPUT}, None, rounds=2)
    assert close(done.outputs["y"], expected)
    assert {placed.processor for placed in done.placed} == {"cpu"}
    assert {span.kind for span in done.spans} == {"net"}
    assert done.latency_ms.runs == 2


@pytest.mark.parametrize("where", ["inference", "profile"])
def test_an_engine_that_adapts_goes_on_without_its_gpu(
    where: str, first_soc: LocalSoc, calls: Calls, expected: Array
) -> None:
    target, plan = here(first_soc), make_plan(NETWORK, first_soc, CUTS)
    context = SyntheticContext(first_soc, target=target)
    with Engine(NETWORK, plan, target, recovers=True) as engine:
        engine.adapt(PlanAdapter(context, NETWORK))
        calls.plan()
        engine(INPUT)
        of_inference = calls.count
        for _ in range(FIRST - 2):
            engine(INPUT)
        assert engine.adaptation is not None
        calls.plan(3 if where == "inference" else of_inference + 3, OUT_OF_RESOURCES)
        with pytest.warns(CodlWarning, match="OUT_OF_RESOURCES"):
            assert close(engine(INPUT), expected)
        assert engine.adaptation is None
        assert close(engine(INPUT), expected)


def test_a_gpu_that_fails_under_several_threads_gives_nobody_a_wrong_output(
    first_soc: LocalSoc, calls: Calls
) -> None:
    plan = make_plan(NETWORK, first_soc, CUTS)
    inputs = [np.roll(INPUT, number) for number in range(40)]
    with (
        Engine(NETWORK, default_plan(NETWORK, first_soc, "cpu"), here(first_soc)) as alone,
        Engine(NETWORK, plan, here(first_soc), recovers=True) as engine,
        ThreadPoolExecutor(4) as pool,
    ):
        expected = [alone(x) for x in inputs]
        calls.plan(150, LOST, inf)
        with pytest.warns(CodlWarning) as warned:
            found = list(pool.map(engine, inputs))
        calls.plan()
        assert len(warned) == 1
        assert all(map(close, found, expected))


def test_memory_that_a_failed_device_may_still_write_is_kept(
    first_soc: LocalSoc, calls: Calls
) -> None:
    plan, device = make_plan(NETWORK, first_soc, CUTS), here(first_soc).device
    engine = Engine(NETWORK, plan, here(first_soc))
    handles = weakref.ref(engine.loaded._handles)  # type: ignore[attr-defined]
    calls.plan(1, LOST, inf)
    engine.close()
    assert handles() is not None
    calls.plan()
    device.release(None)
    gc.collect()
    assert handles() is None
