"""The paper's figures: the page is what its result files say, and scripts work on what ships."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAPER = ROOT / "scripts" / "paper"
RESULTS = sorted((ROOT / "docs" / "results").glob("paper-*.json"))


def test_every_figure_with_results_is_on_the_page() -> None:
    text = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"<!-- paper: (\w+) -->", text))
    assert {path.stem.split("-")[1] for path in RESULTS} == shown
    assert {path.stem for path in (ROOT / "docs" / "paper").glob("*.svg")} <= shown


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_result_says_where_it_is_from(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    name, soc = path.stem.split("-")[1:]
    assert (content["command"], content["figure"], content["soc"]["name"]) == ("paper", name, soc)
    assert content["commit"]
    assert content["created"]
    assert content["rows"]
    assert content["made_by"].startswith(f"python scripts/paper/{name}.py")
    assert all(row["source"] for row in content["rows"])
    # Latencies of other people's phones stay where they are: only what was predicted is here.
    if any("replayed" in row["source"] for row in content["rows"]):
        assert not [row for row in content["rows"] if row.get("measured_ms") is not None]
        assert "op" not in content["rows"][0] or name == "fig17"


def test_a_figure_of_the_shipped_set(tmp_path: Path) -> None:
    picture, file = tmp_path / "fig05.svg", tmp_path / "fig05.json"
    command = [sys.executable, str(PAPER / "fig05.py"), "--soc", "epyc2", "--steps", "4"]
    command += ["--json", "--svg", str(picture), "-o", str(file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    content = json.loads(done.stdout)
    assert content == json.loads(file.read_text())
    sides = {(row["dim"], row["processor"], row["share"]) for row in content["rows"]}
    assert len(sides) == 2 * 2 * 4
    assert content["made_by"] == "python scripts/paper/fig05.py --soc epyc2 --steps 4"
    assert "prefers-color-scheme: dark" in picture.read_text()


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    command = [sys.executable, str(PAPER / "predictors.py"), "--soc", "epyc2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "codl train --soc epyc2 --json > train.json" in done.stderr
