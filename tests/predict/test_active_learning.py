"""What a collection with a budget measures next, and what it says of the result."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.simulated import GEMM, SOC, conv_tasks, noisy_dataset

from codl.ir import Op, Shape
from codl.measure.dataset import Dataset
from codl.predict.active_learning import (
    FIRST,
    ActiveLearner,
    farthest_first,
    in_turns,
    is_random,
)

BUDGET_S = 100.0


def test_about_half_of_all_items_are_random() -> None:
    parts = {task.part for task in conv_tasks()}
    assert 0.4 < np.mean([is_random(part) for part in parts]) < 0.6
    shapes = [Shape(1, c, 7, 7) for c in range(1, 200)]
    assert 0.4 < np.mean([is_random(shape) for shape in shapes]) < 0.6


def test_every_next_one_is_the_farthest_of_those_left() -> None:
    dice = np.random.default_rng(0)
    known, candidates = 10 ** dice.uniform(0, 5, (5, 3)), 10 ** dice.uniform(0, 5, (30, 3))
    order = farthest_first(known, candidates)
    assert sorted(order) == list(range(30))
    logs = np.log1p(np.vstack([known, candidates]))
    logs /= logs.std(0)
    for at in range(29):
        before = np.vstack([logs[:5], logs[5:][order[:at]]])
        scores = {i: np.linalg.norm(before - logs[5 + i], axis=1).min() for i in order[at:]}
        assert scores[order[at]] == pytest.approx(max(scores.values()))


def test_a_feature_that_never_varies_does_not_matter() -> None:
    candidates = np.array([[1.0, 7.0], [100.0, 7.0], [10.0, 7.0]])
    assert farthest_first(candidates[:1], candidates[1:]) == [0, 1]


def test_streams_take_turns() -> None:
    def count(upto: int) -> Iterator[int]:
        yield from range(upto)

    assert list(in_turns(["abc", "", "xy", map(str, count(1))])) == ["a", "x", "0", "b", "y", "c"]
    assert list(in_turns([])) == []


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


def test_tasks_are_ordered_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything, when = conv_tasks(), []
    learner = ActiveLearner(SOC, noisy_dataset(tmp_path, everything[:20], noise=0.5), BUDGET_S)
    for second in range(int(BUDGET_S)):
        monkeypatch.setattr(learner, "_ordered", lambda tasks, at=second: when.append(at) or tasks)
        learner.choose(everything[20:], float(second))
    assert when[0] == FIRST * BUDGET_S
    assert 2 <= len(when) <= 6
    assert all(later >= 1.6 * before for before, later in pairwise(when))


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
