"""Two result files beside each other: what is noise, what is not, and how a command ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import command_line

from codl.errors import MismatchError
from codl.report.compare import ResultComparison, compare_results
from codl.report.html import write_report
from codl.report.results import parse_result

ENVIRONMENT = {"machine": "x86_64", "system": "Linux", "driver": "1.0", "protocol": {"seconds": 2}}


def evaluation(levels: dict[str, float], *, spread: float = 1.0, **more: Any) -> dict[str, Any]:
    """An evaluation of test data: strategies by name, `m/strategy` for a model of its own."""
    rows = []
    for name, ms in levels.items():
        model, _, strategy = name.rpartition("/")
        latency = {"median": spread * ms, "p20": ms, "p80": 2 * spread * ms, "runs": 9}
        row = {"model": model or "net", "strategy": strategy, "predicted_ms": None}
        rows.append({**row, "source": "simulated", "latency_ms": latency})
    about = {"command": "eval", "commit": "a", "soc": "host", "environment": ENVIRONMENT}
    return {**about, "rows": rows, **more}


def compared(first: dict[str, Any], second: dict[str, Any], **how: bool) -> ResultComparison:
    return compare_results(parse_result(first, "a.json"), parse_result(second, "b.json"), **how)


def verdicts(comparison: ResultComparison) -> dict[str, str]:
    return {f"{pair.group}/{pair.name}": pair.verdict for pair in comparison.pairs}


def test_what_differs_by_more_than_noise_is_told() -> None:
    before = evaluation({"cpu": 10.0, "gpu": 10.0, "codl": 10.0})
    found = compared(before, evaluation({"cpu": 10.2, "gpu": 10.5, "codl": 9.0}))
    assert verdicts(found) == {"net/cpu": "alike", "net/gpu": "worse", "net/codl": "better"}
    assert [pair.cost for pair in found.pairs] == pytest.approx([1.02, 1.05, 0.9])
    wide = evaluation({"cpu": 10.2, "gpu": 10.5, "codl": 9.0}, spread=1.2)
    assert {*verdicts(compared(before, wide)).values()} == {"alike", "better"}, "half of 20 %"


def test_means_are_geometric_and_as_sure_as_a_run_is() -> None:
    before = evaluation({"a/codl": 1.0, "b/codl": 10.0})
    (mean,) = compared(before, evaluation({"a/codl": 1.02, "b/codl": 10.2})).means
    assert (mean.count, mean.cost) == (2, pytest.approx(1.02))
    assert (mean.tolerance, mean.verdict) == (pytest.approx(0.03), "alike")
    (mean,) = compared(before, evaluation({"a/codl": 2.0, "b/codl": 45.0})).means
    assert (mean.cost, mean.verdict) == (pytest.approx(3.0), "worse")


def test_speedups_are_those_of_either_run() -> None:
    """The second machine takes twice as long for everything."""
    before = evaluation({"cpu": 10.0, "gpu": 12.0, "codl": 5.0})
    now = evaluation({"cpu": 20.0, "gpu": 24.0, "codl": 10.0})
    assert {*verdicts(compared(before, now)).values()} == {"worse"}
    alike = compared(before, now, speedups=True)
    assert {*verdicts(alike).values()} == {"alike"}
    assert [pair.before for pair in alike.pairs] == pytest.approx([1.0, 10 / 12, 2.0])


def test_what_is_not_compared_has_a_reason() -> None:
    models = {"digests": {"models": {"net": "1", "other": "1"}}}
    changed = {"digests": {"models": {"net": "2", "other": "1"}}}
    before = evaluation({"cpu": 1.0, "other/cpu": 1.0, "other/gpu": 1.0}, **models)
    now = evaluation({"cpu": 1.0, "other/cpu": 1.0, "other/codl": 1.0}, **changed)
    found = {f"{p.group}/{p.name}": p.reason for p in compared(before, now).pairs}
    assert found == {
        "net/cpu": "another model",
        "other/cpu": "",
        "other/gpu": "not measured",
        "other/codl": "not there before",
    }
    with pytest.raises(MismatchError, match="no figure in common: another model"):
        compared(evaluation({"cpu": 1.0}, **models), evaluation({"cpu": 1.0}, **changed))
    run = {"command": "run", "model": "net", "latency_ms": before["rows"][0]["latency_ms"]}
    with pytest.raises(MismatchError, match="two results of one command are compared"):
        compared(before, run)


def test_what_else_differs_is_told() -> None:
    other = {**ENVIRONMENT, "driver": "2.0", "protocol": {"seconds": 9}}
    now = evaluation({"cpu": 1.0}, commit="b", soc="rock", environment=other)
    found = {d.what: (d.first, d.second) for d in compared(evaluation({"cpu": 1.0}), now).differing}
    assert found == {
        "commit": ("a", "b"),
        "SoC": ("host", "rock"),
        "driver": ("1.0", "2.0"),
        "protocol seconds": (2, 9),
    }


def predictor(acc10: float, n_test: int) -> dict[str, Any]:
    row = {"name": "codl", "target": "conv", "processor": "cpu", "n_train": 9, "n_test": n_test}
    return {**row, "split": "shape", "acc10": acc10, "acc5": 1.0, "mape": 1.0, "bytes": 1,
            "us_per_prediction": 1.0}  # fmt: skip


def training(acc10: float, n_test: int) -> dict[str, Any]:
    rows = [predictor(acc10, n_test)]
    return {"command": "train", "soc": "host", "predictors": rows, "train_s": 1.0}


def test_accuracies_are_as_sure_as_they_have_rows() -> None:
    """80 and 70 % of 50 rows may be chance: 2 errors are 17 points. Of 5000 rows it is none."""
    for rows, verdict in ((50, "alike"), (5000, "worse")):
        (pair,) = compared(training(80.0, rows), training(70.0, rows)).pairs
        assert (pair.verdict, pair.cost) == (verdict, pytest.approx(80 / 70))


def test_a_command_fails_where_it_is_asked_to(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(evaluation({"cpu": 10.0, "codl": 10.0})))
    (tmp_path / "b.json").write_text(json.dumps(evaluation({"cpu": 10.1, "codl": 10.8})))
    done = command_line.run(tmp_path, "compare", "a.json", "b.json", "--json")
    assert (done.code, json.loads(done.stdout)["of"]) == (0, "eval")
    for limit, code in (("1.05", 1), ("1.1", 0)):
        done = command_line.run(tmp_path, "compare", "a.json", "b.json", "--fail-above", limit)
        assert done.code == code
        assert "1 worse" in done.stdout
    (tmp_path / "b.json").write_text(json.dumps(evaluation({"cpu": 10.1})))
    done = command_line.run(tmp_path, "compare", "a.json", "b.json", "--fail-above", "9")
    assert done.code == 1
    assert "codl of net" in done.stderr


def test_a_report_refuses_what_was_not_measured_alike(tmp_path: Path) -> None:
    for name, content in {
        "old.json": evaluation({"cpu": 1.0}),
        "new.json": evaluation({"cpu": 1.0}, environment={**ENVIRONMENT, "driver": "1.3"}),
        "other.json": evaluation(
            {"cpu": 1.0}, soc="phone", environment={**ENVIRONMENT, "driver": "7"}
        ),
        "before.json": {**evaluation({"cpu": 1.0}), "environment": None},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
    paths = [tmp_path / f"{name}.json" for name in ("before", "old", "other", "new")]
    page = tmp_path / "page.html"
    with pytest.raises(MismatchError, match=r"old.json and new.json .* driver: 1.0 and 1.3"):
        write_report(paths, page)
    assert not page.exists()
    assert write_report(paths[:-1], page).exists()
    assert write_report(paths, page, apart=True).exists()
