"""What may stand beside each other in a report, and whether evaluations agree: all is test data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codl.errors import MismatchError
from codl.report.comparability import LEAST_TOLERANCE, SpeedupComparison, agreement_content, compare
from codl.report.html import write_report
from codl.report.load import eval_result

ENVIRONMENT = {"machine": "a board", "system": "Linux aarch64", "driver": "1.2"}


def row(strategy: str, ms: float | None, noise: float = 1.0, **more: Any) -> dict[str, Any]:
    latency = {"p20": ms, "median": noise * ms, "p80": 9 * ms, "runs": 9} if ms else None
    status = {} if ms else {"status": "failed", "reason": "no memory"}
    common = {"model": "net", "strategy": strategy, "predicted_ms": None, "source": "measured"}
    return {**common, "latency_ms": latency, **status, **more}


def evaluation(*rows: dict[str, Any], soc: str = "board", **environment: Any) -> dict[str, Any]:
    own = {**ENVIRONMENT, **environment}
    return {"command": "eval", "soc": {"name": soc}, "rows": rows, "environment": own}


def verdicts(
    before: list[dict[str, Any]], now: list[dict[str, Any]]
) -> dict[str, SpeedupComparison]:
    both = eval_result(evaluation(*before)), eval_result(evaluation(*now))
    return {figure.strategy: figure for figure in compare(*both)}


def test_ratios_are_compared_and_not_milliseconds() -> None:
    before = [row("cpu", 10.0), row("gpu", 20.0), row("codl", 5.0)]
    twice = [row("cpu", 20.0), row("gpu", 40.0), row("codl", 10.0)]
    assert all(own.agrees for own in verdicts(before, twice).values())
    other = [row("cpu", 10.0), row("gpu", 20.0), row("codl", 6.0)]
    found = verdicts(before, other)
    assert (found["cpu"].agrees, found["gpu"].agrees, found["codl"].agrees) == (True, True, False)
    assert (found["codl"].before, found["codl"].now) == (2.0, pytest.approx(10 / 6))


def test_the_tolerance_is_what_both_have_spread() -> None:
    before, now = [row("cpu", 10.0), row("codl", 5.0)], [row("cpu", 10.0), row("codl", 5.5)]
    quiet = verdicts(before, now)["codl"]
    assert (quiet.tolerance, quiet.agrees) == (pytest.approx(LEAST_TOLERANCE), False)
    noisy = [row("cpu", 10.0), row("codl", 5.5, noise=1.3)]
    loose = verdicts(before, noisy)["codl"]
    assert loose.agrees
    assert loose.tolerance == pytest.approx(1.3**0.5 - 1)
    assert verdicts(noisy, before)["codl"].tolerance == pytest.approx(loose.tolerance)


def test_what_failed_or_is_not_there_says_why() -> None:
    fine, failed = [row("cpu", 10.0), row("codl", 5.0)], [row("cpu", 10.0), row("codl", None)]
    assert verdicts(failed, failed)["codl"].agrees
    for before, now in ((fine, failed), (failed, fine)):
        found = verdicts(before, now)["codl"]
        assert (found.agrees, found.reason) == (False, "failed: no memory")
    assert verdicts(fine, fine[:1])["codl"].reason == "not measured again"


def test_a_library_of_another_version_is_another_one() -> None:
    peer = {"threads": 2, "observed_cores": [0, 1], "busy_cores": 2.0}
    old, new = (
        [row("cpu", 10.0), row("ort", 5.0, peer={"version": version, **peer})]
        for version in ("1.0", "1.1")
    )
    assert verdicts(old, old)["ort"].agrees
    assert verdicts(old, new)["ort"].reason == "version 1.0 then, 1.1 now"


def test_every_figure_has_a_line() -> None:
    figures = (
        SpeedupComparison("net", "codl", 2.0, 1.5, 0.1, False),
        SpeedupComparison("net", "cpu", 1, 1, 0.1, True),
    )
    (section,) = agreement_content(figures, "eval.json").sections
    assert [line.cells for line in section.rows] == [
        ("codl", "2.00", "1.50", "10.0", "no"),
        ("cpu", "1.00", "1.00", "10.0", "yes"),
    ]


def test_a_report_refuses_what_was_not_measured_alike(tmp_path: Path) -> None:
    for name, content in {
        "old.json": evaluation(row("cpu", 1.0)),
        "new.json": evaluation(row("cpu", 1.0), driver="1.3"),
        "other.json": evaluation(row("cpu", 1.0), soc="phone", driver="7"),
        "before.json": {**evaluation(row("cpu", 1.0)), "environment": None},
    }.items():
        (tmp_path / name).write_text(json.dumps(content))
    paths = [tmp_path / f"{name}.json" for name in ("before", "old", "other", "new")]
    page = tmp_path / "page.html"
    with pytest.raises(MismatchError, match=r"old.json and new.json .* driver: 1.2 and 1.3"):
        write_report(paths, page)
    assert not page.exists()
    assert write_report(paths[:-1], page).exists()
    assert write_report(paths, page, apart=True).exists()
