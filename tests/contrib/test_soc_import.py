"""The original CoDL's SoC files, and what is made of one with latencies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from codl.cli.app import app
from codl.contrib.importers.importer import import_soc, import_tables
from codl.errors import CodlError, InvalidFileError
from codl.records import soc as socs
from codl.records.soc_facts import PublishedSoc

#: Four keys and no line end behind them, as the original's files are.
ORIGINAL = (
    "global_mem_cache_size: 1048576\ncompute_units: 9\nmax_work_group_size: 512\n"
    "kernel_wave_size: 4"
)
#: Simulated.
TABLE = "CNN,T_OP,SD_T_OP,PDIM,PRATIO,IH,IW,IC,OC,KH,KW,SH,SW,DH,DW,FLOPS,PARAMS\n"
ROW = "NET,2.5,1,1,0,10,10,16,32,3,3,1,1,1,1,9,9\n"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(ORIGINAL)


def test_four_keys_and_nothing_else() -> None:
    soc, path = import_soc(Path("mine.yaml"), "mine")
    assert path == Path("socs/mine.yaml")
    assert socs.read("mine") == soc
    assert soc.known("gpu") == {
        "global_mem_cache_size": 1048576,
        "compute_units": 9,
        "max_work_group_size": 512,
        "wave_size": 4,
    }
    assert soc.known("cpu") == {}
    assert soc.sources["gpu.wave_size"] == "kernel_wave_size in mine.yaml"


def test_other_facts_stay() -> None:
    before = socs.read("kirin990")
    soc, _ = import_soc(Path("mine.yaml"), "kirin990")
    assert isinstance(before, PublishedSoc)
    assert (soc.cpu, soc.gpu.name) == (before.cpu, before.gpu.name)
    assert (before.gpu.compute_units, soc.gpu.compute_units) == (16, 9)
    assert soc.sources["gpu.compute_units"] == "compute_units in mine.yaml"
    with pytest.raises(CodlError, match=r"kirin990.yaml is there: delete it"):
        import_soc(Path("mine.yaml"), "kirin990")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ORIGINAL.replace("kernel_wave_size: 4", ""), "kernel_wave_size: the key is missing"),
        (ORIGINAL.replace("9", "nine"), "compute_units: expected int, got 'nine'"),
        (f"{ORIGINAL}\nwarp: 1", "Unknown key 'warp'"),
        ("- 1", "expected object"),
    ],
)
def test_bad_files(text: str, message: str) -> None:
    Path("mine.yaml").write_text(text)
    with pytest.raises(InvalidFileError, match=message):
        import_soc(Path("mine.yaml"), "mine")
    assert not Path("socs").exists()


@pytest.mark.parametrize("name", ["../mine", "a/b", "", "a.local", "-o"])
def test_names_stay_in_the_folder(name: str) -> None:
    with pytest.raises(CodlError, match="letters, digits"):
        import_soc(Path("mine.yaml"), name)


def test_latencies_complete_published_facts() -> None:
    """What is published goes into the replayed SoC; only the rest is what is usual."""
    path = Path("t_conv2d_op_cpu.csv")
    path.write_text(TABLE + ROW)
    with pytest.raises(CodlError, match=r"kirin990.yaml has published facts alone: --write-soc"):
        import_tables([path], "kirin990", root=Path("data"))
    import_tables([path], "kirin990", root=Path("data"), write_soc=True)
    soc = socs.load("kirin990")
    assert soc.is_replayed
    assert (soc.gpu.compute_units, soc.gpu.wave_size, soc.cpu.threads) == (16, 8, 4)
    assert (soc.gpu.name, soc.gpu.driver) == ("Mali-G76 MP16", "unknown")
    assert [cluster.max_mhz for cluster in soc.cpu.clusters] == [1950, 2360, 2860]
    assert "kirin990.yaml" in soc.sources["gpu.wave_size"]
    assert "gpu.driver" not in soc.sources
    assert soc.description == "Kirin 990 5G, replayed from somebody's measurements"
    import_tables([path], "kirin990", root=Path("other"))


def test_the_command() -> None:
    command = ["soc", "import", "mine.yaml", "--name", "mine", "--json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert (content["source"], content["file"]) == ("published", "socs/mine.yaml")
    assert content["gpu"]["wave_size"] == 4
