"""GPUs of which few multiprocessors are left: the plugin, and the script behind its curves."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import curve_file
import curves
import pytest
import stage_socs

from codl.errors import CodlError
from codl.ir import parse
from codl.ir.environment import Environment
from codl.ir.records import soc as socs
from codl.ir.records.results import Digests
from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.machine.placement import LocalSoc, Placement
from codl.measure.dataset import Dataset, DispatchRow, OpRow
from codl.registry import rolled_back
from codl.runtime.drivers import cl_module
from codl.runtime.opencl import OpenClDevice

OP = "conv2d in=1x16x10x10 oc=64 kernel=3x3 pad=1"


def card() -> LocalSoc:
    """A machine with a GPU, of test data."""
    facts = socs.load("epyc2")
    gpu = replace(facts.gpu, name="Test GPU", type="gpu", compute_units=132)
    cpu = replace(facts.cpu, threads=16)
    return LocalSoc.of(replace(facts.facts, cpu=cpu, gpu=gpu), Placement("test", tuple(range(16))))


def cores() -> LocalSoc:
    """A machine without one, as `codl soc detect` divides it."""
    facts = socs.load("epyc2")
    gpu, cpu = replace(facts.gpu, compute_units=8), replace(facts.cpu, threads=8)
    placement = Placement("test", tuple(range(8)), tuple(range(8, 16)))
    return LocalSoc.of(replace(facts.facts, cpu=cpu, gpu=gpu), placement)


def test_sizes_of_a_gpu_are_socs_of_their_own() -> None:
    stage = stage_socs.of_multiprocessors(card(), 4)
    assert (stage.name, stage.serial) == ("left4", "stage:4")
    assert stage.soc.description == "Test GPU, 4 of 132 multiprocessors"
    assert stage.soc.gpu.compute_units == 4
    assert stage.soc.placement == card().placement
    for left in (0, 133):
        with pytest.raises(CodlError, match=f"{left} of 132"):
            stage_socs.of_multiprocessors(card(), left)


def test_cores_are_divided_from_either_end() -> None:
    stage = stage_socs.of_cores(cores(), 2, 8)
    assert (stage.name, stage.serial) == ("cores2-8", "local")
    assert stage.soc.placement.cpu_cores == (0, 1)
    assert stage.soc.placement.gpu_cores == tuple(range(8, 16))
    assert (stage.soc.cpu.threads, stage.soc.gpu.compute_units) == (2, 8)
    for pair in ((0, 8), (8, 0), (9, 8)):
        with pytest.raises(CodlError, match=f"{pair[0]}:{pair[1]} cannot be had of 16 cores"):
            stage_socs.of_cores(cores(), *pair)
    with pytest.raises(CodlError, match="is a GPU"):
        stage_socs.of_cores(card(), 8, 8)


def test_rows_of_a_common_side_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = (stage_socs.of_multiprocessors(card(), left) for left in (4, 8))
    assert stage_socs.take_rows(other, [one]) == 0
    _write_dataset(one.soc)
    assert stage_socs.take_rows(other, [one]) == 1
    own = Dataset.of("left8")
    assert set(own.tables()) == {"conv2d_cpu_gemm"}
    assert [row.run for row in own.table("conv2d_cpu_gemm").read()] == ["run1"]
    assert other.soc.is_as_in(own.manifest()["soc"])
    run = own.manifest()["runs"]["run1"]
    assert run["anchors_ms"] == {"cpu": {OP: 1.0}}
    assert run["serial"] == "stage:4"
    assert stage_socs.take_rows(other, [one]) == 0  # what is there stays


def _write_dataset(soc: LocalSoc) -> None:
    dataset = Dataset.of(soc.name)
    row = OpRow(op=OP, dim="H", share=1.0, part=OP, latency_ms=5, run="run1")
    for name in ("conv2d_cpu_gemm", "conv2d_gpu_direct"):
        dataset.table(name).append(row)
    dispatch = DispatchRow(processor="gpu", count=1, latency_ms=5, run="run1")
    dataset.table("dispatch").append(dispatch)
    run = {"anchors_ms": {"cpu": {OP: 1.0}, "gpu": {OP: 2.0}}, "serial": "stage:4"}
    content = {"source": "measured", "soc": soc.to_dict(), "runs": {"run1": run}}
    dataset.write_manifest(content)


def rows(model: str, status: str = "ok") -> list[dict[str, Any]]:
    latency = {"median": 8.0, "p20": 8.0, "p80": 9.0, "runs": 9} if status == "ok" else None
    own = {"model": model, "latency_ms": latency, "predicted_ms": 7.0}
    return [
        {**own, "strategy": name, "source": "simulated", "status": status}
        for name in ("cpu", "gpu", "codl")
    ]


def recording(driver: str, model: str) -> dict[str, Any]:
    """What an evaluation says of itself."""
    environment = Environment(machine="m", system="s", driver=driver)
    digests = Digests(dataset="d", models={model: f"digest of {model}"})
    return {"environment": asdict(environment), "digests": asdict(digests)}


def test_the_file_grows_by_models_and_goes_on_with_what_failed(tmp_path: Path) -> None:
    """Each part says on what it was measured."""
    path = tmp_path / "results" / "curve.json"
    soc = stage_socs.of_multiprocessors(card(), 4).soc.to_json()
    file = curve_file.CurveFile(path)
    file.add(soc, "stage:4", curve_file.failed("testnet", "the process was ended"))
    assert curve_file.CurveFile(path).has("left4", "testnet")
    assert not curve_file.CurveFile(path).is_measured("left4", "testnet")
    file.forget("left4", ["testnet"])
    assert not curve_file.CurveFile(path).has("left4", "testnet")
    file.add(soc, "stage:4", rows("testnet"), recording("7.1", "testnet"))
    file.add(soc, "stage:4", rows("other"), recording("7.1", "other"))
    file.add(soc, "stage:4", rows("third", "failed"))
    file.add(soc, "stage:4", rows("new"), recording("7.2", "new"))
    known = curve_file.CurveFile(path)
    assert [known.is_measured("left4", model) for model in ("testnet", "third")] == [True, False]
    assert not known.is_measured("left8", "testnet")
    result = curves.load_curve(path)
    assert [len(own.rows) for own in result.evaluations] == [9, 3]
    first, second = result.evaluations
    assert set(first.digests.models) == {"testnet", "other"}
    assert [own.environment.driver for own in (first, second)] == ["7.1", "7.2"]


class NoCompanion:
    """Counts the starts of a companion that occupies nothing."""

    starts = 0

    def __init__(self, context: object, left: int) -> None:
        assert left == 3

    def start(self) -> None:
        type(self).starts += 1

    def stop(self) -> None: ...


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name in ("Buffer", "Image"):  # `Kept` replaces them for the whole process
        monkeypatch.setattr(cl_module(), name, getattr(cl_module(), name))
    with rolled_back(always=True):
        device = pytest.importorskip("codl_stage.device")
        monkeypatch.setattr(device, "Companion", NoCompanion)
        yield pytest.importorskip("codl_stage.target")


def test_rows_are_measured_beside_the_companion(first_soc: Soc, plugin: ModuleType) -> None:
    op = parse("conv2d in=1x16x9x9 oc=16 kernel=3x3 pad=1")
    with closing(plugin.StageTarget("stage:3", first_soc)) as target:
        rows, _ = target.bench(op, Tuning())
        assert type(target.device).__name__ == "StageDevice"
    assert rows
    assert NoCompanion.starts > 0


def test_memory_without_users_is_released(plugin: ModuleType, first_gpu: OpenClDevice) -> None:
    cl = cl_module()
    kept = importlib.import_module("codl_stage.kept").Kept()
    used = cl.Buffer(first_gpu.context, cl.mem_flags.READ_WRITE, 64)
    unused = cl.Buffer(first_gpu.context, cl.mem_flags.READ_WRITE, 64)
    assert isinstance(unused, cl.MemoryObject)
    del unused
    assert len(kept) == 2
    kept.release()
    assert len(kept) == 1
    assert used.size == 64
    del used
    kept.release()
    assert len(kept) == 0
