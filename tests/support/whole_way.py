"""What a user does with a device, from installing the agent there to a table, in few commands."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from codl.cli.app import app
from codl.frontend.models.builder import ModelBuilder
from codl.measure.dataset import Dataset
from codl.measure.timing import Rounds

#: A model of a few ops in a file of the current folder, and a SoC.
MODEL, SOC = "small.onnx", "there"
#: Of every row one sample, after one run; and as many of a row that is a batch of its own.
QUICK = Rounds(1, visits=1, samples=1, settle=0, sample_s=0.0, least=1, span_s=1.0, more=1)
EACH = replace(QUICK, span_s=0.0)
PLANNED = ["--predictor", "codl_linear"]


def codl(*arguments: str) -> dict[str, Any]:
    """What a command answers, in this process."""
    done = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def write_model(path: Path) -> None:
    b = ModelBuilder("small")
    x = b.relu(b.conv(b.input("image", (1, 8, 16, 16)), 16, 3, pad=1))
    b.output(b.fully_connected(b.flatten(b.max_pool(x, 2, 2)), 10))
    path.write_bytes(b.build().SerializeToString())


def install_to_train(serial: str, driver: str) -> None:
    """Everything up to predictors, in the current folder; the collector takes `QUICK` rounds."""
    write_model(Path(MODEL))
    done = codl("agent", "install", "--serial", serial, "--python", sys.executable)
    assert (done["is_new"], done["missing"]) == (True, [])
    detect = ["soc", "detect", "--serial", serial, "--name", SOC]
    codl(*detect, "--opencl-device", driver)
    given = ["--soc", SOC, "--serial", serial]
    some = ("--shares", "0.5,1", "--samples", "40")
    collected = codl("collect", *given, "--ops", MODEL, *some)
    assert (collected["failed"], collected["rows"] > 30) == (0, True)
    assert codl("train", "--soc", SOC, *PLANNED)["predictors"]


def check_table(serial: str) -> None:
    """Evaluate and run by those predictors; results say where they are from."""
    given = ["--soc", SOC, "--serial", serial, *PLANNED]
    result = codl("eval", *given, "--models", MODEL, "--strategies", "cpu,codl",
                  "--time", "0.1s")  # fmt: skip
    assert [row["status"] for row in result["rows"]] == ["ok", "ok"]
    assert all(row["cosine"] > 0.999 for row in result["rows"])
    ran = codl("run", MODEL, *given, "--rounds", "3")
    assert ran["latency_ms"]["median"] > 0
    assert ran["spans"]
    assert result["serial"] == ran["serial"] == serial


def manifest() -> dict[str, Any]:
    """What the dataset says of itself: where it was measured, and what that is."""
    content: dict[str, Any] = Dataset.of(SOC, Path("lat_datasets")).manifest()
    return content
