"""What lies in codl's home: the SoC of commands that name none, `codl runs`, `codl models`."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import command_line
from support.some import some

from codl.api.home import best_gains, home_items, usual_soc
from codl.errors import CodlError
from codl.files import HOME
from codl.frontend.models.builder import ModelBuilder
from codl.ir import to_text
from codl.measure.dataset import Dataset
from codl.measure.tasks import load_ops
from codl.records.soc import Soc

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
    assert usual_soc(runs=False).name == "epyc2", "which comes with codl"
    describe("rock")
    assert (usual_soc(runs=True).name, usual_soc(runs=False).name) == ("rock", "rock")
    describe("board")
    with pytest.raises(CodlError, match=r"Name one .* board, rock"):
        usual_soc(runs=True)
    describe("host")
    assert usual_soc(runs=True).name == "host"
    describe("rock", measured=1000)
    describe("board", measured=2000)
    assert usual_soc(runs=True).name == "board"
    describe("rock", measured=3000)
    assert usual_soc(runs=True).name == "rock"
    monkeypatch.setenv("CODL_SOC", "host")
    assert usual_soc(runs=True).reason == "as CODL_SOC says"


def test_a_command_says_which_soc_it_took(home: Path) -> None:
    done = command_line.run(home, "dataset", "info", "--json")
    assert json.loads(done.stdout)["soc"] == "epyc2"
    assert "SoC epyc2: it comes with codl" in done.stderr
    named = command_line.run(home, "dataset", "info", "--soc", "epyc2", "--json")
    assert "it comes with codl" not in named.stderr


def row(model: str, strategy: str, speedup: float, **more: Any) -> dict[str, Any]:
    return {"model": model, "strategy": strategy, "speedup": speedup, "source": "measured", **more}


def write_eval(path: Path, *rows: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"command": "eval", "commit": "abc", "created": "2026-01-02T03:04:05+00:00"}
    path.write_text(json.dumps({**about, "soc": {"name": "host"}, "rows": rows}))


def test_gains_are_of_what_codl_measured() -> None:
    rows = [row("m/net.onnx", "cpu", 1.0), row("m/net.onnx", "codl", 1.5),
            row("m/net.onnx", "ort", 9.0, peer={"version": "1"}),
            {**row("m/net.onnx", "ideal", 9.0), "source": "computed"}]  # fmt: skip
    assert best_gains({"rows": rows}) == {"net": 1.5}


def test_runs_lists_what_lies_there(home: Path, first_soc: Soc) -> None:
    first_soc.save(home / "socs" / "test.yaml")
    dataset = Dataset.of("test")
    run = {"commit": "def", "created": "2026-01-01T00:00:00+00:00"}
    dataset.write_manifest({"source": "measured", "runs": {"run1": run}})
    write_eval(home / "results" / "eval.json", row("net", "codl", 1.25))
    plan = {"digest": "x", "chains": [], "model": "net", "strategy": "codl", "soc": "test"}
    (home / "plan.json").write_text(json.dumps({**plan, "predicted_ms": 3.0}))
    (home / "broken.codl").write_bytes(b"no bundle")
    (home / "other.json").write_text("[1]")
    (home / "half.json").write_text('{"command": "eval"')
    items = {Path(item.path).name: item for item in home_items()}
    assert items.keys() == {"test.yaml", "test", "eval.json", "plan.json", "broken.codl",
                            "half.json"}  # fmt: skip
    assert (items["test.yaml"].kind, items["test.yaml"].soc) == ("SoC", first_soc.name)
    assert (items["test"].kind, items["test"].commit) == ("dataset", "def")
    evaluation = items["eval.json"]
    assert (evaluation.kind, evaluation.about) == ("eval", "net 1.25")
    assert (evaluation.soc, evaluation.commit, evaluation.when[:10]) == (
        "host", "abc", "2026-01-02")  # fmt: skip
    assert (items["plan.json"].kind, items["plan.json"].about) == (
        "plan", "net by codl, 3.0 ms predicted")  # fmt: skip
    assert all(items[name].problem for name in ("broken.codl", "half.json"))
    done = command_line.run(home, "runs", "results", "--json")
    (item,) = json.loads(done.stdout)["items"]
    assert item["about"] == "net 1.25"


def test_models_say_what_is_known_of_them_here(home: Path) -> None:
    b = ModelBuilder("net")
    x = b.relu(b.conv(b.input("image", (1, 3, 8, 8)), 4, 3, pad=1))
    b.output(b.fully_connected(b.flatten(x), 10))
    (home / "net.onnx").write_bytes(b.build().SerializeToString())
    write_eval(home / "eval.json", row("net", "codl", 1.25), row("vgg16", "codl", 1.5))
    done = command_line.run(home, "models", "net.onnx", "matmul", "--soc", "epyc2", "--json")
    net, matmul = json.loads(done.stdout)["models"]
    assert (net["parameters"], net["inputs"]) == (b.parameters, {"image": [1, 3, 8, 8]})
    assert (net["ops"], net["measured"], net["kinds"]) == (2, 0, {"conv2d": 1, "fc": 1})
    assert (net["gain"], net["evaluated"]) == (1.25, "eval.json")
    files = Dataset.found("epyc2").folder.glob("t_*.csv")
    rows = [row for file in some(files) for row in csv.DictReader(file.open())]
    texts = {to_text(op) for op in load_ops(["matmul"])}
    assert matmul["ops"] == len(texts)
    assert matmul["measured"] == len(texts & {row.get("op") for row in rows})
    every = json.loads(command_line.run(home, "models", "--json").stdout)["models"]
    gains = {model["name"]: model["gain"] for model in some(every)}
    assert (gains["vgg16"], gains["bert"]) == (1.5, None)
