"""The functions of `codl` do what the commands do, and say the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.simulated import SOC
from typer.testing import CliRunner

import codl
from codl.cli.app import app
from codl.errors import CodlError
from codl.ir.plan import load_plan
from codl.measure.dataset import Dataset
from codl.plan.strategies.model_search import FoundBound, FoundPlan

#: What differs between two runs of the same.
TIMES = {"search_ms", "train_s", "seconds", "commit", "created", "environment"}


def told(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    content: dict[str, Any] = json.loads(done.stdout)
    return {key: value for key, value in content.items() if key not in TIMES}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_is_that_of_the_command(here: Path) -> None:
    found = codl.search("yolov2", soc="epyc2", strategy="mulayer")
    assert isinstance(found, FoundPlan)
    found.plan.save("mine.json")
    asked = told("search", "yolov2", "--soc", "epyc2", "--strategy", "mulayer", "-o", "theirs.json")
    assert asked["predicted_ms"] == found.plan.predicted_ms
    mine, theirs = (load_plan(Path(name)) for name in ("mine.json", "theirs.json"))
    assert mine == theirs
    assert mine.origin is not None
    assert mine.origin.dataset
    bound = codl.search("yolov2", soc="epyc2", strategy="ideal")
    assert isinstance(bound, FoundBound)
    assert bound.limit.latency_ms > 0


def test_a_collection_and_its_predictors_are_those_of_the_commands(here: Path) -> None:
    """Of a replay, whose rows are the same each time."""
    recorded = Dataset.found("epyc2").folder
    how = {"ops": ["op_chain"], "shares": [1.0], "samples": 40}
    mine = codl.collect("epyc2", serial=f"replay:{recorded}", output=Path("mine"), **how)  # type: ignore[arg-type]
    theirs = told(
        "collect", "--soc", "epyc2", "--serial", f"replay:{recorded}", "--ops", "op_chain",
        "--shares", "1", "--samples", "40", "--datasets", "theirs",
    )  # fmt: skip
    assert mine.done.rows == theirs["rows"] > 20
    assert mine.to_json().keys() <= theirs.keys() | TIMES
    with pytest.raises(CodlError, match="holds a dataset"):
        codl.collect("epyc2", serial=f"replay:{recorded}", output=Path("mine"), **how)  # type: ignore[arg-type]
    trained = codl.train(
        "epyc2", predictors=["flops_linear"], evaluate=False, dataset=Path("mine"),
        output=Path("one"),
    )  # fmt: skip
    asked = told("train", "--soc", "epyc2", "--predictor", "flops_linear", "--no-evaluate",
                 "--datasets", "theirs", "--predictors", "other")  # fmt: skip
    assert [row["target"] for row in trained.to_json()["predictors"]] == [
        row["target"] for row in asked["predictors"]
    ]
    files = [Path(folder, "epyc2", "flops_linear.json").read_bytes() for folder in ("one", "other")]
    assert files[0] == files[1]


def test_an_evaluation_needs_a_strategy_that_runs() -> None:
    with pytest.raises(CodlError, match="Name at least one of cpu"):
        codl.evaluate(soc="epyc2", models=["matmul"], strategies=["ideal"])


def test_what_is_no_function_of_codl_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nap"):
        codl.nap  # noqa: B018


def test_a_home_is_found_from_any_folder(here: Path) -> None:
    home = here / "home"
    SOC.save(home / "socs" / "mine.yaml")
    code = (
        "import codl; from inspect import signature; from codl.ir.records import soc; "
        "print(codl.home, soc.load('mine').name, signature(codl.dataset).parameters['folder'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"CODL_HOME": str(home), "PATH": "", "PYTHONPATH": str(Path(codl.__file__).parents[1])},
        cwd=here,
        capture_output=True,
        text=True,
        check=True,
    )
    shown, name, *parameter = done.stdout.split()
    assert (shown, name) == (str(home), SOC.name)
    assert str(home / "lat_datasets") in parameter[-1]
