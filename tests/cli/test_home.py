"""The SoC of commands that name none, and what `codl models` says of models."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support import command_line

from codl.errors import CodlError
from codl.files import HOME
from codl.frontend.models.builder import ModelBuilder
from codl.ir import to_text
from codl.jobs.options import usual_soc
from codl.measure.dataset import Dataset
from codl.measure.tasks import load_ops

assert Path() == HOME, "these tests work in folders of their own"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CODL_SOC", raising=False)
    return tmp_path


def describe(name: str, *, measured: float | None = None) -> None:
    """A SoC of this machine, with a dataset of some age where it was measured."""
    Path("socs").mkdir(exist_ok=True)
    for suffix in (".yaml", ".local.yaml"):
        Path("socs", name + suffix).write_text("")
    if measured is not None:
        dataset = Dataset.of(name)
        dataset.write_manifest({"source": "measured", "runs": {}})
        os.utime(dataset.manifest_path, (measured, measured))


def test_the_usual_soc_is_the_one_measured_last(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CodlError, match="`codl soc detect` describes this machine"):
        usual_soc(runs=True)
    assert usual_soc(runs=False)[0] == "epyc2", "which comes with codl"
    describe("rock")
    assert (usual_soc(runs=True)[0], usual_soc(runs=False)[0]) == ("rock", "rock")
    describe("board")
    with pytest.raises(CodlError, match=r"Name one .* board, rock"):
        usual_soc(runs=True)
    describe("host")
    assert usual_soc(runs=True)[0] == "host"
    describe("rock", measured=1000)
    describe("board", measured=2000)
    assert usual_soc(runs=True)[0] == "board"
    describe("rock", measured=3000)
    assert usual_soc(runs=True)[0] == "rock"
    monkeypatch.setenv("CODL_SOC", "host")
    assert usual_soc(runs=True)[1] == "as CODL_SOC says"


def test_a_command_says_which_soc_it_took(home: Path) -> None:
    done = command_line.run(home, "dataset", "info", "--json")
    assert json.loads(done.stdout)["soc"] == "epyc2"
    assert "SoC epyc2: it comes with codl" in done.stderr
    named = command_line.run(home, "dataset", "info", "--soc", "epyc2", "--json")
    assert "it comes with codl" not in named.stderr


def test_models_say_what_is_known_of_them_here(home: Path) -> None:
    b = ModelBuilder("net")
    x = b.relu(b.conv(b.input("image", (1, 3, 8, 8)), 4, 3, pad=1))
    b.output(b.fully_connected(b.flatten(x), 10))
    (home / "net.onnx").write_bytes(b.build().SerializeToString())
    done = command_line.run(home, "models", "net.onnx", "matmul", "--soc", "epyc2", "--json")
    net, matmul = json.loads(done.stdout)["models"]
    assert (net["parameters"], net["inputs"]) == (b.parameters, {"image": [1, 3, 8, 8]})
    assert (net["ops"], net["kinds"]) == (2, {"conv2d": 1, "fc": 1})
    assert matmul["ops"] == len({to_text(op) for op in load_ops(["matmul"])})
    every = json.loads(command_line.run(home, "models", "--json").stdout)["models"]
    assert {"vgg16", "bert"} <= {model["name"] for model in every}
