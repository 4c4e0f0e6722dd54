"""Waterfalls on pages, from results written by hand: every number here is test data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codl.errors import CodlError
from codl.jobs.frames import results
from codl.report.html import write_report
from codl.report.results import ExplainResult, parse_as
from codl.report.waterfalls import (
    chains_content,
    steps_of,
    waterfall_content,
    whole_content,
)

TERMS = {"cuts": 1.0, "chains": 2.0, "overlap": -0.5}
RUN = {"cpu": 0.0, "engine": 1.5}


def terms(values: dict[str, float], part: float = 1.0) -> list[dict[str, Any]]:
    return [{"name": name, "ms": part * ms} for name, ms in values.items()]


def waterfall(*, is_measured: bool = True, **values: Any) -> dict[str, Any]:
    """A bound of 10 ms, two chains that have three quarters and the rest, and 1.5 ms unforeseen."""
    own = {**TERMS, **(RUN if is_measured else {})}
    chains = [
        {
            "ops": ops,
            "dim": dim,
            "gpu_ratio": ratio,
            "bound_ms": part * 10.0,
            "terms": terms(own, part),
            "predicted_ms": part * 12.5,
            "measured_ms": part * 14.0 if is_measured else None,
            "work_ms": {"cpu": 3.0, "gpu": 4.0},
            "measured_work_ms": {"cpu": 3.5, "gpu": 4.0} if is_measured else None,
        }
        for ops, dim, ratio, part in ((["a", "b"], "OC", 0.45, 0.75), ([], "H", 0, 0.25))
    ]
    latency = {"median": 14.0, "p20": 13.5, "p80": 15.0, "runs": 20}
    found = {
        "command": "explain",
        "model": "testnet",
        "strategy": "codl",
        "soc": {"name": "testhost", "gpu": {"name": "Test GPU", "type": "cpu"}},
        "predictor": "codl",
        "bound_ms": 10.0,
        "side_by_side_ms": 10.25,
        "terms": terms(own),
        "predicted_ms": 12.5,
        "measured_ms": 14.0 if is_measured else None,
        "latency_ms": latency if is_measured else None,
        "source": "measured" if is_measured else "computed",
        "chains": chains,
    }
    return {**found, **values}


def test_steps_lead_from_the_bound_to_both_latencies() -> None:
    steps = [
        (step.name, step.ms, step.total_ms)
        for step in steps_of(parse_as(ExplainResult, waterfall()))
    ]
    assert steps == [
        ("bound", None, 10.0),
        ("cuts", 1.0, 11.0),
        ("chains", 2.0, 13.0),
        ("overlap", -0.5, 12.5),
        ("predicted", None, 12.5),
        ("cpu", 0.0, 12.5),
        ("engine", 1.5, 14.0),
        ("measured", None, 14.0),
    ]
    predicted = steps_of(parse_as(ExplainResult, waterfall(is_measured=False)))
    assert predicted[-1].name == "predicted"


def test_tables_show_signs_and_chains(tmp_path: Path) -> None:
    result = parse_as(ExplainResult, waterfall())
    rows = {row.cells[0]: row.cells[1:4] for row in waterfall_content(result).sections[0].rows}
    assert rows["chains"] == ("+2.00", "13.0", "130")
    assert rows["overlap"] == ("-0.500", "12.5", "125")
    assert "one CPU, divided" in " ".join(waterfall_content(result).caption)
    first, last = (row.cells for row in chains_content(result).sections[0].rows)
    assert first[1:5] == ("OC 0.45", "3.00 / 3.50", "4.00 / 4.00", "7.50")
    assert first[5:] == ("+0.750", "+1.50", "-0.375", "+1.12", "10.5")
    assert (last[0], last[-1]) == ("(results)", "3.50")
    path = tmp_path / "explain.json"
    path.write_text(json.dumps(waterfall(source="replayed", model="<b>net</b>")))
    html = write_report([path], tmp_path / "page.html").read_text()
    assert "<b>net" not in html
    assert "replayed" in html
    frame = results(path)
    assert list(frame["name"]) == ["bound", *TERMS, *RUN]
    assert frame["ms"].sum() == 14.0


@pytest.mark.parametrize("values", [{"terms": []}, {"gpu_ratio": 7}])
def test_chains_of_other_terms_or_ratios_are_refused(values: dict[str, Any]) -> None:
    content = waterfall()
    content["chains"][0] |= values
    with pytest.raises((ValueError, CodlError), match=r"chains\[0\]"):
        parse_as(ExplainResult, content)


def test_an_op_that_is_left_whole_says_why() -> None:
    split = {"dim": "OC", "gpu_ratio": 0.625, "best_ms": 0.41, "saves_ms": 0.2}
    shared = {"op": "a", "processor": "gpu", "whole_ms": 0.61, "net_ms": 0.05, **split}
    fixed = {**shared, "op": "b", "dim": None, "gpu_ratio": None, "saves_ms": 0.0, "net_ms": 0.0}
    result = parse_as(ExplainResult, waterfall(whole=[{**shared, "sharing_ms": 0.21}, fixed]))
    assert [row.cells[-1] for row in whole_content(result).sections[0].rows] == [
        "0.610 ms on the GPU; split by OC at 0.62 it computes in 0.410 ms; sharing 0.210 ms stands "
        "against it.",
        "0.610 ms on the GPU; it cannot be split.",
    ]
