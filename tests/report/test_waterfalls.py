"""Waterfalls on pages, from results written by hand: every number here is test data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from codl.errors import InvalidFileError
from codl.jobs.frames import results
from codl.report.html import waterfall as drawn
from codl.report.html import write_report
from codl.report.results import ExplainResult, parse_as
from codl.report.waterfalls import (
    chains_content,
    findings,
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


def test_tables_show_signs_chains_and_what_was_not_run() -> None:
    result = parse_as(ExplainResult, waterfall(slowdown={"cpu": 1.25}))
    rows = {row.cells[0]: row.cells[1:4] for row in waterfall_content(result).sections[0].rows}
    assert rows["chains"] == ("+2.00", "13.0", "130")
    assert rows["overlap"] == ("-0.500", "12.5", "125")
    assert rows["cpu"][0] == "0"
    text = " ".join(waterfall_content(result).caption)
    assert "all ops cut at one ratio: 10.2 ms" in text
    assert "Anchor ops took cpu 1.25" in text
    assert "one CPU, divided" in text
    assert "disturbed" not in text
    spread = {"median": 14.0, "p20": 13.0, "p80": 16.0, "runs": 20}
    uneven = waterfall_content(parse_as(ExplainResult, waterfall(latency_ms=spread)))
    assert "Something disturbed them" in " ".join(uneven.caption)
    unrun = parse_as(ExplainResult, waterfall(is_measured=False))
    assert "Nothing was run" in " ".join(waterfall_content(unrun).caption)
    chains = chains_content(result)
    assert [column.header for column in chains.columns][4:] == [
        "bound", "cuts", "chains", "overlap", "engine", "measured",
    ]  # fmt: skip
    first, last = (row.cells for row in chains.sections[0].rows)
    assert first[1:5] == ("OC 0.45", "3.00 / 3.50", "4.00 / 4.00", "7.50")
    assert first[5:] == ("+0.750", "+1.50", "-0.375", "+1.12", "10.5")
    assert (last[0], last[-1]) == ("(results)", "3.50")
    told = [text for text in chains.caption if "sooner" in text]
    end = "the CPU is done 0.500 ms sooner, 12% of what the GPU takes."
    assert any(text.endswith(end) for text in told)


def test_small_terms_stand_together_where_there_is_no_room() -> None:
    chains = chains_content(parse_as(ExplainResult, waterfall()), most=2)
    assert [column.header for column in chains.columns][4:] == [
        "bound", "chains", "engine", "others", "measured",
    ]  # fmt: skip
    first, _ = (row.cells for row in chains.sections[0].rows)
    assert first[4:] == ("7.50", "+1.50", "+1.12", "+0.375", "10.5")


def test_findings_name_the_largest_terms() -> None:
    (text,) = findings(parse_as(ExplainResult, waterfall()))
    assert "14.0 ms is 1.40 times the lossless bound of 10.0 ms" in text
    assert text.endswith("most is lost to chains (+2.00 ms), engine (+1.50 ms), cuts (+1.00 ms).")


def test_the_picture_says_the_same_in_words() -> None:
    svg = ElementTree.fromstring(f"<svg>{drawn(parse_as(ExplainResult, waterfall())).marks}</svg>")
    words = [element.text or "" for element in svg.iter()]
    assert any(text.startswith("cuts: +1.00 ms, splits in steps of whole rows") for text in words)
    assert {"bound: 10.0 ms", "measured", "overlap", "+1.50", "-0.500"} <= set(words)


def test_a_page_and_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "explain.json"
    path.write_text(json.dumps(waterfall(source="replayed", model="<b>net</b>")))
    html = write_report([path], tmp_path / "page.html").read_text()
    assert "<b>net" not in html
    assert "Waterfall of" in html
    assert "replayed" in html
    frame = results(path)
    assert list(frame["name"]) == ["bound", *TERMS, *RUN]
    assert frame["ms"].sum() == 14.0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (waterfall(terms=terms({**TERMS, **RUN, "cuts": 1.1})), "terms must add up with bound_ms"),
        (waterfall(bound_ms=-1.0), "bound_ms"),
        (waterfall(predicted_ms="12"), "predicted_ms"),
        (waterfall(terms=[{"name": "cuts"}]), r"ms: the key is missing"),
        (waterfall(terms=[{"name": "cuts", "ms": 4.0}]), "terms must be those of the model"),
        (waterfall(chains=[{**waterfall()["chains"][0], "measured_ms": 1.0}]), r"chains\[0\]"),
        (waterfall(chains=[{**waterfall()["chains"][0], "dim": "W"}]), "dim"),
    ],
)
def test_what_does_not_add_up_is_refused(content: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidFileError, match=words):
        parse_as(ExplainResult, content)


def left_whole(op: str, **values: Any) -> dict[str, Any]:
    split = {"dim": "OC", "gpu_ratio": 0.625, "best_ms": 0.41, "saves_ms": 0.2}
    return {"op": op, "processor": "gpu", "whole_ms": 0.61, "net_ms": 0.05, **split, **values}


def test_a_sentence_for_every_op_left_whole() -> None:
    rows = [
        left_whole("shared", sharing_ms=0.21),
        left_whole("called", sharing_ms=-0.01),
        left_whole("better", net_ms=-0.1),
        left_whole("slower", best_ms=0.7, saves_ms=-0.09),
        left_whole("fixed", dim=None, gpu_ratio=None, best_ms=0.61, saves_ms=0.0, net_ms=0.0),
    ]
    result = parse_as(ExplainResult, waterfall(whole=rows))
    sentences = {row.cells[0]: row.cells[-1] for row in whole_content(result).sections[0].rows}
    split = "0.610 ms on the GPU; split by OC at 0.62 it computes in 0.410 ms"
    assert sentences == {
        "shared": f"{split}; sharing 0.210 ms stands against it.",
        "called": f"{split}; launches, calls of nets and waits stand against it.",
        "better": f"{split}; the plan would be faster.",
        "slower": "0.610 ms on the GPU; split by OC at 0.62 it computes in 0.700 ms: "
        "nothing is saved.",
        "fixed": "0.610 ms on the GPU; it cannot be split.",
    }
    shown = whole_content(result, most=2)
    assert [row.cells[0] for row in shown.sections[0].rows] == ["shared", "called"]
    assert any("3 ops more" in line for line in shown.caption)
