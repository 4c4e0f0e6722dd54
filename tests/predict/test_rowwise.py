"""A prediction is the same, bit for bit, whichever others are asked for with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from codl.predict import ESTIMATORS
from codl.predict.estimators import LatencyEstimator, gp_fitting
from codl.predict.estimators.gp_ensemble import Codl
from codl.predict.estimators.numerics import rowwise_dot, rowwise_matmul

#: CPUs whose BLAS and NumPy take other paths than one with AVX-512 does.
NARROW = {
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
}
COLUMNS, ROWS, ASKED = 12, 150, 700


def batches(rows: int, *, seed: int = 0) -> Iterator[np.ndarray]:
    """Random rows in random order, of sizes about every tile that a BLAS may have."""
    rng = np.random.default_rng(seed)
    for size in (1, 1, 2, 3, 5, 8, 13, 24, 31, 32, 33, 64, 511, 513, rows):
        yield rng.choice(rows, size, replace=False)


def fitted(cls: type[LatencyEstimator], *, runs: bool = False) -> LatencyEstimator:
    rng = np.random.default_rng(1)
    X = np.exp(rng.uniform(2, 12, (ROWS, COLUMNS)))
    y = (X @ np.geomspace(1e-7, 1e-5, COLUMNS)) * np.exp(0.2 * np.sin(np.log(X[:, 3]))) + 0.01
    with threadpool_limits(1, user_api="blas"):  # as training does
        return cls.fit(X, y, runs=["a", "b", "c"] * (ROWS // 3) if runs else None)


def check(estimator: LatencyEstimator) -> None:
    """Raise where a prediction depends on the others."""
    X = np.exp(np.random.default_rng(2).uniform(1, 13, (ASKED, COLUMNS)))
    whole = estimator.predict(X)
    np.testing.assert_array_equal(estimator.predict(np.asfortranarray(X)), whole)
    labels = np.resize(["a", "unknown", "b", "c"], ASKED)
    in_runs = estimator.predict(X, runs=labels.tolist())
    for rows in batches(ASKED):
        np.testing.assert_array_equal(estimator.predict(X[rows]), whole[rows])
        np.testing.assert_array_equal(
            estimator.predict(X[rows], runs=labels[rows].tolist()), in_runs[rows]
        )


def check_ensemble() -> None:
    """All members at once: processes on features and, as in older files, on axes, and trees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gp_fitting, "WORTH", 1.0)  # keeps every member
        patch.setattr(gp_fitting, "MANY_ITEMS", ROWS)
        estimator = fitted(Codl)
    assert isinstance(estimator, Codl)
    ensemble = estimator.ensemble
    assert len(ensemble.members) == 2
    assert ensemble.trees is not None
    first, second = ensemble.members
    axes = np.random.default_rng(3).standard_normal((COLUMNS, 3))
    turned = replace(second, axes=axes, lengths=second.lengths[:3])
    check(replace(estimator, ensemble=replace(ensemble, members=(first, turned))))


@pytest.mark.parametrize("runs", [False, True], ids=["one_run", "runs"])
@pytest.mark.parametrize("cls", ESTIMATORS.values(), ids=list(ESTIMATORS))
def test_a_prediction_does_not_depend_on_its_batch(cls: type[LatencyEstimator], runs: bool) -> None:
    check(fitted(cls, runs=runs))


def test_no_member_of_the_ensemble_depends_on_the_batch() -> None:
    check_ensemble()


def test_nor_on_a_cpu_with_narrower_vectors() -> None:
    """The same in a process whose BLAS and NumPy take the paths of a CPU with AVX2.

    And with two threads, between which a BLAS divides larger products.
    """
    code = "import test_rowwise; test_rowwise.main()"
    paths = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **NARROW, "OPENBLAS_NUM_THREADS": "2", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr


def main() -> None:
    for cls in ESTIMATORS.values():
        check(fitted(cls))
    check_ensemble()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 3, 7, 8, 14, 33, 128])
def test_rowwise_products_are_products(size: int, dtype: type) -> None:
    rng = np.random.default_rng(size)
    rows, matrix = rng.standard_normal((600, size)), rng.standard_normal((size, 29))
    rows, matrix = rows.astype(dtype), matrix.astype(dtype)
    product, dot = rowwise_matmul(rows, matrix), rowwise_dot(rows, matrix[:, 0])
    assert product.dtype == dot.dtype == dtype
    wanted = rows.astype(np.float64) @ matrix.astype(np.float64)
    tolerance = 30 * float(np.finfo(dtype).eps) * size**0.5
    np.testing.assert_allclose(product, wanted, atol=tolerance)
    np.testing.assert_allclose(dot, wanted[:, 0], atol=tolerance)
    for at in batches(600):
        np.testing.assert_array_equal(rowwise_matmul(rows[at], matrix), product[at])
        np.testing.assert_array_equal(
            rowwise_dot(np.asfortranarray(rows[at]), matrix[:, 0]), dot[at]
        )
