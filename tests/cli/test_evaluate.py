"""What an evaluation writes; the latencies are test data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from codl.cli.app import app
from codl.ir.plan import Chain, Plan
from codl.ir.records.results import EvalRow, Latency
from codl.jobs import evaluate as api
from codl.jobs.interleaved import Evaluation, load
from codl.machine.placement import LocalSoc
from codl.plan.strategies import Context

MODEL = "matmul"
PLAN = Plan(
    MODEL, "0123", "test", "codl", "", "missing", 1.0, (Chain(("fc1",), "H", 0.5, {"fc1": {}}),)
)
ASK = ["eval", "--soc", "test", "--models", MODEL, "--strategies", "cpu,codl", "-o", "eval.json"]


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


def test_limits_of_the_gpu_are_part_of_what_was_asked(measured: Any) -> None:
    limits = {"max_kernel_ms": 2.0, "gpu_duty": 0.5}
    done = measured([*ASK, "--max-kernel-ms", "2", "--gpu-duty", "0.5"], 5.0)
    result = json.loads(done.stdout)
    assert result["asked"]["limits"] == limits
    assert limits.items() <= result["environment"]["protocol"].items()


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
