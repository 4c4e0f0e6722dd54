"""What benchmark scripts print of their rows; the numbers are test data."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"


@pytest.mark.usefixtures("devices")
def test_every_figure_of_convolutions_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    script = importlib.import_module("convolutions")
    rows = [
        script.Row("conv2d a", "cpu", 1.0, "gpu", ratio, ratio, 1.0, 9.0, 9.0)
        for ratio in (2.0, 8.0)
    ]
    lines = script.report(rows).splitlines()
    assert "geometric mean: 4.000" in lines
    assert "worst: 8.000" in lines
    assert "planar worst: 9.000" in lines
