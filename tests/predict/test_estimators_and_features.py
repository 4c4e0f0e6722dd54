"""Estimators and features against laws that are known and independent solvers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from support.common_checks import read_back
from support.simulated import GEMM, LAW, OVERHEAD_MS, SOC, conv_parts, law_ms

from codl.errors import MismatchError, UnknownNameError
from codl.ir import Shape, parse
from codl.predict import ESTIMATORS, features
from codl.predict.estimators import CodlLinear, FlopsLinear, LatencyEstimator
from codl.predict.estimators.numerics import to_json

ALL = pytest.mark.parametrize("cls", ESTIMATORS.values(), ids=list(ESTIMATORS))
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
    with pytest.raises(MismatchError, match="predicted for an op, got 1x1x2x3"):
        features.table("variant", GEMM, [Shape(1, 1, 2, 3)], SOC)
    with pytest.raises(MismatchError, match="predicted for a shape"):
        features.table("variant", "data_sharing_to_gpu", [fc], SOC)
