"""What estimators learn beside the common checks: trees, processes, runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.optimize import lsq_linear
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from support.common_checks import read_back

from codl.predict import ESTIMATORS
from codl.predict import estimators as runs
from codl.predict.estimators import LatencyEstimator
from codl.predict.estimators.gp_ensemble import Codl
from codl.predict.estimators.gp_fitting import MaternKernel, Projection, spread_points
from codl.predict.estimators.numerics import costs, to_json
from codl.predict.estimators.trees import Trees
from codl.predict.training_set import inner_folds

ALL = pytest.mark.parametrize("cls", ESTIMATORS.values(), ids=list(ESTIMATORS))


def law(shapes: int, repeats: int = 1, *, seed: int = 0, noise: float = 0.0) -> tuple[Any, ...]:
    """Simulated features, latencies of a law that is not linear, and shapes: rows in that order."""
    rng = np.random.default_rng(seed)
    X = np.exp(rng.uniform(2, 12, (shapes, 4)))
    special = 1 + 0.3 * np.tanh(np.log(X[:, 0]) - 7)
    y = (2e-5 * X[:, 0] + 1e-5 * X[:, 1]) * special + 0.01
    X, y = np.repeat(X, repeats, axis=0), np.repeat(y, repeats)
    return X, y * np.exp(noise * rng.standard_normal(len(y))), np.repeat(np.arange(shapes), repeats)


def within(predicted: np.ndarray, y: np.ndarray, share: float = 0.1) -> float:
    return float(np.mean(np.abs(predicted / y - 1) <= share))


# Common to all


@ALL
def test_labels_must_fit_the_rows(cls: type[LatencyEstimator]) -> None:
    X, y, _ = law(30)
    for name in ("runs", "groups"):
        with pytest.raises(ValueError, match=f"{name} must have 30 labels, got 2"):
            cls.fit(X, y, **{name: ["a", "b"]})
    with pytest.raises(ValueError, match="runs must have 3 labels, got 1"):
        cls.fit(X, y).predict(X[:3], runs=["a"])


@ALL
def test_the_difference_between_runs_is_learned(cls: type[LatencyEstimator]) -> None:
    """One run was 1.3 times slower: told so, nothing is lost on shapes that are held out."""
    X, y, shapes = law(80, 3)
    X, y, shapes = X[:, :2], 1e-5 * X[:, 0] + 2e-5 * X[:, 1] + 0.01, shapes
    labels = np.array(["slow", "usual", "other"] * 80)
    measured = np.where(labels == "slow", 1.3, 1.0) * y
    train = shapes < 60
    fitted = cls.fit(X[train], measured[train], runs=labels[train], groups=shapes[train])
    again = read_back(fitted)
    names = ["slow", "usual"]
    low, high = (again.predict(X[~train], runs=[name] * 60) for name in reversed(names))
    assert np.median(high / low) == pytest.approx(1.3, rel=0.03)
    typical = again.predict(X[~train])
    np.testing.assert_array_equal(again.predict(X[~train], runs=["unknown"] * 60), typical)


def test_columns_of_runs_say_more_than_a_factor() -> None:
    """One run takes up to half as much again, the more the larger an op is."""
    X, y, shapes = law(120, 2)
    labels = np.array(["a", "b"] * 120)
    more = 0.25 * (1 + np.tanh(np.log(X[:, 0]) - 7))
    y = y * np.where(labels == "b", 1 + more, 1.0)
    train = shapes < 90
    fitted = Codl.fit(X[train], y[train], runs=labels[train], groups=shapes[train])
    again = read_back(fitted)
    predicted = again.predict(X[~train], runs=labels[~train])
    np.testing.assert_array_equal(predicted, fitted.predict(X[~train], runs=labels[~train]))
    assert within(predicted, y[~train]) > 0.9
    assert within(again.predict(X[~train]), y[~train]) < 0.7


def test_a_few_rows_of_a_slow_run_make_no_prediction_slow() -> None:
    """The typical run is each by its share of rows, not one of two alike."""
    X, y, shapes = law(200, 2)
    labels = np.where(np.arange(400) % 40, "long", "short")
    slow = y * np.where(labels == "short", 1.6, 1.0)
    train = shapes < 150
    fitted = Codl.fit(X[train], slow[train], runs=labels[train], groups=shapes[train])
    assert fitted.run_columns.shares == pytest.approx({"long": 0.97333, "short": 0.02667}, rel=1e-3)
    assert np.median(fitted.predict(X[~train]) / y[~train]) == pytest.approx(1, abs=0.04)
    short = fitted.predict(X[~train], runs=["short"] * 100)
    assert np.median(short / y[~train]) > 1.3


def test_runs_with_most_rows_have_columns() -> None:
    X, y, shapes = law(60, 2)
    number = np.arange(120) % (runs.MOST_COLUMNS + 1)
    labels = [f"run{at}" for at in number]
    fitted = Codl.fit(X, y * np.where(number % 2, 1.5, 1.0), runs=labels, groups=shapes)
    assert len(fitted.run_columns.shares) == runs.MOST_COLUMNS
    assert not fitted.runs


# Trees


def trees(text: str) -> Trees:
    """Splits such as `0:1.5`, each before its two sides, and leaves' values."""
    pairs = [word.rpartition(":") for word in text.split()]
    nodes = [(int(feature) if colon else -1, float(number)) for feature, colon, number in pairs]
    return Trees(np.array([f for f, _ in nodes], np.intp), np.array([n for _, n in nodes]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0:1.5 1", "every split must have two sides"),
        ("1 2 0:1.5", "every split must have two sides"),
        ("", "a feature and a number"),
        ("-2:1.5 1 2", "every split must have two sides"),
        ("0:1 " * 64 + "1 " * 65, "at most 64 leaves a tree, got 65"),
    ],
)
def test_trees_that_are_none_are_refused(text: str, message: str) -> None:
    both = trees("0:0.5 2 1:0.5 1 3 2:0.5 0 10")
    np.testing.assert_array_equal(both.predict(np.eye(4)), [1, 2, 12, 2])
    assert len(both) == 2
    with pytest.raises(ValueError, match=f"(?i){message}"):
        trees(text)


def by_walking(nodes: Iterator[tuple[int, float]], x: np.ndarray) -> float:
    feature, number = next(nodes)
    if feature < 0:
        return number
    sides = by_walking(nodes, x), by_walking(nodes, x)
    return sides[int(x[feature] > number)]


@pytest.mark.parametrize("leaves", [2, 8, 9, 33, 64])
def test_sums_of_trees_are_those_of_walking_down_each(leaves: int) -> None:
    rng = np.random.default_rng(leaves)
    X = np.round(rng.uniform(0, 9, (700, 3)))  # many equal values, some of them a split's
    parameters = {"num_leaves": leaves, "min_data_in_leaf": 1}
    trees = Trees.boost(X, rng.standard_normal(700), rounds=7, parameters=parameters)
    assert len(trees) == 7
    items = np.vstack([X[:50], rng.uniform(-1, 10, (50, 3))])
    pairs = list(zip(trees.features.tolist(), trees.numbers.tolist(), strict=True))
    assert sum(feature < 0 for feature, _ in pairs) == 7 * leaves
    walks = [iter(pairs) for _ in items]
    wanted = [sum(by_walking(w, x) for _ in range(7)) for w, x in zip(walks, items, strict=True)]
    np.testing.assert_allclose(trees.predict(items), wanted, atol=1e-12)


# Gaussian processes


def test_a_process_with_all_points_is_the_exact_one() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (60, 2))
    t = np.sin(2 * X[:, 0]) * X[:, 1] * 0.3
    kernel = MaternKernel(np.array([0.8, 1.4]), 0.4, 0.05)
    mine = Projection(kernel, X, X, t)
    exact = GaussianProcessRegressor(
        ConstantKernel(0.16) * Matern([0.8, 1.4], nu=2.5),
        alpha=0.05**2,
        optimizer=None,
    ).fit(X, t)
    other = rng.uniform(-2, 2, (200, 2))
    np.testing.assert_allclose(kernel(other, X) @ mine.weights, exact.predict(other), atol=2e-4)


def test_rows_left_out_are_as_if_never_seen() -> None:
    rng = np.random.default_rng(1)
    X, t = rng.uniform(-2, 2, (80, 2)), rng.normal(0, 0.1, 80)
    kernel, points = MaternKernel(np.array([1.0, 1.0]), 0.3, 0.1), X[::4]
    mine, fold = Projection(kernel, points, X, t), np.arange(20, 40)
    changed = t.copy()
    changed[fold] = 99.0
    np.testing.assert_allclose(mine.without(fold, t), mine.without(fold, changed), atol=1e-7)


def test_the_search_finds_what_matters() -> None:
    rng = np.random.default_rng(2)
    X = rng.standard_normal((120, 3))
    kernel = MaternKernel.search(X, 0.3 * np.sin(2 * X[:, 1]), np.ones(120))
    assert kernel.lengths[1] < 0.5 * kernel.lengths[[0, 2]].min()


def test_points_are_spread_and_differ() -> None:
    X = np.repeat(np.random.default_rng(0).standard_normal((30, 3)), 5, axis=0)
    chosen = spread_points(X, 50)
    assert len(chosen) == len(np.unique(X[chosen], axis=0)) == 30
    assert len(spread_points(X, 7)) == 7


# codl


def test_codl_learns_what_is_not_linear() -> None:
    X, y, shapes = law(150, 4, noise=0.02)
    train = shapes < 110
    scores = {}
    for name in ("codl_linear", "codl"):
        fitted = ESTIMATORS[name].fit(X[train], y[train], groups=shapes[train])
        scores[name] = within(fitted.predict(X[~train]), y[~train])
    assert scores["codl"] > 0.9
    assert scores["codl"] > scores["codl_linear"] + 0.05


def test_very_many_items_are_told_by_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law of parities, which no smooth process can follow."""
    rng = np.random.default_rng(4)
    X = np.exp(rng.uniform(2, 8, (600, 3)))
    steps = np.floor(2 * np.log(X[:, 0])) % 2 + np.floor(1.5 * np.log(X[:, 1])) % 2
    y = 1e-3 * X.sum(1) * np.exp(0.4 * steps)
    smooth = Codl.fit(X[:500], y[:500])
    monkeypatch.setattr("codl.predict.estimators.gp_fitting.MANY_ITEMS", 400)
    fitted = Codl.fit(X[:500], y[:500])
    assert (smooth.ensemble.trees is None, fitted.ensemble.trees is None) == (True, False)
    scores = [within(one.predict(X[500:]), y[500:]) for one in (fitted, smooth)]
    assert scores[0] > scores[1] + 0.15
    read = read_back(fitted)
    np.testing.assert_allclose(read.predict(X), fitted.predict(X), rtol=1e-12)


def test_repetitions_do_not_outvote_other_items() -> None:
    """One item measured 200 times, a tenth off the law that 60 others follow."""
    X, y, _ = law(60)
    odd = np.array([False] * 60 + [True] * 200)
    X, y = np.vstack([X, np.repeat(X[:1] * 1.01, 200, axis=0)]), np.append(y, np.full(200, y[0]))
    y[odd] *= 1.1
    fitted = Codl.fit(X, y)
    assert np.median(np.abs(fitted.predict(X[~odd][1:]) / y[~odd][1:] - 1)) < 0.02


def test_codl_is_small() -> None:
    X, y, _ = law(1000, noise=0.02)
    assert len(msgspec.json.encode(Codl.fit(X, y), enc_hook=to_json)) < 24 * 1024


# Runs


def test_terms_of_runs_are_found() -> None:
    rng = np.random.default_rng(0)
    shapes = np.repeat(np.arange(40), 3)
    typical = np.exp(rng.uniform(-2, 3, 40))[shapes]
    labels = ["a", "b", "c"] * 40
    terms = {
        "a": runs.RunTerm(0.0, 1.0),
        "b": runs.RunTerm(0.0, 1.25),
        "c": runs.RunTerm(0.05, 1.0),
    }
    y = runs.to_runs(terms, typical, labels) * np.exp(0.01 * rng.standard_normal(120))
    found = runs.fit_terms(typical, y, labels, groups=shapes)
    for label, term in terms.items():
        assert found[label].factor == pytest.approx(term.factor, rel=0.04)
        assert found[label].overhead_ms == pytest.approx(term.overhead_ms, abs=0.015)
    back = runs.to_typical_run(found, y, labels)
    np.testing.assert_allclose(runs.to_runs(found, back, labels), y, rtol=1e-9)


# Pieces


def test_inner_folds_hold_every_row_out_once() -> None:
    groups = np.random.default_rng(0).integers(0, 23, 100)
    folds = inner_folds(groups)
    assert sorted(np.concatenate(folds).tolist()) == list(range(100))
    assert not any(set(groups[a]) & set(groups[b]) for a in folds for b in folds if a is not b)
    assert len(inner_folds(np.zeros(7, int))) == 5
    sizes = [len(fold) for fold in folds]
    assert max(sizes) - min(sizes) <= np.bincount(groups).max()


def test_costs_are_the_best_that_are_not_negative() -> None:
    """Against a bounded solver, of latencies that fall with one feature."""
    rng = np.random.default_rng(6)
    X = rng.uniform(1, 100, (60, 3))
    y = X @ np.array([0.02, 0.0, 0.05]) + 0.5 - 0.003 * X[:, 1] + 1.0
    slopes, overhead = costs(X, y)
    rows = np.column_stack([X, np.ones(60)]) / y[:, None]
    wanted = lsq_linear(rows, np.ones(60), bounds=(0, np.inf), tol=1e-14).x
    np.testing.assert_allclose([*slopes, overhead], wanted, rtol=2e-4, atol=1e-6)
