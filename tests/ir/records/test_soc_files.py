"""SoC files: shipped ones, users' and devices'; each is read, or one error says why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.simulated import REPLAYED, SOC
from support.whole_way import codl
from typer.testing import CliRunner

from codl import files
from codl.cli.app import app
from codl.errors import CodlError, InvalidFileError, UnknownNameError, UnsupportedError
from codl.files import own_or_shipped
from codl.ir import yaml_file
from codl.ir.records import soc as socs
from codl.ir.records.soc import Chip, PublishedSoc, Soc
from codl.machine.placement import LocalSoc
from codl.targets.detect import completed, contradiction


@pytest.mark.parametrize("value", ["2026-99-99", "9" * 5000])
def test_yaml_that_its_reader_stumbles_over_is_a_wrong_file(tmp_path: Path, value: str) -> None:
    path = tmp_path / "there.yaml"
    path.write_text(f"name: {value}\n")
    with pytest.raises(CodlError, match=r"there\.yaml"):
        socs.read(path)


@pytest.mark.parametrize("name", ["../../evil", "a/b", ".hidden", "-o", "x\n"])
def test_a_name_that_is_a_path_is_refused(name: str, tmp_path: Path) -> None:
    """Folders are named after it."""
    path = yaml_file.write({**SOC.to_dict(), "name": name}, tmp_path / "soc.yaml")
    with pytest.raises(InvalidFileError, match=r"name: .* cannot be the name of a file"):
        socs.read(path)
    with pytest.raises(CodlError, match="cannot be the name of a file"):
        socs.own_path_of(name)


USUAL = Path("predictors")


def test_what_the_user_has_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own, others = tmp_path / "own", tmp_path / "codl"
    monkeypatch.setattr(files, "ROOTS", (tmp_path / "nowhere", others))
    (others / "predictors" / "board").mkdir(parents=True)
    assert own_or_shipped("board", USUAL, USUAL) == others / "predictors" / "board"
    assert own_or_shipped("phone", USUAL, USUAL) == USUAL / "phone"
    assert own_or_shipped("board", own, USUAL) == own / "board"
    (USUAL / "board").mkdir(parents=True)
    assert own_or_shipped("board", USUAL, USUAL) == USUAL / "board"


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


def test_commands() -> None:
    sources = {one["name"]: one.get("source") for one in codl("soc", "list")["socs"]}
    assert sources == {**dict.fromkeys(PUBLISHED, "published"), "epyc2": None}
    shown = codl("soc", "show", "kirin990")
    assert shown["source"] == "published"
    assert "kirin990.yaml" in shown["sources"]["gpu.wave_size"]
    result = CliRunner().invoke(app, ["search", "vgg16", "--soc", "sdm888"])
    assert result.exit_code == 1


def test_the_source_is_kept_in_the_file(tmp_path: Path) -> None:
    path = REPLAYED.save(tmp_path / "phone.yaml")
    assert socs.load(path) == REPLAYED
    assert "source" not in SOC.to_dict()
    path.write_text(path.read_text().replace("source: replayed", "source: guessed"))
    with pytest.raises(InvalidFileError, match="source: must be one of measured, replayed"):
        socs.load(path)


ADRENO = "QUALCOMM Adreno(TM)"


def found(gpu: str, version: str, chip: Chip | None = None, type: str = "gpu") -> Soc:
    side = replace(SOC.gpu, name=gpu, opencl_version=version, type=type)
    return replace(SOC, gpu=side, chip=chip)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("sdm865", found(ADRENO, "OpenCL 2.0 Adreno(TM) 650", Chip("SM8250"))),
        ("sdm865", found(ADRENO, "OpenCL 3.0")),
        ("kirin970", found("Mali-G72", "OpenCL 2.0 v1.r14p0", Chip("", "", ("hisilicon,hi3670",)))),
        ("dimensity8050", found("Mali-G77 MC9 r0p1", "OpenCL 2.0 v1.r32p1", Chip("MT6893Z"))),
    ],
)
def test_a_device_may_be_the_published_chip(name: str, device: Soc) -> None:
    assert contradiction(published(name), device, "X") == ""


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [
        ("sdm865", found(ADRENO, "OpenCL 3.0 Adreno(TM) 730"), "Adreno(TM) 730"),
        ("sdm865", found(ADRENO, "OpenCL 3.0", Chip("SM8450")), "'SM8450'"),
        ("sdm865", found("Mali-G77", "OpenCL 2.0"), "Mali-G77"),
        ("sdm865", found("cpu-cortex-a77-0xd0d", "OpenCL 3.0 PoCL", type="cpu"), "cpu-cortex-a77"),
        ("kirin970", found("Mali-G71", "OpenCL 2.0", Chip("kirin970")), "Mali-G71"),
    ],
)
def test_another_chip_is_named_beside_the_published_one(name: str, device: Soc, said: str) -> None:
    soc = published(name)
    problem = contradiction(soc, device, "R58M123ABC")
    assert said in problem
    assert "'R58M123ABC'" in problem
    assert f"{name!r} is {soc.description}" in problem
    assert str(soc.gpu.name) in problem


def test_values_of_the_device_go_first_and_published_ones_fill_gaps() -> None:
    soc = published("sdm865")
    device = found(ADRENO, "OpenCL 2.0 Adreno(TM) 650")
    device = replace(device, gpu=replace(device.gpu, global_mem_cache_size=0, compute_units=3))
    whole = completed(soc, device)
    assert whole.description == "Snapdragon 865 (SM8250)"
    assert (whole.gpu.name, whole.gpu.compute_units) == (ADRENO, 3)
    assert whole.gpu.global_mem_cache_size == 131072
    assert whole.cpu.clusters == soc.cpu.clusters
    assert "original CoDL" in whole.sources["gpu.global_mem_cache_size"]
    assert whole.sources["cpu.clusters"].startswith("published: ")
    assert "gpu.compute_units" not in whole.sources
    assert socs.from_dict(whole.to_dict(), socs.own_path_of("sdm865")) == whole


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"description": "other"}, True),
        ({"cpu": {"clusters": []}}, True),
        ({"gpu": {"compute_units": 99}}, False),
        ({"name": "other"}, False),
    ],
)
def test_a_dataset_goes_on_where_only_what_describes_has_changed(
    first_soc: LocalSoc, change: dict[str, object], is_same: bool
) -> None:
    content = first_soc.to_dict()
    for key, value in change.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    assert first_soc.is_as_in(content) is is_same
    assert not first_soc.is_as_in(None)


def test_values_of_a_soc_file_are_known_or_of_earlier_versions(first_soc: LocalSoc) -> None:
    content = first_soc.to_dict()
    content["gpu"] |= {"zero_copy": True, "preferred_memory": {"conv2d": "buffer"}}
    content["gpu"] |= {"svm_atomics": True, "signal": "flag", "svm": "none"}
    assert socs.from_dict(content, Path("x.yaml")) == first_soc.facts
    content["gpu"]["element"] = "some"
    with pytest.raises(InvalidFileError, match=r"gpu.element: must be one of"):
        socs.from_dict(content, Path("x.yaml"))
