"""Stored predictors, and files that were changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated import GEMM, SOC, conv_parts, law_ms

from codl.dataset import Dataset
from codl.errors import CodlError, InvalidFileError, MismatchError, UnknownNameError
from codl.ops import Shape, parse
from codl.predict import features
from codl.predict.estimators import ESTIMATORS
from codl.predict.predictors import load
from codl.predict.training import TrainReport

# Stored predictors


@pytest.mark.parametrize("name", ESTIMATORS)
def test_loaded_predictors_predict_the_same(
    name: str, simulated: Dataset, trained: tuple[Path, TrainReport]
) -> None:
    rows = [row for row in simulated.ops(GEMM).read() if row.status == "ok"]
    parts = [parse(row.part) for row in rows]
    feature_set = ESTIMATORS[name].feature_set
    table = features.table(feature_set, GEMM, parts, SOC)
    fitted = ESTIMATORS[name]().fit(table.values, np.array([row.latency_ms for row in rows]))
    np.testing.assert_array_equal(
        load(SOC, name, trained[0]).latency_ms(GEMM, parts), fitted.predict(table.values)
    )


def test_predictions_come_in_order_and_once(
    trained: tuple[Path, TrainReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(SOC, "codl_linear", trained[0])
    parts = [part for *_, part in conv_parts(seed=5)]
    expected = [law_ms(part) for part in parts]
    np.testing.assert_allclose(loaded.latency_ms(GEMM, parts), expected, rtol=0.03)
    assert loaded.latency_ms(GEMM, []).shape == (0,)
    shapes = [Shape(1, 16, 10, 20), Shape(1, 8, 3, 20), Shape(1, 16, 10, 20)]
    sharing = [0.01 + 1e-6 * shape.bytes for shape in shapes]
    np.testing.assert_allclose(loaded.sharing_ms("to_gpu", shapes)["copy"], sharing, rtol=0.01)
    monkeypatch.setattr(features, "table", lambda *_: pytest.fail("predicted twice"))
    np.testing.assert_allclose(loaded.latency_ms(GEMM, parts[::-1]), expected[::-1], rtol=0.03)


def test_missing_predictors(trained: tuple[Path, TrainReport], tmp_path: Path) -> None:
    loaded = load(SOC, "codl_linear", trained[0])
    op = parse("fc in=1x64x1x1 oc=64")
    with pytest.raises(UnknownNameError) as caught:
        loaded.latency_ms("fc_cpu_gemv", [op])
    for wanted in ("fc_cpu_gemv", GEMM, str(loaded.folder), f"codl train --soc {SOC.name}"):
        assert wanted in str(caught.value)
    with pytest.raises(InvalidFileError, match=r"no predictors here.*codl train --soc simulated"):
        load(SOC, "gbdt", tmp_path)
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
    content["examples"][next(iter(content["examples"]))] = "0123456789abcdef"


CHANGES: list[tuple[Callable[[dict[str, Any]], None], type[CodlError], str]] = [
    (change("version", 1), InvalidFileError, "version: must be 3, got 1: another version of codl"),
    (change("unit", "us"), InvalidFileError, "unit: must be 'ms', got 'us'"),
    (change("state", None), InvalidFileError, "state: the key is missing"),
    (change("features", "x"), InvalidFileError, "features: expected list, got 'x'"),
    (change("predictor", "nn"), UnknownNameError, "'nn'.*codl_linear"),
    (change("predictor", "gbdt"), MismatchError, "predictor: is 'gbdt'.*'codl_linear'"),
    (change("target", "fc_cpu_gemv"), MismatchError, "target: is 'fc_cpu_gemv'"),
    (change("soc", "phone"), MismatchError, "soc: is 'phone'.*'simulated'"),
    (change("features", ["rows"]), MismatchError, "features: is rows, but .*padded_macs"),
    (change("examples", {}), InvalidFileError, "examples: there must be at least one"),
    (change("examples", {"x": {}}), InvalidFileError, "examples, 'x': Unknown op 'x'"),
    (
        change_example,
        MismatchError,
        "was '0123456789abcdef' in training and is .* now",
    ),
    (change("state.overhead_ms", -1), InvalidFileError, "state: overhead_ms must not be negative"),
    (change("state.floor_ms", "x"), InvalidFileError, "state: floor_ms .* got 'x'"),
    (
        change("state.coefficients_ms.padded_macs", "much"),
        InvalidFileError,
        "padded_macs must be a finite number, got 'much'",
    ),
    (
        change("state.coefficients_ms.padded_mac", 1.0),
        InvalidFileError,
        "Did you mean 'padded_macs'",
    ),
]


@pytest.mark.parametrize(("apply", "error", "message"), CHANGES, ids=[c[2] for c in CHANGES])
def test_changed_files_are_refused(
    apply: Callable[[dict[str, Any]], None],
    error: type[CodlError],
    message: str,
    trained: tuple[Path, TrainReport],
    tmp_path: Path,
) -> None:
    old = trained[0] / SOC.name / "codl_linear" / f"{GEMM}.json"
    content = json.loads(old.read_text())
    apply(content)
    path = tmp_path / old.relative_to(trained[0])
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    with pytest.raises(error, match=message) as caught:
        load(SOC, "codl_linear", tmp_path)
    assert str(path) in str(caught.value)
    assert f"codl train --soc {SOC.name}" in str(caught.value)


def test_changed_models_and_names_are_refused(
    trained: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    old = trained[0] / SOC.name / "gbdt" / f"{GEMM}.json"
    folder = tmp_path / SOC.name / "gbdt"
    folder.mkdir(parents=True)
    content = json.loads(old.read_text())
    content["state"]["model"][-2] = "leaf_value=1"
    (folder / old.name).write_text(json.dumps(content))
    with pytest.raises(InvalidFileError, match=r"state: model must have the SHA-256"):
        load(SOC, "gbdt", tmp_path)
    (folder / old.name).write_text(old.read_text()[:1000])
    with pytest.raises(InvalidFileError, match="not a readable JSON file"):
        load(SOC, "gbdt", tmp_path)
    (folder / old.name).unlink()
    text = old.read_text().replace(f'"target": "{GEMM}"', '"target": "conv2d_cpu_gem"')
    (folder / "conv2d_cpu_gem.json").write_text(text)
    with pytest.raises(UnknownNameError, match="Did you mean 'conv2d_cpu_gemm'"):
        load(SOC, "gbdt", tmp_path)


def test_another_soc_needs_another_training(trained: tuple[Path, TrainReport]) -> None:
    """The same name, but vectors of another width: the GEMM is padded to other blocks."""
    wider = replace(SOC, cpu=replace(SOC.cpu, simd_floats=64))
    with pytest.raises(MismatchError, match="kernel variant or the SoC has changed"):
        load(wider, "codl_linear", trained[0])


def test_a_file_says_what_it_is(trained: tuple[Path, TrainReport]) -> None:
    """All that a reader must know."""
    path = trained[0] / SOC.name / "codl" / f"{GEMM}.json"
    content = json.loads(path.read_text())
    assert (content["version"], content["unit"]) == (3, "ms")
    assert content["feature_units"].startswith("bytes or ms where")
    ((name, digest),) = content["dataset"]["tables"].items()
    assert name == f"t_{GEMM}.csv"
    assert len(digest) == 16
    assert content["dataset"]["sources"] == ["simulated"]
    assert content["held_out"]["shape"]["acc10"] > 90
    assert 80 < content["held_out"]["shape"]["coverage90"] <= 100
