"""What a collection with a budget measures next, when it ends, and what it says of the result."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.simulated import GEMM, SOC, conv_tasks, noisy_dataset

from codl.ir import Shape
from codl.measure.dataset import Dataset
from codl.measure.tasks import DispatchTask, SharingTask, Task
from codl.predict.active_learning import (
    LEAST_ROWS,
    ActiveLearner,
    LearningPoint,
    has_converged,
    is_random,
)

BUDGET_S = 100.0


def looks(*accuracies: float, rows: float = 1.5, tested: int = 100) -> list[LearningPoint]:
    return [
        LearningPoint("t", int(100 * rows**at), tested, acc10=acc, acc5=50.0, mape=9.0)
        for at, acc in enumerate(accuracies)
    ]


@pytest.mark.parametrize(
    ("own", "has_ended"),
    [
        ([], False),
        (looks(80.0, 80.5), False),
        (looks(80.0, 80.5, 80.6), True),
        (looks(80.0, 85.0, 85.1), False),
        (looks(80.0, 80.1, 80.2, rows=1.1), False),
        (looks(80.0, 80.5, 80.6, tested=LEAST_ROWS - 1), False),
        ([LearningPoint("t", 60, 40, 95.0, 80.0, 3.0)], True),
    ],
)
def test_a_target_converges_when_good_or_when_rows_gain_nothing(
    own: list[LearningPoint], has_ended: bool
) -> None:
    assert has_converged(own) is has_ended


def test_it_ends_when_accuracy_is_good_and_goes_on_when_it_is_not(tmp_path: Path) -> None:
    everything = conv_tasks()
    exact = ActiveLearner(
        SOC, noisy_dataset(tmp_path / "exact", everything[:200], noise=0.01), BUDGET_S
    )
    assert exact.choose(everything[200:], BUDGET_S) == ()
    noisy = ActiveLearner(
        SOC, noisy_dataset(tmp_path / "noisy", everything[:200], noise=0.5), BUDGET_S
    )
    assert noisy.choose(everything[200:], BUDGET_S)
    # What surrounds ops is measured in any case, and before what has converged.
    others: list[Task] = [DispatchTask(1), SharingTask("to_gpu", Shape(1, 8, 8, 8))]
    again = ActiveLearner(SOC, exact.dataset, BUDGET_S)
    order = again.choose([*everything[200:], *others], BUDGET_S)
    assert list(order[:2]) == others
    assert len(order) == len(everything[200:]) + 2


def test_what_is_expected_is_what_random_shapes_held_out_show(tmp_path: Path) -> None:
    measured = conv_tasks()
    learner = ActiveLearner(SOC, noisy_dataset(tmp_path, measured, noise=0.05), BUDGET_S)
    expected = learner.expected()
    assert expected is not None
    (found,) = [row for row in expected["targets"] if row["target"] == GEMM]
    assert found["rows"] == len(measured)
    assert found["tested"] == sum(is_random(task.part) for task in measured)
    # 5 % of noise: 95 % of errors within 10 %, 68 % within 5 %, a mean error of 4 %.
    assert 85 < found["acc10"] <= 100
    assert 55 < found["acc5"] < 85
    assert 3 < found["mape"] < 6
    assert ActiveLearner(SOC, Dataset(tmp_path / "none"), BUDGET_S).expected() is None
