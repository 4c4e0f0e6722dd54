"""Other libraries on all cores, each in a process of its own, against ONNX Runtime."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import onnxruntime as ort
import pytest
from support.plans import branching
from support.references import converted

from codl.errors import CodlError, DeviceError, UnknownNameError
from codl.frontend.graph.integer_products import session_options
from codl.jobs.interleaved import check_peers, with_opencl_all
from codl.machine.placement import LocalSoc
from codl.machine.threads import pinned_to
from codl.measure.closeness import max_rel_err
from codl.measure.peers import PEERS
from codl.measure.timing import Effort, TimedRun, Turns, interleave
from codl.plan.build_plan import default_plan
from codl.targets.base import Target
from codl.targets.peers import PeerProcess, environment

INPUT = np.random.default_rng(3).random((1, 3, 37, 29), np.float32)


@pytest.fixture(scope="module")
def model() -> bytes:
    content: bytes = branching().build().SerializeToString()
    return content


def start(name: str, model: bytes, soc: LocalSoc) -> PeerProcess:
    network = converted(branching())
    plan = default_plan(network, soc, "gpu") if name == "opencl-all" else None
    return PeerProcess(name, model, soc, plan)


@pytest.fixture(params=PEERS)
def peer(
    request: pytest.FixtureRequest, model: bytes, first_soc: LocalSoc
) -> Iterator[PeerProcess]:
    name = request.param
    for package in PEERS[name].packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if name == "opencl-all" and not first_soc.gpu.is_cpu:
        pytest.skip("a real GPU works on no core of this machine")
    process = start(name, model, first_soc)
    yield process
    process.close()


def test_a_peer_agrees_with_the_reference_on_all_cores(
    peer: PeerProcess, model: bytes, first_soc: LocalSoc
) -> None:
    cores = first_soc.placement.cores
    peer.feed({"image": INPUT})
    session = ort.InferenceSession(model, session_options(1), ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    with pinned_to(cores[:1]):  # as while an engine runs
        seconds = peer.run(3)
    assert len(seconds) == 3
    assert min(seconds) > 0
    outputs = peer.outputs()
    for name, expected in zip(names, session.run(names, {"image": INPUT}), strict=True):
        assert outputs[name].size == expected.size
        assert max_rel_err(outputs[name].reshape(expected.shape), expected) <= 1e-3
    assert peer.version
    assert peer.threads == len(cores)
    assert peer.busy_cores > 0


def test_peers_are_started_and_timed_by_targets(target: Target, model: bytes) -> None:
    peer = target.start_peer("ort", model, {"image": INPUT})
    times = target.time({"ort": peer}, Effort(min_rounds=2, min_seconds=0, warm=2))
    assert (times.cold_ms["ort"].runs, times.latency_ms["ort"].runs) == (2, 4)
    assert set(peer.outputs()) == {output.name for output in branching().build().graph.output}
    assert peer.threads == len(target.soc.placement.cores)
    peer.close()


def test_a_peer_that_fails_says_why(first_soc: LocalSoc) -> None:
    with pytest.raises(DeviceError, match=r"model\.onnx.*failed"):
        PeerProcess("ort", b"no model", first_soc)


def test_a_peer_whose_process_dies_leaves_the_others_running(
    model: bytes, first_soc: LocalSoc
) -> None:
    dying = start("ort", model, first_soc)
    dying.feed({"image": INPUT})
    assert dying.agent.pid is not None
    os.kill(dying.agent.pid, signal.SIGKILL)
    runs: dict[str, TimedRun] = {"ort": dying.run, "other": lambda runs: [0.5] * runs}
    turns, failed = interleave(runs, Effort(min_rounds=2, min_seconds=0))
    dying.close()
    assert str(failed["ort"]).startswith("The peer 'ort' crashed (signal 9)")
    assert turns == {"other": Turns([0.5] * 2, [0.5] * 6)}


def test_peers_are_checked_before_anything_is_measured(
    first_soc: LocalSoc, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'openvino'"):
        check_peers(["openvin"], first_soc)
    monkeypatch.setattr(PEERS["mnn"], "packages", ("not_a_package",))
    with pytest.raises(CodlError, match=r"'mnn' needs not_a_package.*pip install codl\[peers\]"):
        check_peers(["mnn"], first_soc)
    with_gpu = replace(first_soc, gpu=replace(first_soc.gpu, type="gpu"))
    with pytest.raises(CodlError, match="the strategy is called gpu"):
        check_peers(["opencl-all"], with_gpu)
    assert with_opencl_all(["ort"], with_gpu) == ["ort"]
    if first_soc.gpu.is_cpu:
        assert with_opencl_all(["ort"], first_soc) == ["ort", "opencl-all"]
    assert with_opencl_all([], first_soc) == []


def test_a_peer_hears_nothing_of_the_threads_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPCPP_CPU_NUM_CUS", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("KMP_AFFINITY", "compact")
    found = environment(3)
    assert found["OMP_NUM_THREADS"] == "3"
    assert not {"DPCPP_CPU_NUM_CUS", "KMP_AFFINITY"} & set(found)
    assert "PATH" in found
