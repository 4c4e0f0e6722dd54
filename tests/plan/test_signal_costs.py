"""First launches and waits: counted once, hidden by a busy queue, and left out where not known."""

from __future__ import annotations

import pytest
from support.simulated import SOC
from support.synthetic_predictors import Line, SyntheticPredictors

from codl.ir import Shape
from codl.plan.cost_model import CostModel, SignalCosts
from codl.plan.price import TransferCost, after_stage

PARTS = {"transform": 0.01, "sync": 0.003, "map": 0.05, "unmap": 0.02, "copy": 0.1}


def test_a_measured_wait_takes_the_place_of_the_least_one() -> None:
    inside = SignalCosts(first_launch_ms=0.015, wait_ms=0.025).inside(PARTS)
    assert inside["sync"] == 0.025
    assert inside["map"] == pytest.approx(0.05 - 0.04)
    assert inside["unmap"] == 0.0
    assert (inside["transform"], inside["copy"]) == (0.01, 0.1)


@pytest.mark.parametrize(
    ("costs", "parts"),
    [(SignalCosts(), PARTS), (SignalCosts(0.015, 0.025), {"copy": 0.3})],
    ids=["no waits", "no parts"],
)
def test_what_is_not_known_changes_nothing(costs: SignalCosts, parts: dict[str, float]) -> None:
    assert costs.inside(parts) == parts


def test_a_dataset_without_signals_is_priced_by_its_parts() -> None:
    lines = {"to_cpu": {part: Line(ms) for part, ms in PARTS.items()}}
    predictors = SyntheticPredictors(parts=lines)  # type: ignore[arg-type]
    cost = CostModel(SOC, predictors)
    assert cost.transfer_parts("to_cpu", Shape(1, 8, 8, 8)) == PARTS
    assert cost.signals == SignalCosts()


def test_a_busy_queue_hides_a_first_launch() -> None:
    works = (1.0, 2.0)
    assert after_stage((0.0, 0.0), [], works=works, first_launch_ms=0.5) == (1.0, 2.5)
    assert after_stage((0.0, 3.0), [], works=works, first_launch_ms=0.5) == (1.0, 5.0)
    # One launch of several on an empty queue is its first.
    sent = TransferCost.of("to_cpu", {"transform": 0.25, "sync": 0.125})
    cpu, gpu = after_stage((0.0, 0.0), [sent], works=works, first_launch_ms=0.5)
    assert (cpu, gpu) == (0.5 + 0.25 + 0.125 + 1.0, 0.5 + 0.25 + 2.0)
