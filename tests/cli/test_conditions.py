"""Commands that measure on a device whose conditions are those of a tree like a phone's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.phone import BATTERY, BIG, contents, make_phone, put
from support.whole_way import EACH
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError
from codl.evaluation.interleaved import Evaluation
from codl.jobs import collect
from codl.jobs import evaluate as api
from codl.records.results import Conditions, EvalRow, Latency
from codl.report.load import eval_result
from codl.report.tables import machine_notes
from codl.runtime import cache
from codl.runtime.placement import LocalSoc
from codl.runtime.system_files import SystemFiles
from codl.targets.local import LocalTarget

COLLECT = ["collect", "--soc", "test", "--ops", "ops.csv", "--shares", "1", "--json"]


@pytest.fixture
def phone(first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SystemFiles:
    """This machine, with the system files of a phone."""
    files = make_phone(tmp_path / "phone")
    first_soc.save(tmp_path / "socs" / "test.yaml")
    (tmp_path / "ops.csv").write_text('op\n"fc in=1x32x5x5 oc=40"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cache.STATE_VARIABLE, str(tmp_path / "state"))
    monkeypatch.setattr("codl.measure.collector.Rounds", lambda: EACH)
    for command in (collect, api):
        monkeypatch.setattr(command, "connect", lambda serial, soc: LocalTarget(soc, files=files))
    return files


def test_a_governor_is_set_for_a_collection_and_put_back(
    phone: SystemFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, seen = contents(phone.root), []
    measure = LocalTarget.measure

    def watched(self: LocalTarget, *given: Any) -> Any:
        seen.append(phone.text(f"{BIG}/scaling_governor"))
        return measure(self, *given)

    monkeypatch.setattr(LocalTarget, "measure", watched)
    done = CliRunner().invoke(app, [*COLLECT, "--governor", "performance"])
    assert done.exit_code == 0, done.output
    assert {*seen} == {"performance"}
    assert contents(phone.root) == before
    manifest = json.loads(Path("lat_datasets/test/manifest.json").read_text())
    assert manifest["runs"]["run1"]["conditions"]["governors"]["policy4"] == "performance"


def test_an_unknown_governor_measures_nothing(phone: SystemFiles) -> None:
    done = CliRunner().invoke(app, [*COLLECT, "--governor", "fast"])
    assert isinstance(done.exception, CodlError)
    assert "no governor 'fast'" in str(done.exception)
    assert not Path("lat_datasets").exists()


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


def test_an_evaluation_says_what_was_throttled() -> None:
    rows = [
        {
            "model": "small",
            "strategy": "cpu",
            "latency_ms": {"median": 1, "p20": 1, "p80": 1, "runs": 3},
            "predicted_ms": None,
            "source": "measured",
            "conditions": {"throttled": ["gpu", "cpu"], "temperature_c": 71.5},
        }
    ]
    result = eval_result({"command": "eval", "soc": {"name": "test"}, "rows": rows})
    assert result.rows[0].conditions == Conditions(temperature_c=71.5, throttled=("gpu", "cpu"))
    assert machine_notes(result) == [
        "small: the clock of the CPU and the GPU was held down meanwhile."
    ]
