"""Where a SoC's parts are: read and checked apart from its facts, and found again where missing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.simulated import SOC, soc_with

from codl.errors import CodlWarning, DeviceError, InvalidFileError, MismatchError, UnsupportedError
from codl.ir.records.soc import Soc
from codl.machine import placement, threads
from codl.machine.hardware import cpu_facts
from codl.machine.placement import LocalSoc, Placement, ProbedDevice, ProbeResult, require_local
from codl.targets import placed
from codl.targets.local import LocalTarget

CORE = min(os.sched_getaffinity(0))
CARD = Placement("nvidia", (CORE,))
HALVED = soc_with(type="cpu", compute_units=1)


def written(soc: Soc, folder: Path, text: str) -> Path:
    path = soc.save(folder / f"{soc.name}.yaml")
    placement.beside(path).write_text(text)
    return path


def test_a_placement_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = SOC.save(tmp_path / "simulated.yaml")
    file = CARD.save(path)
    assert file == tmp_path / "simulated.local.yaml"
    assert file.read_text().splitlines()[1:] == ["icd: nvidia", "cpu_cores:", f"- {CORE}"]
    assert placed.load_local(path) == LocalSoc.of(SOC, CARD)


def test_facts_say_nothing_of_the_place() -> None:
    here = LocalSoc.of(SOC, CARD)
    elsewhere = LocalSoc.of(SOC, replace(CARD, cpu_cores=(7,), icd="another"))
    assert here.to_dict() == elsewhere.to_dict() == SOC.to_dict()
    assert here.facts == elsewhere.facts == SOC
    assert elsewhere.to_json()["cpu"]["cores"] == [7]


BROKEN: list[tuple[str, type[Exception], str]] = [
    ("icd: a", InvalidFileError, r"cpu_cores: the key is missing"),
    ("icd: a\ncpu_cores: [-1]", InvalidFileError, r"cpu_cores\[0\]: expected int >= 0, got -1"),
    ("icd: a\ncpu_cores: [x]", InvalidFileError, r"cpu_cores\[0\]: expected int, got 'x'"),
    ("icd: a\ncores: [1]", InvalidFileError, r"Unknown key 'cores'. Did you mean 'gpu_cores'"),
    ("[icd", InvalidFileError, "not YAML"),
    ("- icd", InvalidFileError, r"top: expected object, got \['icd'\]"),
    ("icd: a\ncpu_cores: [9999]", DeviceError, "wants the cores 9999, but 9999 are not there"),
    (f"icd: a\ncpu_cores: [{CORE}, {CORE}]", DeviceError, "CPU side has a core twice"),
    (f"icd: a\ncpu_cores: [{CORE}]\ncpu_threads: 2", DeviceError, "2 threads need as many cores"),
    (f"icd: a\ncpu_cores: [{CORE}]\ngpu_cores: [{CORE}]", MismatchError, "share the cores"),
]


@pytest.mark.parametrize(("text", "error", "message"), BROKEN, ids=[row[2] for row in BROKEN])
def test_a_placement_that_cannot_be_is_a_clear_error(
    text: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = written(HALVED, tmp_path, text)
    with pytest.raises(error, match=message) as caught:
        placed.load_local(path)
    assert "simulated.local.yaml" in str(caught.value)


def test_a_side_has_the_cores_of_its_kind() -> None:
    with pytest.raises(MismatchError, match=r"is a GPU, which has no host cores, got 3"):
        LocalSoc.of(SOC, replace(CARD, gpu_cores=(3,)))
    with pytest.raises(MismatchError, match=r"has 1 compute units, .* got none"):
        LocalSoc.of(HALVED, CARD)
    with pytest.raises(MismatchError, match=r"has 1 compute units, .* got 3, 4"):
        LocalSoc.of(HALVED, replace(CARD, gpu_cores=(3, 4)))


def test_cores_beside_those_that_a_process_was_started_on_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by taskset, which may be ignored."""
    path = written(SOC, tmp_path, f"icd: nvidia\ncpu_cores: [{CORE}]\n")
    monkeypatch.setattr(threads, "INITIAL_CORES", (CORE + 1,))
    with pytest.warns(
        CodlWarning, match=f"was started on {CORE + 1} alone: .* works on {CORE} too"
    ):
        assert placement.read(SOC, path) is not None


def device(**changes: Any) -> ProbedDevice:
    own = {name: getattr(SOC.gpu, name) for name in ("platform", "name", "driver", "type")}
    sizes = dict.fromkeys(("compute_units", "max_work_group_size", "wave_size"), 4)
    cache = {"global_mem_cache_size": 0, "local_mem_bytes": 0, "unified_memory": False}
    values: dict[str, Any] = {
        **own, **sizes, **cache, "icd": "nvidia", "version": "", "vector_width": 4,
        "memory_types": ("buffer",), "extensions": (), **changes,
    }  # fmt: skip
    return ProbedDevice(**values)


def probed(monkeypatch: pytest.MonkeyPatch, *devices: ProbedDevice) -> None:
    found = [ProbeResult("nvidia", devices)]
    monkeypatch.setattr(LocalTarget, "probe", lambda target: found)


def test_without_a_file_the_device_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SOC.save(tmp_path / "simulated.yaml")
    probed(monkeypatch, device(name="another"), device(icd="the right one"))
    with pytest.warns(CodlWarning, match=r"no .*simulated.local.yaml.* `codl soc detect"):
        found = placed.load_local(path)
    assert found.facts == SOC
    assert found.placement == Placement("the right one", cpu_facts().cores)


def test_a_device_that_is_not_here_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = SOC.save(tmp_path / "simulated.yaml")
    probed(monkeypatch, device(name="another"))
    with pytest.raises(DeviceError, match=r"device 'gpu' of 'none' is not here .*'another'"):
        placed.load_local(path)


def test_what_is_known_from_elsewhere_cannot_run(tmp_path: Path) -> None:
    replayed = replace(SOC, source="replayed")
    with pytest.raises(UnsupportedError, match="source: replayed"):
        placed.load_local(replayed.save(tmp_path / "phone.yaml"))
    with pytest.raises(UnsupportedError, match="source: replayed"):
        require_local(replayed)
    with pytest.raises(UnsupportedError, match=r"not known. `codl soc detect"):
        require_local(SOC)
    here = LocalSoc.of(SOC, CARD)
    assert require_local(here) is here
