"""The functions of `codl` do what the commands do, and what they refuse is one sentence."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.whole_way import codl as answer

import codl
from codl.errors import CodlError, DeviceError, boundary
from codl.ir.plan import load_plan
from codl.measure.dataset import Dataset
from codl.plan.strategies.model_search import FoundBound, FoundPlan

#: What differs between two runs of the same.
TIMES = {"search_ms", "train_s", "seconds", "commit", "created", "environment"}


def told(*words: str) -> dict[str, Any]:
    return {key: value for key, value in answer(*words).items() if key not in TIMES}


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


def opencl() -> None:
    kind = type("RuntimeError", (Exception,), {"__module__": "pyopencl._cl"})
    raise kind("clGetEventProfilingInfo failed: PROFILING_INFO_NOT_AVAILABLE")


def onnx_runtime() -> None:
    onnxruntime.InferenceSession(b"no model", providers=["CPUExecutionProvider"])


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "x.csv")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (opencl, "pyopencl failed .*PROFILING_INFO_NOT_AVAILABLE"),
        (onnx_runtime, "onnxruntime failed"),
        (lambda: np.zeros(1 << 52), "not enough memory"),
        (lambda: Path("/none/such").read_text(), "/none/such: No such file or directory"),
        (full_disk, "x.csv: No space left on device"),
    ],
)
def test_foreign_errors_are_ours(what: Callable[[], Any], said: str) -> None:
    with pytest.raises(CodlError, match=said) as error, boundary():
        what()
    assert error.value.__cause__ is not None
    assert "\n" not in str(error.value)


def test_what_is_ours_is_left_alone() -> None:
    for own in (DeviceError("x"), KeyError("defect"), KeyboardInterrupt(), BrokenPipeError()):
        with pytest.raises(type(own)) as error, boundary():
            raise own
        assert error.value is own


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: codl.compile(None), "model must be str or Path, got None"),
        (lambda: codl.compile("x.onnx", strategy=5), "strategy must be .*, got 5"),
        (lambda: codl.compile("x.onnx", plan="p.json", strategy="gpu"), "'p.json' or .*'gpu'"),
        (lambda: codl.compile("x.onnx", batch="2"), "batch must be int or NoneType, got '2'"),
        (lambda: codl.compile("x.onnx", shapes=5), "shapes must be .*, got 5"),
        (lambda: codl.load(None), "path must be text or a path, got None"),
        (lambda: codl.results(), "at least one result file"),
    ],
)
def test_arguments_that_are_none_are_refused_with_their_value(
    call: Callable[[], Any], said: str
) -> None:
    with pytest.raises(CodlError, match=said):
        call()
