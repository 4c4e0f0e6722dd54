"""The search against the best plan of all that are priced whole; latencies follow a law."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from codl.plan.search import search

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from planning_gap import best_ms, drawn, is_split, priced_ms

#: The search's ratios are near the balanced ones, and its chains those that lose little.
MOST_GAP = 0.03


@pytest.mark.parametrize(("seed", "splits"), [(0, True), (1, True), (2, False)])
def test_no_plan_is_much_faster_than_the_searchs(seed: int, splits: bool) -> None:
    network, cost = drawn(seed, 2)
    plan = search(network, cost, "test")
    assert is_split(plan) == splits
    assert priced_ms(network, cost, plan) <= (1 + MOST_GAP) * best_ms(network, cost)
