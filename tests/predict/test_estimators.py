"""Estimators against known laws and independent solvers, and the features that they see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern
from support.common_checks import read_back
from support.simulated import GEMM, LAW, OVERHEAD_MS, SOC, conv_parts, law_ms

from codl.errors import UnknownNameError
from codl.ir import parse
from codl.predict import ESTIMATORS, features
from codl.predict import estimators as runs
from codl.predict.estimators import CodlLinear, FlopsLinear, LatencyEstimator
from codl.predict.estimators.gp_ensemble import Codl
from codl.predict.estimators.gp_fitting import MaternKernel, Projection
from codl.predict.estimators.trees import Trees
from codl.predict.model_set import to_json

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


# Runs


# Pieces


def test_rows_left_out_are_as_if_never_seen() -> None:
    rng = np.random.default_rng(1)
    X, t = rng.uniform(-2, 2, (80, 2)), rng.normal(0, 0.1, 80)
    kernel, points = MaternKernel(np.array([1.0, 1.0]), 0.3, 0.1), X[::4]
    mine, fold = Projection(kernel, points, X, t), np.arange(20, 40)
    changed = t.copy()
    changed[fold] = 99.0
    np.testing.assert_allclose(mine.without(fold, t), mine.without(fold, changed), atol=1e-7)


NAMES = ["a", "b", "c"]


def sample(rows: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(1, 1e6, (rows, len(NAMES)))
    return X, X @ np.array([1e-6, 3e-6, 0.0]) + 0.05


# The common test of everything that is registered in ESTIMATORS


@ALL
def test_only_finite_features_of_positive_latencies_are_fitted(cls: type[LatencyEstimator]) -> None:
    X, y = sample()
    broken = X.copy()
    broken[3, 1] = np.nan
    wrong = [(X[:5], y), (X[0], y[:3]), (broken, y), (X[:0], y[:0])]
    wrong += [(X, np.append(y[:-1], last)) for last in (0.0, -1.0)]
    for features_, latency_ms in wrong:
        with pytest.raises(ValueError, match=r"Expected features|must be finite|must be positive"):
            cls.fit(features_, latency_ms)


@ALL
def test_predictions_are_positive(cls: type[LatencyEstimator]) -> None:
    X, y = sample()
    y = np.where(X[:, 1] < 5e5, 1e-3, y)
    far = np.vstack([X, np.zeros((1, 3)), X * 1e6, -X])
    predicted = cls.fit(X, y).predict(far)
    assert predicted.shape == (len(far),)
    assert predicted.dtype == np.float64
    assert np.isfinite(predicted).all()
    assert predicted.min() >= y.min() / 20


@ALL
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8, 9, 20, 80])
def test_a_fit_is_the_same_again_and_read_back(
    cls: type[LatencyEstimator], rows: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """It changes nothing that it is given, and prints nothing."""
    if rows == 1 and cls.name == "gbdt":
        pytest.skip("one row has nothing to split")
    (X, y), more = sample(rows), sample(200, seed=1)[0]
    before = X.copy(), y.copy()
    fitted, again = cls.fit(X, y), cls.fit(X.tolist(), y.tolist())
    np.testing.assert_array_equal((*X.ravel(), *y), (*before[0].ravel(), *before[1]))
    assert encoded(fitted) == encoded(again) == encoded(read_back(fitted))
    predicted = read_back(fitted).predict(more)
    np.testing.assert_array_equal(predicted, fitted.predict(more))
    assert np.isfinite(predicted).all()
    assert predicted.min() > 0
    assert capfd.readouterr() == ("", "")


def encoded(fitted: LatencyEstimator) -> bytes:
    return msgspec.json.encode(fitted, enc_hook=to_json)


# Each estimator against an independent reference


def test_flops_linear_is_least_squares() -> None:
    X, y = sample()
    y = y * np.random.default_rng(1).uniform(0.5, 1.5, len(y))
    expected = np.linalg.lstsq(np.column_stack([X, np.ones(len(y))]), y, rcond=None)[0]
    fitted = FlopsLinear.fit(X, y)
    np.testing.assert_allclose(np.append(fitted.costs_ms, fitted.overhead_ms), expected, rtol=1e-5)


def test_codl_linear_recovers_the_law() -> None:
    parts = [part for *_, part in conv_parts()]
    table = features.table("variant", GEMM, parts, SOC)
    noise = np.random.default_rng(3).normal(1, 0.005, len(parts))
    y = np.array([law_ms(part) for part in parts]) * noise
    fitted = CodlLinear.fit(table.values, y)
    assert fitted.costs_ms.min() >= 0
    assert fitted.overhead_ms == pytest.approx(OVERHEAD_MS, rel=0.1)
    found = fitted.costs_ms[table.names.index("padded_macs")]
    assert found == pytest.approx(LAW["padded_macs"], rel=0.05)
    error = np.abs(fitted.predict(table.values) / (y / noise) - 1)
    assert error.max() < 0.02


def test_codl_linear_minimises_relative_error_without_negative_costs() -> None:
    """No step in an allowed direction improves the fit: the condition for the optimum.

    As far as the four digits tell that are kept.
    """
    X, y = sample()
    y = (y - 5e-7 * X[:, 2]).clip(0.05) * np.random.default_rng(1).uniform(0.7, 1.4, len(y))
    fitted = CodlLinear.fit(X, y)
    assert fitted.costs_ms[2] == 0
    relative = np.column_stack([X, np.ones(len(y))]) / y[:, None]
    coefficients = np.append(fitted.costs_ms, fitted.overhead_ms)
    gradient = relative.T @ (relative @ coefficients - 1) / np.abs(relative).sum(axis=0)
    active = coefficients > 0
    np.testing.assert_allclose(gradient[active], 0, atol=5e-4)
    assert (gradient[~active] > 0).all()


# Features


def test_flops_features_are_those_of_mulayer() -> None:
    def of(text: str) -> dict[str, float]:
        op = parse(text)
        table = features.table("flops", features.mulayer_target(op.kind, "gpu"), [op], SOC)
        return dict(zip(table.names, table.values[0].tolist(), strict=True))

    conv = of("conv2d in=1x64x56x56 oc=128 kernel=3x3 stride=2 pad=1")
    flops = 2 * 28 * 28 * 64 * 9 * 128
    assert conv == {"flops": flops, "f0": 56 * 56 * 64, "f1": 1.5**2 * 128}
    pool = of("pooling in=1x64x56x56 mode=max kernel=2 stride=2")
    assert pool == {"f0": 56 * 56 * 64, "f1": 64}
    fc = of("fc in=1x512x7x7 oc=10")
    assert fc == {"flops": 2 * 25088 * 10, "in_features": 25088, "out_features": 10}


def test_a_target_of_another_op_is_refused() -> None:
    fc, pool = parse("fc in=1x64x1x1 oc=64"), parse("pooling in=1x8x4x4 mode=avg kernel=2")
    with pytest.raises(UnknownNameError, match=r"target of a fc .*Known: .*fc_cpu_gemv"):
        features.table("variant", GEMM, [fc], SOC)
    with pytest.raises(UnknownNameError, match="Did you mean 'pooling_cpu_direct_avg'"):
        features.table("flops", "pooling_cpu_direct_max", [pool], SOC)
    with pytest.raises(UnknownNameError, match="mulayer_fc_cpu"):
        features.table("flops", "mulayer_conv2d_cpu", [fc], SOC)
