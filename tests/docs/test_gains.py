"""README's tables and picture: what they leave out, and what they are made of."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from codl.report.results import load_result
from codl.report.text_table import NONE

ROOT = Path(__file__).resolve().parents[2]
SOC = {"name": "two", "description": "two halves"}


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(ROOT / "scripts")])


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
    from gains import gains_content

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
    from gains import gains_content

    times = {"cpu": 30.0, "gpu": 20.0, "codl": 16.0}
    rows = [row(name, ms, **(more if name == strategy else {})) for name, ms in times.items()]
    table = gains_content([write(tmp_path / "eval.json", *rows)])
    assert cells(table) == []
    assert f"Left out as doubtful: net of `eval.json` ({why})." in table.caption


def test_replayed_phones_have_a_mean_each(tmp_path: Path) -> None:
    from gains import gains_content

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
    from summaries import accuracy_content

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


def test_a_comparison_has_a_row_per_model_and_speedups_of_plans(tmp_path: Path) -> None:
    from summaries import comparison_content

    ran = {"version": "1.2", "threads": 2, "observed_cores": [0, 1], "busy_cores": 1.94}
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
