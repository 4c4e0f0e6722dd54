"""What an evaluation writes, also where its battery runs out; the latencies are test data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.phone import BATTERY, make_phone, put
from support.whole_way import EACH
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError
from codl.ir.plan import Chain, Plan
from codl.ir.records.results import EvalRow, Latency
from codl.jobs import collect
from codl.jobs import evaluate as api
from codl.jobs.interleaved import Evaluation, load
from codl.machine.placement import LocalSoc
from codl.machine.system_files import SystemFiles
from codl.targets.local import LocalTarget

MODEL = "matmul"
PLAN = Plan(
    MODEL, "0123", "test", "codl", "", "missing", 1.0, (Chain(("fc1",), "H", 0.5, {"fc1": {}}),)
)


@pytest.fixture(autouse=True)
def _measured(first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder with a SoC: nothing is measured, and two models fail."""
    replace(first_soc, name="test").save(tmp_path / "socs" / "test.yaml")
    monkeypatch.chdir(tmp_path)

    def evaluate(model: str, strategies: Any, context: Any, **how: Any) -> Evaluation:
        if model == "broken.onnx":
            load(model)
        if model == "vgg16":
            raise ZeroDivisionError("by zero")
        rows = [
            EvalRow(model, own.name, Latency(9, 9, 9, 9), None, "measured", plan=PLAN.fingerprint)
            for own in strategies
        ]
        return Evaluation(model, "abc", rows, {}, {PLAN.fingerprint: PLAN})

    monkeypatch.setattr(api, "evaluate_model", evaluate)


def evaluated(models: str, strategies: str, *more: str) -> Result:
    words = ["eval", "--soc", "test", "--models", models, "--strategies", strategies, *more]
    return CliRunner().invoke(app, [*words, "-o", "eval.json"])


def test_a_result_says_what_it_rests_on() -> None:
    limits = {"max_kernel_ms": 2.0, "gpu_duty": 0.5}
    done = evaluated(MODEL, "cpu,codl", "--max-kernel-ms", "2", "--gpu-duty", "0.5")
    assert done.exit_code == 0, done.output
    result = json.loads(Path("eval.json").read_text())
    environment = result["environment"]
    assert environment["driver"]
    assert environment["cpu_cores"]
    assert environment["libraries"]["numpy"]
    assert {"min_seconds": 20, **limits}.items() <= environment["protocol"].items()
    assert result["digests"]["models"] == {MODEL: "abc"}
    assert result["asked"]["strategies"] == ["cpu", "codl"]
    assert result["asked"]["limits"] == limits
    assert [*result["plans"]] == [PLAN.fingerprint]


def test_what_was_measured_before_a_model_that_fails_is_written() -> None:
    Path("broken.onnx").write_bytes(b"no model")
    done = evaluated(f"{MODEL},broken.onnx,vgg16,yolov2", "cpu,ideal")
    assert "2 of 4 models failed" in str(done.exception)
    written = json.loads(Path("eval.json").read_text())["rows"]
    rows = {(row["model"], row["strategy"]): row for row in written}
    assert {model for (model, _), row in rows.items() if row["status"] == "ok"} == {MODEL, "yolov2"}
    assert "not an ONNX model" in rows["broken.onnx", "cpu"]["reason"]
    assert rows["vgg16", "ideal"]["reason"] == "a defect of codl: ZeroDivisionError: by zero"


@pytest.mark.parametrize(
    ("models", "strategies", "message"),
    [
        (f"{MODEL},none.onnx", "cpu", "none.onnx: there is no such file"),
        (MODEL, "cpu,codll", "Unknown strategy 'codll'"),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_measured(
    models: str, strategies: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "evaluate_model", None)
    done = evaluated(models, strategies)
    assert done.exit_code != 0
    assert message in f"{done.output} {done.exception}"


COLLECT = ["collect", "--soc", "test", "--ops", "ops.csv", "--shares", "1", "--json"]


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SystemFiles:
    """This machine, with the system files of a phone."""
    files = make_phone(tmp_path / "phone")
    (tmp_path / "ops.csv").write_text('op\n"fc in=1x32x5x5 oc=40"\n')
    monkeypatch.setattr("codl.measure.collector.Rounds", lambda: EACH)
    for command in (collect, api):
        monkeypatch.setattr(command, "connect", lambda serial, soc: LocalTarget(soc, files=files))
    return files


def test_a_low_battery_stops_a_collection_with_a_sentence(phone: SystemFiles) -> None:
    put(phone.root, BATTERY, capacity=17)
    done = CliRunner().invoke(app, COLLECT)
    assert isinstance(done.exception, CodlError)
    assert str(done.exception) == (
        "The battery is at 17 % and does not charge; below 20 % nothing is measured. All rows so "
        "far are kept, and --resume goes on."
    )
    assert json.loads(done.stdout)["stopped"] == "battery"
    put(phone.root, BATTERY, status="Charging")
    done = CliRunner().invoke(app, [*COLLECT, "--resume"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["left"] == 0


def test_an_evaluation_keeps_its_rows_when_the_battery_runs_out(
    phone: SystemFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(model: str, *given: object, **options: object) -> Evaluation:
        put(phone.root, BATTERY, capacity=9)
        latency = Latency(1.0, 1.0, 1.0, 3)
        return Evaluation(model, "", [EvalRow(model, "cpu", latency, None, "measured")], {}, {})

    monkeypatch.setattr(api, "evaluate_model", measured)
    command = ["eval", "--soc", "test", "--models", "yolov2,vgg16", "--strategies", "cpu"]
    done = CliRunner().invoke(app, [*command, "-o", "eval.json", "--cool-down", "0"])
    assert isinstance(done.exception, CodlError)
    assert "at 9 %" in str(done.exception)
    assert "1 rows" in str(done.exception)
    (row,) = json.loads(Path("eval.json").read_text())["rows"]
    assert row["model"] == "yolov2"
    nothing = CliRunner().invoke(app, command)
    assert isinstance(nothing.exception, CodlError)
