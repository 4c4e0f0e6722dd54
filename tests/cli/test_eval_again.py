"""Evaluations that are run again from their file; the latencies are test data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.simulated import SOC
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import InvalidFileError, MismatchError
from codl.evaluation.interleaved import Evaluation, load
from codl.frontend.convert import load_network
from codl.ir.plan import Chain, Plan
from codl.jobs import evaluate as api
from codl.jobs.evaluate import Earlier
from codl.records.results import EvalRow, Latency
from codl.runtime.placement import LocalSoc
from codl.strategies import Context

MODEL = "matmul"
PLAN = Plan(
    MODEL, "0123", "test", "codl", "", "missing", 1.0, (Chain(("fc1",), "H", 0.5, {"fc1": {}}),)
)
ASK = ["eval", "--soc", "test", "--models", MODEL, "--strategies", "cpu,codl", "-o", "eval.json"]
AGAIN = ["eval", "--repro", "eval.json"]


@pytest.fixture
def measured(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Runs a command whose evaluation gives what it is told; returns the command's result."""
    replace(first_soc, name="test").save(tmp_path / "socs" / "test.yaml")
    monkeypatch.chdir(tmp_path)

    def run(command: list[str], codl_ms: float, digest: str = "abc") -> Any:
        def evaluate(model: str, strategies: Any, context: Context, **how: Any) -> Evaluation:
            names = [own.name for own in strategies]
            assert (model, names, how["effort"].min_seconds) == (MODEL, ["cpu", "codl"], 20)
            rows = [
                EvalRow(MODEL, "cpu", latency(10.0), None, "measured", plan=PLAN.fingerprint),
                EvalRow(MODEL, "codl", latency(codl_ms), None, "measured", plan=PLAN.fingerprint),
            ]
            return Evaluation(MODEL, digest, rows, {}, {PLAN.fingerprint: PLAN})

        monkeypatch.setattr(api, "evaluate_model", evaluate)
        return CliRunner().invoke(app, [*command, "--json"])

    return run


def latency(ms: float) -> Latency:
    return Latency(ms, ms, ms, 9)


def changed(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def test_a_result_says_what_it_rests_on(measured: Any) -> None:
    done = measured(ASK, 5.0)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    environment = result["environment"]
    assert environment["driver"]
    assert environment["cpu_cores"]
    assert environment["libraries"]["numpy"]
    assert environment["protocol"]["min_seconds"] == 20
    assert result["digests"]["models"] == {MODEL: "abc"}
    assert result["asked"]["strategies"] == ["cpu", "codl"]
    assert [*result["plans"]] == [PLAN.fingerprint]


def test_what_is_run_again_agrees_or_not(measured: Any) -> None:
    measured(ASK, 5.0)
    same = measured(AGAIN, 5.05)
    assert same.exit_code == 0, same.output
    again = json.loads(same.stdout)["repro"]
    assert (again["agrees"], again["differences"]) == (True, [])
    assert [own["before"] for own in again["figures"]] == [1.0, 2.0]
    other = measured(AGAIN, 6.0)
    assert not json.loads(other.stdout)["repro"]["agrees"]
    assert "1 of 2 figures of eval.json do not agree" in str(other.exception)
    assert "codl on matmul" in str(other.exception)


def test_limits_of_the_gpu_are_part_of_what_is_run_again(measured: Any) -> None:
    limits = {"max_kernel_ms": 2.0, "gpu_duty": 0.5}
    done = measured([*ASK, "--max-kernel-ms", "2", "--gpu-duty", "0.5"], 5.0)
    result = json.loads(done.stdout)
    assert result["asked"]["limits"] == limits
    assert limits.items() <= result["environment"]["protocol"].items()
    again = measured(AGAIN, 5.0)
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["asked"]["limits"] == limits
    assert measured([*AGAIN, "--gpu-duty", "0.6"], 5.0).exit_code == 2


def test_another_environment_is_refused_unless_told_to_go_on(measured: Any) -> None:
    measured(ASK, 5.0)
    changed(Path("eval.json"), lambda content: content["environment"].update(driver="older"))
    refused = measured(AGAIN, 5.0)
    assert isinstance(refused.exception, MismatchError)
    assert "driver: older and " in str(refused.exception)
    assert "--other-environment" in str(refused.exception)
    done = measured([*AGAIN, "--other-environment"], 5.0)
    assert done.exit_code == 0, done.output
    (difference,) = json.loads(done.stdout)["repro"]["differences"]
    assert (difference["what"], difference["first"]) == ("driver", "older")


def test_another_model_dataset_or_clock_is_not_compared(measured: Any) -> None:
    measured(ASK, 5.0)
    model = measured(AGAIN, 5.0, "another")
    assert "another model than in eval.json" in str(model.exception)
    changed(Path("eval.json"), lambda content: content["digests"].update(dataset="x"))
    assert "digest of the dataset: x and none" in str(measured(AGAIN, 5.0).exception)


@pytest.mark.parametrize("option", ["--models", "--strategies", "--time", "--batch", "--peers"])
def test_the_file_says_what_is_run(measured: Any, option: str) -> None:
    measured(ASK, 5.0)
    assert measured([*AGAIN, option, "1"], 5.0).exit_code == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("asked"), "does not say what was asked"),
        (lambda content: content.update(environment=None), "in which environment"),
        (lambda content: content.update(plans={}), "there is no such plan"),
        (lambda content: content["rows"].pop(0), "no processor alone"),
        (lambda content: next(iter(content["plans"].values())).update(soc="x"), "fingerprint"),
        (lambda content: content["plans"].update({PLAN.fingerprint: {}}), "version"),
    ],
)
def test_a_file_that_cannot_be_run_again_says_why(
    measured: Any, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    measured(ASK, 5.0)
    with pytest.raises(InvalidFileError, match=message):
        Earlier.read(changed(Path("eval.json"), change))


def test_each_strategy_has_the_plan_that_ran(measured: Any) -> None:
    measured(ASK, 5.0)
    network = load_network(MODEL)

    def of_this_network(content: dict[str, Any]) -> None:
        plan = replace(PLAN, digest=network.digest)
        content["plans"] = {plan.fingerprint: plan.to_json()}
        for row in content["rows"]:
            row["plan"] = plan.fingerprint

    earlier = Earlier.read(changed(Path("eval.json"), of_this_network))
    cpu, codl = earlier.strategies()
    soc = replace(SOC, name="test")
    assert cpu.plan(network, Context(soc)).strategy == "cpu"
    assert codl.plan(network, Context(soc)).chains == PLAN.chains
    with pytest.raises(MismatchError, match="SoC"):
        codl.plan(network, Context(SOC))


def test_what_was_measured_before_a_model_that_fails_is_written(
    first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(first_soc, name="test").save(tmp_path / "socs" / "test.yaml")
    monkeypatch.chdir(tmp_path)
    Path("broken.onnx").write_bytes(b"no model")

    def evaluate(model: str, strategies: Any, context: Context, **how: Any) -> Evaluation:
        if model == "broken.onnx":
            load(model)
        if model == "vgg16":
            raise ZeroDivisionError("by zero")
        rows = [EvalRow(model, "cpu", latency(10.0), None, "measured", plan=PLAN.fingerprint)]
        return Evaluation(model, "abc", rows, {}, {PLAN.fingerprint: PLAN})

    monkeypatch.setattr(api, "evaluate_model", evaluate)
    models = f"{MODEL},broken.onnx,vgg16,yolov2"
    command = ["eval", "--soc", "test", "--models", models, "--strategies", "cpu,cpu,ideal"]
    done = CliRunner().invoke(app, [*command, "-o", "eval.json"])
    assert "2 of 4 models failed" in str(done.exception)
    written = json.loads(Path("eval.json").read_text())["rows"]
    rows = {(row["model"], row["strategy"]): row for row in written}
    assert [key for key, row in rows.items() if row["status"] == "ok"] == [
        (MODEL, "cpu"), ("yolov2", "cpu")]  # fmt: skip
    assert "not an ONNX model" in rows["broken.onnx", "cpu"]["reason"]
    assert rows["vgg16", "ideal"]["reason"] == "a defect of codl: ZeroDivisionError: by zero"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--models", f"{MODEL},none.onnx"], "none.onnx: there is no such file"),
        (["--models", f"{MODEL},yolo"], "Unknown model 'yolo'"),
        (["--strategies", "cpu,codll"], "Unknown strategy 'codll'"),
        (["--time", "nan"], "Cannot read the duration 'nan'"),
        (["--time", "-1"], "Cannot read the duration '-1'"),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_measured(
    first_soc: LocalSoc,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    replace(first_soc, name="test").save(tmp_path / "socs" / "test.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(api, "evaluate_model", None)
    done = CliRunner().invoke(app, ["eval", "--soc", "test", "--models", MODEL, *options])
    assert done.exit_code != 0
    assert message in f"{done.output} {done.exception}"
