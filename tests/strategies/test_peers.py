"""Other libraries on all cores, each in a process of its own, against ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from support.plans import branching

from codl.errors import CodlError, DeviceError, UnknownNameError
from codl.frontend.convert import convert
from codl.frontend.graph.onnx_import import import_onnx, session_options
from codl.frontend.graph.simplify_pipeline import simplify
from codl.ir.soc import Soc
from codl.measure.interleave import Effort, interleave
from codl.plan.single_processor import default_plan
from codl.strategies.evaluation import max_rel_err
from codl.strategies.peers import PEERS, Job
from codl.strategies.peers.process import (
    PeerProcess,
    check,
    cores_of,
    environment,
    with_opencl_all,
)

INPUT = np.random.default_rng(3).random((1, 3, 37, 29), np.float32)


@pytest.fixture(scope="module")
def job(first_soc: Soc, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("peers")
    proto = branching().build()
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    network = convert(simplify(import_onnx(proto, "branching")))
    return Job(
        model=folder / "model.onnx",
        cores=cores_of(first_soc),
        folder=folder,
        soc=first_soc.save(folder / "soc.yaml"),
        plan=default_plan(network, first_soc, "gpu").save(folder / "plan.json"),
    )


@pytest.fixture(params=PEERS)
def peer(request: pytest.FixtureRequest, job: Job, first_soc: Soc) -> Iterator[PeerProcess]:
    name = request.param
    for package in PEERS[name].packages:
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if name == "opencl-all" and not first_soc.gpu.is_cpu:
        pytest.skip("a real GPU works on no core of this machine")
    process = PeerProcess(name, job)
    yield process
    process.close()


def test_a_peer_agrees_with_the_reference_on_all_cores(peer: PeerProcess, job: Job) -> None:
    os.sched_setaffinity(0, {job.cores[0]})  # as an engine's caller is pinned to the CPU side
    peer.feed({"image": INPUT})
    session = ort.InferenceSession(str(job.model), session_options(1), ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert 0 < peer.run() < 1
    assert peer.run(lead_in=2) > 0
    found = peer.outputs()
    for name, expected in zip(names, session.run(names, {"image": INPUT}), strict=True):
        assert found[name].size == expected.size
        assert max_rel_err(found[name].reshape(expected.shape), expected) <= 1e-3
    assert peer.version
    assert peer.threads == len(job.cores)
    assert set(peer.observed_cores) <= set(job.cores)
    assert peer.busy_cores > 0


def test_a_peer_that_fails_says_why(job: Job, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(DeviceError, match=r"ort: .*broken\.onnx.*failed"):
        PeerProcess("ort", Job(broken, job.cores, tmp_path, job.soc, job.plan))


def test_a_peer_whose_process_dies_leaves_the_others_running(job: Job) -> None:
    dying = PeerProcess("ort", job)
    dying.feed({"image": INPUT})
    dying._process.kill()
    failed: dict[str, CodlError] = {}
    runs = {"ort": dying.run, "other": lambda: 0.5}
    latencies = interleave(runs, Effort(min_rounds=2, min_seconds=0), failed=failed)
    dying.close()
    assert str(failed["ort"]).startswith("ort crashed (signal 9)")
    assert latencies["other"].median == pytest.approx(500)
    assert latencies["other"].runs == 2
    assert set(latencies) == {"other"}


def test_peers_are_checked_before_anything_is_measured(
    first_soc: Soc, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'openvino'"):
        check(["openvin"], first_soc)
    monkeypatch.setattr(PEERS["mnn"], "packages", ("not_a_package",))
    with pytest.raises(CodlError, match=r"'mnn' needs not_a_package.*pip install codl\[peers\]"):
        check(["mnn"], first_soc)
    real = first_soc.to_dict()
    gpu: Any = {**real["gpu"], "type": "gpu"}
    with_gpu = type(first_soc)(first_soc.name, "", first_soc.cpu, type(first_soc.gpu)(**gpu))
    with pytest.raises(CodlError, match="the strategy is called gpu"):
        check(["opencl-all"], with_gpu)
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


def test_rounds_in_random_order_after_a_warm_up_that_counts_for_nothing() -> None:
    called: list[str] = []

    def run(name: str) -> float:
        called.append(name)
        return float(len(called))

    runs = {name: (lambda name=name: run(name)) for name in "ab"}
    latencies = interleave(runs, Effort(warm_up=1, min_rounds=20, min_seconds=0))
    rounds = list(zip(called[::2], called[1::2], strict=True))
    assert len(rounds) == 21
    assert set(rounds) == {("a", "b"), ("b", "a")}
    for name, latency in latencies.items():
        seconds = [at + 1 for at, who in enumerate(called) if who == name][1:]
        assert latency.median == pytest.approx(1e3 * median(seconds))
