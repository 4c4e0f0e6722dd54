"""Commands that measure on a device whose conditions are those of a tree like a phone's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.phone import BATTERY, make_phone, put
from support.whole_way import EACH
from typer.testing import CliRunner

from codl.cli.app import app
from codl.errors import CodlError
from codl.ir.records.results import EvalRow, Latency
from codl.jobs import collect
from codl.jobs import evaluate as api
from codl.jobs.interleaved import Evaluation
from codl.machine.placement import LocalSoc
from codl.machine.system_files import SystemFiles
from codl.targets.local import LocalTarget

COLLECT = ["collect", "--soc", "test", "--ops", "ops.csv", "--shares", "1", "--json"]


@pytest.fixture
def phone(first_soc: LocalSoc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SystemFiles:
    """This machine, with the system files of a phone."""
    files = make_phone(tmp_path / "phone")
    first_soc.save(tmp_path / "socs" / "test.yaml")
    (tmp_path / "ops.csv").write_text('op\n"fc in=1x32x5x5 oc=40"\n')
    monkeypatch.chdir(tmp_path)
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
