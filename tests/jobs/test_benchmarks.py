"""An interface beside engines: what is measured in turns, and what Ctrl-C leaves of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from codl.jobs.bench import bench_ui
from codl.measure.budget import Budget
from codl.measure.ui_frames import PERIOD_MS, Drawn

#: One frame on time and one that is late by a refresh.
DRAWN: Drawn = ((0, 3.0), (1, 1.5 * PERIOD_MS))


class Interface:
    """Draws the same frames each time; Ctrl-C comes at the one that is named."""

    def __init__(self, ends_at: int | None = None) -> None:
        self.asked: list[float] = []
        self.ends_at = ends_at

    def draw_frames(self, seconds: float) -> Drawn:
        self.asked.append(seconds)
        if len(self.asked) == self.ends_at:
            raise KeyboardInterrupt
        return DRAWN


class Runs:
    """An engine that only counts its runs."""

    def __init__(self) -> None:
        self.runs = 0
        self.plan, self.limited = SimpleNamespace(predicted_ms=2.0), None

    def __call__(self, inputs: Any) -> None:
        self.run()

    def run(self) -> None:
        self.runs += 1


def drawn_beside(interface: Interface, budget: Budget | None = None) -> dict[str, Any]:
    engines: Any = {"plain": Runs(), "limited": Runs()}
    rows = bench_ui(engines, interface, {}, seconds=4.0, budget=budget)  # type: ignore[arg-type]
    return {row.beside: row for row in rows}


def test_each_has_the_same_turns_and_its_own_row() -> None:
    interface = Interface()
    rows = drawn_beside(interface)
    assert list(rows) == ["nothing", "plain", "limited"]
    first, *turns = interface.asked
    assert first == 0.0, "what opens the device is no turn"
    assert sum(turns) == pytest.approx(3 * 4.0)
    for row in rows.values():
        assert row.frames.on_time == pytest.approx(2 / 3)
        assert row.frames.worst_stall_ms == pytest.approx(2 * PERIOD_MS)
    assert rows["nothing"].latency_ms is None
    assert rows["plain"].predicted_ms == 2.0


def test_ctrl_c_keeps_whole_rounds() -> None:
    budget = Budget()
    rows = drawn_beside(Interface(ends_at=6), budget)  # in the second round
    assert budget.ended == "interrupted"
    assert rows["limited"].frames.refreshes == 3
