"""The paper's figures: the page is what its result files say, and scripts work on what ships."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

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


def test_the_papers_gains_and_accuracy() -> None:
    """A gain is the geometric mean over models, doubtful ones left out; an accuracy that of all
    held-out rows.
    """
    sys.path.append(str(PAPER))
    import pictures  # type: ignore[import-not-found]
    from standalone import stand_alone  # type: ignore[import-not-found]

    times = {("m1", "cpu"): 8.0, ("m1", "codl"): 2.0, ("m2", "cpu"): 9.0, ("m2", "codl"): 9.0}
    ran = [
        {"model": model, "strategy": name, "latency_ms": ms, "doubts": "", "source": "measured"}
        for (model, name), ms in times.items()
    ]
    ran.append({**ran[1], "model": "m3", "doubts": "p80 is 2.00 times p20"})
    trained = [
        {"predictor": "codl", "target": target, "split": split, "rows": rows, "acc10": acc10}
        for target, split, rows, acc10 in (
            ("t1", "shape", 30, 80.0), ("t2", "shape", 10, 40.0), ("t1", "row", 5, 90.0),
        )
    ]  # fmt: skip
    found = set()
    for name, rows in (("speedups", ran), ("predictors", trained)):
        content = {"command": "paper", "figure": name, "soc": "testhost", "rows": rows}
        svg = ElementTree.fromstring(stand_alone(pictures.of_all([content], name)))
        found |= {"".join(element.itertext()) for element in svg.iter()}
    assert "testhost, codl: 2.00 times" in found  # of 8 / 2 and 9 / 9
    assert "testhost, codl: 70.0 percent" in found  # (30 * 80 + 10 * 40) / 40
