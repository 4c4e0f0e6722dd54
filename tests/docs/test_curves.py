"""Curves of gains, from results written by hand: every number here is test data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from curves import (  # type: ignore[import-not-found]
    curve_content,
    families,
    parse_curve,
)

#: CPU, GPU and plan in milliseconds, and what was predicted of each.
LEFT1 = {"testnet": ((10.0, 40.0, 9.0), (10.0, 40.0, 8.0)), "other": ((8.0, 8.0, 5.0), None)}
LEFT2 = {"testnet": ((10.0, 20.0, 8.0), (10.0, 20.0, 7.5))}
LEFT8 = {"testnet": ((10.0, 5.0, 5.0), (10.0, 5.0, 4.0)), "other": ((8.0, 1.0, 1.25), None)}


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
