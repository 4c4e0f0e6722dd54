"""SoCs that come with codl: published facts, each with its source, behind the user's own files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.simulated import REPLAYED, SOC
from typer.testing import CliRunner

from codl import files
from codl.cli.app import app
from codl.errors import InvalidFileError, UnknownNameError, UnsupportedError
from codl.ir.records import soc as socs
from codl.ir.records.soc import PublishedSoc, Soc

#: global_mem_cache_size, compute_units, max_work_group_size and kernel_wave_size, as published.
PUBLISHED = {
    "sdm855": (131072, 2, 1024, 64),
    "sdm865": (131072, 2, 1024, 64),
    "sdm888": (262144, 3, 1024, 64),
    "kirin960": (524288, 8, 384, 4),
    "kirin970": (524288, 8, 384, 4),
    "kirin990": (524288, 16, 384, 8),
    "dimensity8050": (1048576, 9, 512, 4),
}
#: A whole SoC file; simulated.
MINE = """
name: sdm855
description: simulated
cpu: {name: a, threads: 4, simd_floats: 4, l2_cache_bytes: 0}
gpu: {platform: b, name: c, driver: d, type: gpu, compute_units: 2, max_work_group_size: 256,
      wave_size: 64, vector_width: 4, global_mem_cache_size: 0, local_mem_bytes: 0,
      unified_memory: true}
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def published(name: str) -> PublishedSoc:
    soc = socs.read(name)
    assert isinstance(soc, PublishedSoc)
    return soc


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_that_come_with_codl(name: str) -> None:
    soc = published(name)
    gpu = soc.gpu
    facts = (gpu.global_mem_cache_size, gpu.compute_units, gpu.max_work_group_size, gpu.wave_size)
    assert (soc.name, facts) == (name, PUBLISHED[name])
    assert sum(cluster.cores for cluster in soc.cpu.clusters) == 8
    clocks = [cluster.max_mhz for cluster in soc.cpu.clusters]
    assert clocks == sorted(clocks)
    assert name in socs.names()
    with pytest.raises(
        UnsupportedError, match=rf"{name}.*gpu\.driver.*codl collect --soc .* --serial"
    ):
        socs.load(name)


def test_the_users_own_file_goes_first() -> None:
    Path("socs").mkdir()
    Path("socs/sdm855.yaml").write_text(MINE)
    assert isinstance(socs.read("sdm855"), Soc)
    assert socs.load("sdm855").description == "simulated"
    assert socs.names().count("sdm855") == 1
    assert socs.path_of("sdm855") == Path("socs/sdm855.yaml")
    assert socs.path_of("sdm865").name == "sdm865.yaml"
    assert socs.own_path_of("sdm865") == Path("socs/sdm865.yaml")


def test_a_machines_own_files_are_nobody_elses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout has the SoC of the machine it is on, with a file beside it that says where."""
    folder = Path("checkout/socs")
    folder.mkdir(parents=True)
    (folder / "host.yaml").write_text(MINE)
    (folder / "host.local.yaml").write_text("")
    (folder / "phone.yaml").write_text(MINE)
    monkeypatch.setattr(files, "ROOTS", (Path("nowhere"), folder.parent))
    assert socs.names() == ["phone"]
    with pytest.raises(UnknownNameError, match="Known: phone"):
        socs.load("host")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("gpu.name: a", "gpu.type: a", r"gpu.name: no source is named: add 'gpu.name'"),
        ("gpu.name: a", "gpu: a", None),
        ("gpu.name: a", "gpu: a, cpu.name: b", "cpu.name: a source of a value that is not there"),
    ],
)
def test_bad_files(old: str, new: str, message: str | None) -> None:
    text = (
        "name: y\ndescription: z\nsource: published\ncpu: {}\n"
        "gpu: {name: x}\nsources: {gpu.name: a}\n"
    )
    Path("y.yaml").write_text(text.replace(old, new))
    if message is None:
        assert published("y.yaml").gpu.name == "x"
        return
    with pytest.raises(InvalidFileError, match=message):
        socs.read("y.yaml")


def run(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    content: dict[str, object] = json.loads(result.stdout)
    return content


def test_commands() -> None:
    listed = run("soc", "list")["socs"]
    assert isinstance(listed, list)
    sources = {one["name"]: one.get("source") for one in listed}
    assert sources == {**dict.fromkeys(PUBLISHED, "published"), "epyc2": None}
    shown = run("soc", "show", "kirin990")
    assert shown["source"] == "published"
    assert "kirin990.yaml" in shown["sources"]["gpu.wave_size"]  # type: ignore[index]
    result = CliRunner().invoke(app, ["search", "vgg16", "--soc", "sdm888"])
    assert result.exit_code == 1


def test_the_source_is_kept_in_the_file(tmp_path: Path) -> None:
    path = REPLAYED.save(tmp_path / "phone.yaml")
    assert socs.load(path) == REPLAYED
    assert "source" not in SOC.to_dict()
    path.write_text(path.read_text().replace("source: replayed", "source: guessed"))
    with pytest.raises(InvalidFileError, match="source: must be one of measured, replayed"):
        socs.load(path)
