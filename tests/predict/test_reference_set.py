"""The measured reference set that comes with codl: planned with and learned from anywhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from codl.cli.app import app
from codl.ir.records import soc as socs
from codl.ir.records.soc import Soc
from codl.measure import tuning_file
from codl.measure.dataset import Dataset
from codl.predict import model_set
from codl.predict.model_set import StoredPredictor
from codl.predict.training import train

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
