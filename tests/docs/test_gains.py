"""Tables, curves and pictures of gains, made of results: what they leave out, and what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pictures
import pytest
from curves import curve_content, families, parse_curve
from gains import gains_content
from standalone import stand_alone
from summaries import accuracy_content

from codl.report.results import load_result
from codl.report.text_table import NONE

ROOT = Path(__file__).resolve().parents[2]
SOC = {"name": "two", "description": "two halves"}


def row(strategy: str, ms: float, *, p80: float = 1.0, model: str = "net", **more: Any) -> Any:
    latency = {"median": ms, "p20": ms, "p80": p80 * ms, "runs": 9}
    known = {"predicted_ms": ms, "source": "measured", **more}
    return {"model": model, "strategy": strategy, "latency_ms": latency, **known}


def write(path: Path, *rows: Any, **more: Any) -> Path:
    about = {"command": "eval", "commit": "abc1234", "created": "2026-11-26T01:02:03", "soc": SOC}
    path.write_text(json.dumps({**about, "rows": rows, **more}))
    return path


def cells(table: Any) -> list[tuple[str, ...]]:
    return [line.cells for section in table.sections for line in section.rows]


def test_a_gain_is_over_the_better_processor_and_beside_its_bound(tmp_path: Path) -> None:
    ran = {"version": "1", "threads": 2, "busy_cores": 2.0}
    rows = [row("cpu", 30.0), row("gpu", 20.0), row("codl", 16.0)]
    peers = [row("ort", 19.0, peer=ran), row("mnn", 15.0, peer=ran)]
    other = [row(name, 9.0, model="other") for name in ("cpu", "gpu", "codl")]
    file = write(tmp_path / "eval.json", *rows, *peers, *other)
    ((_, models, gain, ends, bound, rival, source),) = cells(gains_content([file]))
    assert models == "2"
    assert gain == "**1.12**"  # of 20 / 16 and 1
    assert ends == "1.00 to 1.25"
    assert bound == "1.83"  # of 20 * (1 / 30 + 1 / 20) and 2
    assert rival == "1.33"  # 20 / 15
    assert source == "[abc1234](docs/results/eval.json)"


@pytest.mark.parametrize(
    ("strategy", "more", "why"),
    [
        ("codl", {"p80": 1.3}, "codl: p80 is 1.30 times p20"),
        ("gpu", {"p80": 1.3}, "gpu: p80 is 1.30 times p20"),
        ("cpu", {"predicted_ms": 20.0}, "cpu took 1.50 times its prediction"),
    ],
)
def test_doubtful_rows_are_left_out_and_named(
    tmp_path: Path, strategy: str, more: dict[str, Any], why: str
) -> None:
    times = {"cpu": 30.0, "gpu": 20.0, "codl": 16.0}
    rows = [row(name, ms, **(more if name == strategy else {})) for name, ms in times.items()]
    table = gains_content([write(tmp_path / "eval.json", *rows)])
    assert cells(table) == []
    assert f"Left out as doubtful: net of `eval.json` ({why})." in table.caption


def test_replayed_phones_have_a_mean_each(tmp_path: Path) -> None:
    times = {"cpu": 8.0, "gpu": 4.0, "codl": 2.0, "codl-paper": 4.0}
    rows = [
        {"model": model, "strategy": name, "latency_ms": ms * by, "source": "predicted, replayed"}
        for model, by in (("one", 1.0), ("two", 3.0))
        for name, ms in times.items()
    ]
    about = {"figure": "speedups", "commit": "abc1234", "created": "2026-11-26", "soc": SOC}
    phone, host = tmp_path / "paper-phone.json", tmp_path / "paper-host.json"
    phone.write_text(json.dumps({**about, "rows": rows}))
    measured = [{**line, "source": "measured"} for line in rows]
    host.write_text(json.dumps({**about, "rows": measured}))
    ((*line, source),) = cells(gains_content([phone, host]))
    assert line == [
        "two halves, replayed", "2", "**2.00**", "2.00", "1.50", "\N{EN DASH}"
    ]  # fmt: skip
    assert source == "[abc1234](docs/results/paper-phone.json)"


def test_accuracy_is_summed_up_by_the_rows_that_were_held_out(tmp_path: Path) -> None:
    def predictor(target: str, n_test: int, acc10: float | None, split: str = "shape") -> Any:
        sizes = {"n_train": 9, "bytes": 1, "us_per_prediction": 1.0, "processor": "cpu"}
        figures = {"n_test": n_test, "acc10": acc10, "acc5": 10.0, "mape": 5.0}
        return {"name": "codl", "target": target, "split": split, **sizes, **figures}

    rows = [
        predictor("conv2d_cpu_gemm", 30, 80.0),
        predictor("pooling_cpu_direct", 10, 40.0),
        predictor("pooling_cpu_direct", 10, 99.0, split="row"),
        predictor("data_sharing_load", 10, 20.0),
        predictor("mulayer_conv2d_cpu", 50, 1.0),
        predictor("reshape_cpu_copy", 7, None),
    ]
    file = tmp_path / "train.json"
    content = {"command": "train", "soc": "two", "predictors": rows, "train_s": 1.0}
    file.write_text(json.dumps(content))
    assert [line[:4] for line in cells(accuracy_content(load_result(file)))] == [
        ("data sharing", "1", "10", "20.0"),
        ("operators on the CPU", "2", "40", "70.0"),  # (30 * 80 + 10 * 40) / 40
        ("all", "3", "50", "60.0"),
    ]


#: CPU, GPU and plan in milliseconds, and what was predicted of each.
LEFT1 = {"testnet": ((10.0, 40.0, 9.0), (10.0, 40.0, 8.0)), "other": ((8.0, 8.0, 5.0), None)}
LEFT2 = {"testnet": ((10.0, 20.0, 8.0), (10.0, 20.0, 7.5))}
LEFT8 = {"testnet": ((10.0, 5.0, 5.0), (10.0, 5.0, 4.0)), "other": ((8.0, 1.0, 1.25), None)}


def test_a_comparison_has_a_row_per_model_and_speedups_of_plans(tmp_path: Path) -> None:
    from summaries import comparison_content

    ran = {
        "version": "1.2",
        "threads": 2,
        "observed_cores": [0, 1],
        "busy_cores": 1.94,
    }  # keys of earlier versions, too
    rows = [
        row("cpu", 20.0),
        row("gpu", 10.0),
        row("codl", 5.0, cosine=0.99999, max_rel_err=1e-5),
        row("ort", 8.0, peer=ran, cosine=1.0, max_rel_err=2e-4),
        row("cpu", 30.0, model="other"),
        {**row("codl", 1.0, model="other", status="failed", reason="no plan"), "latency_ms": None},
    ]
    table = comparison_content(load_result(write(tmp_path / "eval.json", *rows)))  # type: ignore[arg-type]
    assert [column.header for column in table.columns] == [
        "model", "`cpu`", "`gpu`", "`codl`", "`ort`", "speedup of `codl`",
    ]  # fmt: skip
    assert cells(table) == [
        ("net", "20.0", "10.0", "5.00", "8.00", "2.00"),
        ("other", "30.0", NONE, "failed", NONE, NONE),
    ]
    caption = " ".join(table.caption)
    assert "least cosine of an output is 0.999990000, the largest max_rel_err 2.00e-04" in caption
    assert "codl on other failed: no plan." in caption
    assert "commit abc1234" in caption


def rows(models: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for model, (levels, predicted) in models.items():
        for at, (strategy, ms) in enumerate(zip(("cpu", "gpu", "codl"), levels, strict=True)):
            latency = {"median": 1.1 * ms, "p20": ms, "p80": 1.2 * ms, "runs": 9}
            ahead = predicted[at] if predicted else None
            own = {"model": model, "strategy": strategy, "latency_ms": latency}
            found.append({**own, "predicted_ms": ahead, "source": "simulated", "status": "ok"})
    return found


def evaluation(name: str, own: list[dict[str, Any]]) -> dict[str, Any]:
    soc = {
        "name": name,
        "description": f"test data, {name}",
        "cpu": {"name": "Test CPU", "cores": [0]},
        "gpu": {"name": "Test GPU", "platform": "Test OpenCL", "driver": "9", "type": "gpu"},
    }
    return {"command": "eval", "soc": soc, "rows": own, "commit": "abc1234"}


def curves(*evaluations: dict[str, Any]) -> dict[str, Any]:
    return {"command": "curve", "version": 1, "commit": "abc1234", "evaluations": [*evaluations]}


def example() -> dict[str, Any]:
    sizes = (("left8", LEFT8), ("left1", LEFT1), ("left2", LEFT2))
    return curves(*(evaluation(name, rows(models)) for name, models in sizes))


def parsed(content: dict[str, Any]) -> Any:
    return parse_curve(content, "curve-test.json")


def failing(model: str) -> list[dict[str, Any]]:
    failure = {"latency_ms": None, "status": "failed", "reason": "the process was ended"}
    return [{**row, **failure} for row in rows({model: LEFT2["testnet"]})]


def test_points_are_gains_over_the_better_processor_by_the_ratio_of_speeds() -> None:
    (family,) = families([parsed(example())])
    points = family.models["testnet"]
    assert [point.measured.ratio for point in points] == [0.25, 0.5, 2.0]
    assert [point.measured.gain for point in points] == pytest.approx([10 / 9, 1.25, 1.0])
    assert [p.predicted.gain for p in points if p.predicted] == pytest.approx([1.25, 4 / 3, 1.25])
    assert [point.bound for point in points] == pytest.approx([1.25, 1.5, 1.5])
    assert [point.predicted for point in family.models["other"]] == [None, None]


def test_every_point_has_a_line_and_a_failed_one_a_reason() -> None:
    content = example()
    content["evaluations"].append(evaluation("left16", failing("testnet")))
    table = curve_content([parsed(content)])
    assert [section.heading for section in table.sections] == [
        f"test data, left{left}" for left in (8, 1, 2, 16)
    ]
    line = ("testnet", "10.0", "20.0", "8.00", "7.50", "0.500", "1.25", "1.33", "1.50")
    assert table.sections[2].rows[0].cells == line
    assert table.sections[3].rows[0].failure == "the process was ended"
    caption = " ".join(table.caption)
    assert "`curve-test.json`: codl commit abc1234." in caption
    assert "Test GPU in part beside Test CPU: Test OpenCL 9." in caption
    assert "simulated: from a model of a SoC, not from a device." in caption
    # A ratio of 2 is as far from 1 as one of 1/2.
    closest = "where the two are closest, the geometric mean of 2 models is 1.41 times"
    assert f"Test GPU in part beside Test CPU: {closest} the better one" in caption
    assert "the least at any size is 0.800, of other (test data, left8)" in caption


def test_what_was_measured_later_counts() -> None:
    again = [evaluation("left2", failing("testnet")), evaluation("left2", rows(LEFT2))]
    (family,) = families([parsed(curves(*again))])
    assert [point.measured.gain for point in family.points] == [1.25]


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
