"""What a collection with a budget measures next, and what it says of the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.simulated import GEMM, SOC, conv_tasks, noisy_dataset

from codl.ir import Op
from codl.measure.dataset import Dataset
from codl.predict.active_learning import (
    FIRST,
    ActiveLearner,
    is_random,
)

BUDGET_S = 100.0


def test_every_second_task_is_random_and_the_others_unlike_what_is_known(tmp_path: Path) -> None:
    everything = conv_tasks()
    measured, missing = everything[:80], everything[80:]
    learner = ActiveLearner(SOC, noisy_dataset(tmp_path, measured, noise=0.4), BUDGET_S)
    assert learner.choose(missing, 0.0) == missing  # nothing is looked at yet
    chosen = list(learner.choose(missing, FIRST * BUDGET_S))
    assert set(chosen) == set(missing)
    random_ones = [task for task in missing if is_random(task.part)]
    short = min(len(random_ones), len(missing) - len(random_ones))
    assert chosen[: 2 * short : 2] == random_ones[:short]
    first = [task.part for task in chosen[1:20:2]]
    assert not any(is_random(part) for part in first)
    # The first ones are spread further from what is measured than those in the order given.
    given = [task.part for task in missing if not is_random(task.part)][:10]
    known = [task.part for task in measured]
    assert nearest(first, known) > 1.3 * nearest(given, known)


def nearest(parts: list[Op], known: list[Op]) -> float:
    """Mean distance from the nearest part that is known or before, in logarithms of sizes."""

    def sizes(op: Op) -> np.ndarray:  # type: ignore[type-arg]
        return np.log([op.input.c, op.output.c, op.output.h, op.output.w])

    found = []
    for at, part in enumerate(parts):
        others = [*known, *parts[:at]]
        found.append(min(np.linalg.norm(sizes(part) - sizes(other)) for other in others))
    return float(np.mean(found))


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
