"""Datasets, predictions and results as data frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.simulated import GEMM, SOC

import codl
from codl.errors import InvalidFileError
from codl.jobs import frames
from codl.measure.dataset import Dataset
from codl.predict import model_set
from codl.predict.features import read
from codl.predict.training import TrainReport


def test_a_dataset_is_a_frame_of_all_its_rows(simulated: Dataset) -> None:
    simulated.write_manifest({"source": "simulated", "runs": {}})
    frame = codl.dataset(SOC.name, simulated.folder.parent)
    tables = simulated.tables()
    assert frame.table.value_counts(sort=False).to_dict() == {
        name: len(table.read()) for name, table in tables.items()
    }
    assert list(frame.columns[:2]) == ["soc", "table"]
    assert set(frame.soc) == {SOC.name}
    assert set(frame.source) == {"simulated"}
    gemm = frame[frame.table == GEMM]
    rows = tables[GEMM].read()
    assert gemm.part.tolist() == [row.part for row in rows]
    assert gemm.latency_ms.tolist() == [row.latency_ms for row in rows]
    assert gemm.direction.isna().all()  # a column of data sharing alone
    assert frame[frame.table == "fc_cpu_gemv"].status.tolist() == ["failed"]


def test_a_table_without_rows_is_counted(tmp_path: Path) -> None:
    data = Dataset(tmp_path / "empty")
    data.write_manifest({"source": "measured", "runs": {}})
    data.table(GEMM).append()
    frame = codl.dataset("empty", tmp_path)
    assert len(frame) == 0
    assert frame.table.value_counts().to_dict() == {GEMM: 0}


def test_a_dataset_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="codl collect --soc nowhere"):
        codl.dataset("nowhere", tmp_path)


def test_predictions_stand_beside_what_was_measured(
    simulated: Dataset, trained: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    folder, _ = trained
    SOC.save(tmp_path / "simulated.yaml")
    frame = frames.predictions(
        tmp_path / "simulated.yaml", "codl_linear", folder=folder, data=simulated.folder.parent
    )
    models = model_set.load(SOC, "codl_linear", folder)
    assert set(frame.target) <= set(models.targets)
    gemm = frame[frame.target == GEMM]
    rows = [row for row in simulated.table(GEMM).read() if row.status == "ok"]
    assert gemm.latency_ms.tolist() == [row.latency_ms for row in rows]
    items = [read(GEMM, text) for text in gemm["item"]]
    np.testing.assert_array_equal(gemm.predicted_ms, models.latency_ms(GEMM, items))
    np.testing.assert_allclose(gemm.predicted_ms, gemm.latency_ms * (1 + gemm.error))
    assert (gemm.error.abs() < 0.1).mean() > 0.9


def test_results_are_rows_of_their_files(tmp_path: Path) -> None:
    latency = {"median": 2.0, "p20": 1.9, "p80": 2.2, "runs": 9}
    common = {"model": "m", "predicted_ms": None, "source": "measured"}
    failed = {"status": "failed", "reason": "no memory", "latency_ms": None}
    rows = [
        {**common, "strategy": "cpu", "latency_ms": latency},
        {**common, "strategy": "gpu", **failed},
    ]
    eval_file, package_file = tmp_path / "eval.json", tmp_path / "package.json"
    eval_file.write_text(json.dumps({"command": "eval", "version": 1, "soc": "host", "rows": rows}))
    sizes = {"bytes": 10, "cold_start_ms": 3, "import_ms": 1, "load_ms": 1, "first_run_ms": 1}
    package = {"command": "package", "model": "m", "soc": "host", "strategy": "codl", **sizes}
    package_file.write_text(json.dumps(package))
    frame = codl.results(eval_file, package_file)
    assert frame.command.tolist() == ["eval", "eval", "package"]
    assert frame.soc.tolist() == ["host"] * 3
    assert frame["latency_ms.median"].isna().tolist() == [False, True, True]
    assert frame.reason.tolist()[1] == "no memory"
    assert "latency_ms" not in frame
    assert frame.cold_start_ms.tolist()[2] == 3
    with pytest.raises(InvalidFileError, match="no such file"):
        codl.results(tmp_path / "nothing.json")
