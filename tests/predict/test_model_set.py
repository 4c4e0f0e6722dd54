"""Stored predictors, files of them that were changed, and the set that comes with codl."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.simulated import GEMM, SOC
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError, InvalidFileError, MismatchError, UnknownNameError
from codl.ir import parse
from codl.ir.records import soc as socs
from codl.ir.records.soc import Soc
from codl.measure import tuning_file
from codl.measure.dataset import Dataset
from codl.predict import ESTIMATORS, features, model_set
from codl.predict.model_set import Predictors, StoredPredictor, load
from codl.predict.training import TrainReport, train

# Stored predictors


@pytest.mark.parametrize("name", ESTIMATORS)
def test_loaded_predictors_predict_the_same(
    name: str, simulated: Dataset, trained: tuple[Path, TrainReport]
) -> None:
    rows = [row for row in simulated.table(GEMM).read() if row.status == "ok"]
    parts = [parse(row.part) for row in rows]
    feature_set = ESTIMATORS[name].feature_set
    table = features.table(feature_set, GEMM, parts, SOC)
    fitted = ESTIMATORS[name].fit(table.values, np.array([row.latency_ms for row in rows]))
    np.testing.assert_array_equal(
        load(SOC, name, trained[0]).latency_ms(GEMM, parts), fitted.predict(table.values)
    )


def test_missing_predictors(trained: tuple[Path, TrainReport], tmp_path: Path) -> None:
    loaded = load(SOC, "codl_linear", trained[0])
    op = parse("fc in=1x64x1x1 oc=64")
    with pytest.raises(UnknownNameError) as caught:
        loaded.latency_ms("fc_cpu_gemv", [op])
    for wanted in ("fc_cpu_gemv", GEMM, str(loaded.path), f"codl train --soc {SOC.name}"):
        assert wanted in str(caught.value)
    with pytest.raises(InvalidFileError, match=r"no predictors here.*codl train --soc simulated"):
        load(SOC, "gbdt", tmp_path)
    halves = SOC.at("half_storage")
    message = r"precision half_storage.*`codl collect --soc simulated .*--precision half_storage`"
    with pytest.raises(InvalidFileError, match=message):
        load(halves, "codl_linear", trained[0])
    with pytest.raises(UnknownNameError, match="Did you mean 'gbdt'"):
        load(SOC, "gbd", trained[0])


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one key of a file, nested keys joined by dots; None takes the key out."""

    def apply(content: dict[str, Any]) -> None:
        *path, last = key.split(".")
        for name in path:
            content = content[name]
        if value is None:
            del content[last]
        else:
            content[last] = value

    return apply


def change_example(content: dict[str, Any]) -> None:
    examples = content["targets"][GEMM]["examples"]
    examples[next(iter(examples))] = "01234567"


def of_gemm(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return change(f"targets.{GEMM}.{key}", value)


def rename(content: dict[str, Any]) -> None:
    content["targets"]["conv2d_cpu_gem"] = content["targets"].pop(GEMM)


def of_estimator(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return of_gemm(f"estimator.{key}", value)


def check_all(predictors: Predictors) -> None:
    for target in predictors.stored:
        predictors.check(target)


CHANGES: list[tuple[Callable[[dict[str, Any]], None], type[CodlError], str]] = [
    (change("version", 9), InvalidFileError, "version: must be 10, got 9: another version of codl"),
    (of_gemm("rows", None), InvalidFileError, f"targets, {GEMM}, rows: the key is missing"),
    (change("predictor", "nn"), MismatchError, "is 'nn'.*'codl_linear'"),
    (change("predictor", "flops_linear"), MismatchError, "is 'flops_linear'.*'codl_linear'"),
    (rename, InvalidFileError, "Unknown target of a conv2d 'conv2d_cpu_gem'"),
    (change("soc", "phone"), MismatchError, "soc: is 'phone'.*'simulated'"),
    (change("tuning", "0123"), MismatchError, "tuning: is '0123', but .* 'untuned' now"),
    (
        change("inside", {"npu": {}}),
        InvalidFileError,
        "inside: must be one of cpu, gpu, ort, openvino, got 'npu'",
    ),
    (of_gemm("examples", {}), InvalidFileError, f"targets, {GEMM}, examples: expected object of"),
    (of_gemm("examples", {"x": "0"}), InvalidFileError, "examples: Unknown op 'x'"),
    (change_example, MismatchError, "was '01234567' in training and is .* now"),
    (of_estimator("costs_ms", [1.0, 2.0]), InvalidFileError, "numbers do not fit together"),
]


@pytest.mark.parametrize(("apply", "error", "message"), CHANGES, ids=[c[2] for c in CHANGES])
def test_changed_files_are_refused(
    apply: Callable[[dict[str, Any]], None],
    error: type[CodlError],
    message: str,
    trained: tuple[Path, TrainReport],
    tmp_path: Path,
) -> None:
    old = trained[0] / SOC.name / "codl_linear.json"
    content = json.loads(old.read_text())
    apply(content)
    path = tmp_path / old.relative_to(trained[0])
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    with pytest.raises(error, match=message) as caught:
        check_all(load(SOC, "codl_linear", tmp_path))
    assert str(path) in str(caught.value)
    assert f"codl train --soc {SOC.name}" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["ensemble", "members", 0], 7, "expected object, got 7"),
        (["ensemble", "members", 0, "weights"], [1.0, 2.0], "numbers do not fit together"),
        (["ensemble", "points", 0, 0], 1e999, "Infinity is no number"),
        (["runs"], {"a": {"factor": 0.0}}, "factor: expected float > 0.0"),
    ],
)
def test_changed_ensembles_are_refused(
    path: list[Any], value: Any, message: str, trained: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    content = json.loads((trained[0] / SOC.name / "codl.json").read_text())
    place = content["targets"][GEMM]["estimator"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    new = tmp_path / SOC.name / "codl.json"
    new.parent.mkdir(parents=True)
    new.write_text(json.dumps(content))
    with pytest.raises(InvalidFileError, match=message):
        check_all(load(SOC, "codl", tmp_path))


def test_changed_trees_and_cut_files_are_refused(
    trained: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    old = trained[0] / SOC.name / "gbdt.json"
    path = tmp_path / SOC.name / "gbdt.json"
    path.parent.mkdir(parents=True)
    content = json.loads(old.read_text())
    trees = content["targets"][GEMM]["estimator"]["trees"]
    trees["features"].append(0)
    trees["numbers"].append(1.0)
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidFileError, match=f"{GEMM}, .*trees: every split must have two sides"):
        load(SOC, "gbdt", tmp_path)
    path.write_text(old.read_text()[:1000])
    with pytest.raises(InvalidFileError, match="not JSON"):
        load(SOC, "gbdt", tmp_path)


def test_another_soc_needs_another_training(trained: tuple[Path, TrainReport]) -> None:
    """The same name, but vectors of another width: the GEMM is padded to other blocks."""
    wider = replace(SOC, cpu=replace(SOC.cpu, simd_floats=64))
    op = features.read(GEMM, "conv2d in=1x8x2x2 oc=8 kernel=1x1")
    with pytest.raises(MismatchError, match="kernel variant or the SoC has changed"):
        load(wider, "codl_linear", trained[0]).latency_ms(GEMM, [op])


NAME = "epyc2"
#: Percent of rows within 10 % that may be lost: what another seed of the hold-out changes is 1.
TOLERANCE = 5.0


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def epyc() -> Soc:
    return socs.load(NAME)


def accuracy(stored: Mapping[str, StoredPredictor]) -> float:
    """Percent of all rows predicted within 10 % when no part of their op was learned from."""
    own = [one for one in stored.values() if one.held_out]
    return float(np.average([one.held_out["acc10"] for one in own], weights=[o.rows for o in own]))


def test_its_rows_were_measured_and_none_failed() -> None:
    data = Dataset.found(NAME, Path("lat_datasets"))
    rows = [row for table in data.tables().values() for row in table.read()]
    assert len(rows) > 1000
    assert {row.status for row in rows} == {"ok"}


def test_a_model_is_planned_before_anything_is_measured() -> None:
    done = CliRunner().invoke(app, ["search", "yolov2", "--soc", NAME, "--json"])
    plan = json.loads(done.stdout)
    assert {chain["dim"] for chain in plan["chains"]} >= {"H", "OC"}
    assert 50 < plan["predicted_ms"] < 200


@pytest.mark.long
def test_training_on_it_is_as_accurate_as_when_it_was_made(epyc: Soc, tmp_path: Path) -> None:
    """Of most rows of ops; the features of all others are compared wherever they are loaded."""
    data = Dataset.found(NAME, Path("lat_datasets"))
    tuning = tuning_file.read(data, epyc)
    part = Dataset(Path(shutil.copytree(data.folder, tmp_path / NAME)))
    for path in part.folder.glob("t_*.csv"):
        if not path.name.startswith(("t_conv2d_", "t_fc_", "t_pooling_")):
            path.unlink()
    train(epyc, part, tuning, predictors=["codl"], folder=tmp_path)
    before, after = (
        model_set.load(epyc, "codl", *of, tuning=tuning).stored for of in ((), (tmp_path,))
    )
    assert len(after) == 13
    assert accuracy(after) > accuracy({name: before[name] for name in after}) - TOLERANCE
