"""Predictors against laws that are known, independent solvers, and files that were changed."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks

from codl.dataset import Dataset, OpRow, SharingRow, Status
from codl.errors import CodlError, InvalidFileError, MismatchError, UnknownNameError
from codl.kernels import registry
from codl.ops import Op, Shape, parse, split, to_text
from codl.predict import features, names, predictors, splits
from codl.predict.estimators import ESTIMATORS, CodlLinear, FlopsLinear, Gbdt, LatencyEstimator
from codl.predict.predictors import load
from codl.predict.training import PredictorRow, TrainReport, held_out_accuracy, train
from codl.soc import CpuSide, GpuSide, Soc

SOC = Soc(
    name="simulated",
    description="no machine",
    cpu=CpuSide(name="cpu", cores=(0,), simd_floats=16, l2_cache_bytes=1 << 20),
    gpu=GpuSide(
        icd="none",
        platform="none",
        name="gpu",
        driver="none",
        type="gpu",
        cores=(),
        compute_units=2,
        max_work_group_size=256,
        wave_size=32,
        vector_width=4,
        global_mem_cache_size=1 << 17,
        local_mem_bytes=1 << 15,
        unified_memory=True,
        max_image_width=16384,
        max_image_height=16384,
    ),
)
ALL = pytest.mark.parametrize("cls", ESTIMATORS.values(), ids=list(ESTIMATORS))
GEMM = "conv2d_cpu_gemm"
NAMES = ["a", "b", "c"]
#: A known law of the GEMM's features, in milliseconds; what is not here costs nothing.
LAW = {"padded_macs": 2e-8, "window_copies": 1e-6, "output_bytes": 5e-7}
OVERHEAD_MS = 0.02


def conv_parts(seed: int = 0, ops: int = 40) -> Iterator[tuple[Op, str, float, Op]]:
    """Random convolutions, each whole and cut at some ratios: op, dim, share, part."""
    rng = np.random.default_rng(seed)
    for _ in range(ops):
        c, oc = 8 * rng.integers(3, 33, 2)
        size, kernel = rng.integers(7, 57), rng.choice([1, 3])
        op = parse(f"conv2d in=1x{c}x{size}x{size} oc={oc} kernel={kernel} pad={kernel // 2}")
        yield op, "H", 1.0, op
        for dim in op.dims:
            for share in (0.25, 0.5, 0.75):
                part = op.restrict(split(op, dim, share)[1])
                yield op, dim, share, part


def law_ms(part: Op) -> float:
    values = features.variant_of(GEMM, part).features(part, SOC)
    return OVERHEAD_MS + sum(LAW.get(name, 0.0) * value for name, value in values.items())


def op_row(op: Op, dim: str, share: float, part: Op, ms: float, status: Status = "ok") -> OpRow:
    texts = {"op": to_text(op), "part": to_text(part)}
    return OpRow(
        **texts, dim=dim, share=share, latency_ms=ms, status=status, source="simulated", runs=5
    )


def sharing_rows() -> Iterator[SharingRow]:
    rng = np.random.default_rng(1)
    for direction in features.DIRECTIONS:
        for _ in range(20):
            shape = Shape(1, *(int(v) for v in rng.integers(1, 60, 3)))
            ms = 0.01 + 1e-6 * shape.bytes
            yield SharingRow(
                direction=direction, shape=str(shape), latency_ms=ms, source="simulated"
            )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Simulated GEMM rows after the law with 1 % of noise, some failed; data sharing; one pool."""
    found = Dataset(tmp_path_factory.mktemp("lat_datasets") / SOC.name)
    rng = np.random.default_rng(2)
    table = found.ops(GEMM)
    for op, dim, share, part in conv_parts():
        table.append(op_row(op, dim, share, part, law_ms(part) * rng.normal(1, 0.01)))
    whole = parse("conv2d in=1x64x9x9 oc=64 kernel=3 pad=1")
    for share in (0.1, 0.2):
        table.append(op_row(whole, "H", share, whole, 0.0, status="failed"))
    for row in sharing_rows():
        found.sharing().append(row)
    pool = parse("pooling in=1x64x28x28 mode=max kernel=2 stride=2")
    for ratio in np.linspace(0.1, 0.8, 8):
        part = pool.restrict(split(pool, "H", float(ratio))[1])
        row = op_row(pool, "H", float(ratio), part, float(ratio))
        found.ops("pooling_cpu_direct_max").append(row)
    fc = parse("fc in=1x64x1x1 oc=64")
    found.ops("fc_cpu_gemv").append(op_row(fc, "H", 1.0, fc, 0.0, status="failed"))
    return found


@pytest.fixture(scope="module")
def trained(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainReport]:
    folder = tmp_path_factory.mktemp("predictors")
    return folder, train(SOC, dataset, folder=folder)


def sample(rows: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(1, 1e6, (rows, len(NAMES)))
    return X, X @ np.array([1e-6, 3e-6, 0.0]) + 0.05


# The common test of everything that is registered in ESTIMATORS


@parametrize_with_checks([cls() for cls in ESTIMATORS.values()])
def test_sklearn_checks(estimator: LatencyEstimator, check: Callable[[Any], None]) -> None:
    check(estimator)


@ALL
def test_predictions_are_positive(cls: type[LatencyEstimator]) -> None:
    X, y = sample()
    y = np.where(X[:, 1] < 5e5, 1e-3, y)
    far = np.vstack([X, np.zeros((1, 3)), X * 1e6, -X])
    predicted = cls().fit(X, y).predict(far)
    assert predicted.shape == (len(far),)
    assert predicted.dtype == np.float64
    assert np.isfinite(predicted).all()
    assert predicted.min() >= y.min() / 20


@ALL
def test_latencies_must_be_positive(cls: type[LatencyEstimator]) -> None:
    X, y = sample()
    for wrong in (0.0, -1.0):
        with pytest.raises(ValueError, match=rf"must be positive, got {wrong:g}"):
            cls().fit(X, np.append(y[:-1], wrong))


@ALL
def test_state_is_read_back_exactly(cls: type[LatencyEstimator]) -> None:
    X, y = sample()
    fitted, again = cls().fit(X, y), cls().fit(X, y)
    state = json.loads(json.dumps(fitted.state(NAMES), allow_nan=False))
    assert state == again.state(NAMES)
    read = cls.from_state(state, NAMES)
    np.testing.assert_array_equal(read.predict(X), fitted.predict(X))
    assert read.state(NAMES) == state


@ALL
def test_state_that_was_changed_is_refused(cls: type[LatencyEstimator]) -> None:
    X, y = sample()
    state = cls().fit(X, y).state(NAMES)
    for key in state:
        for wrong in (None, "x", [], float("nan"), True):
            with pytest.raises(ValueError, match=key.split("_")[0]):
                cls.from_state({**state, key: wrong}, NAMES)
    with pytest.raises(ValueError, match="floor_ms must be positive"):
        cls.from_state({**state, "floor_ms": 0.0}, NAMES)


@ALL
def test_estimators_print_nothing(
    cls: type[LatencyEstimator], capfd: pytest.CaptureFixture[str]
) -> None:
    for rows in (2, 8, 80):
        X, y = sample(rows)
        cls.from_state(cls().fit(X, y).state(NAMES), NAMES).predict(X)
    assert capfd.readouterr() == ("", "")


# Each estimator against an independent reference


def test_flops_linear_is_least_squares() -> None:
    X, y = sample()
    y = y * np.random.default_rng(1).uniform(0.5, 1.5, len(y))
    expected = np.linalg.lstsq(np.column_stack([X, np.ones(len(y))]), y, rcond=None)[0]
    fitted = FlopsLinear().fit(X, y)
    np.testing.assert_allclose(np.append(fitted.coef_, fitted.intercept_), expected, rtol=1e-6)


def test_codl_linear_recovers_the_law() -> None:
    parts = [part for *_, part in conv_parts()]
    table = features.table("variant", GEMM, parts, SOC)
    noise = np.random.default_rng(3).normal(1, 0.005, len(parts))
    y = np.array([law_ms(part) for part in parts]) * noise
    fitted = CodlLinear().fit(table.values, y)
    assert fitted.coef_.min() >= 0
    assert fitted.intercept_ == pytest.approx(OVERHEAD_MS, rel=0.1)
    state = fitted.state(table.names)["coefficients_ms"]
    assert state["padded_macs"] == pytest.approx(LAW["padded_macs"], rel=0.05)
    error = np.abs(fitted.predict(table.values) / (y / noise) - 1)
    assert error.max() < 0.02


def test_codl_linear_minimises_relative_error_without_negative_costs() -> None:
    """No step in an allowed direction improves the fit: the condition for the optimum."""
    X, y = sample()
    y = (y - 5e-7 * X[:, 2]).clip(0.05) * np.random.default_rng(1).uniform(0.7, 1.4, len(y))
    fitted = CodlLinear().fit(X, y)
    assert fitted.coef_[2] == 0
    relative = np.column_stack([X, np.ones(len(y))]) / y[:, None]
    coefficients = np.append(fitted.coef_, fitted.intercept_)
    gradient = relative.T @ (relative @ coefficients - 1) / np.abs(relative).sum(axis=0)
    active = coefficients > 0
    np.testing.assert_allclose(gradient[active], 0, atol=1e-6)
    assert (gradient[~active] > 0).all()


def test_a_few_latencies_below_the_resolution_do_not_decide_the_fit() -> None:
    X, y = sample()
    X[:4] *= 1e-7
    y[:4] = 1e-7
    for cls in (CodlLinear, Gbdt):
        predicted = cls().fit(X, y - 0.05 * (y > 0.05)).predict(X[4:])
        np.testing.assert_allclose(predicted, y[4:] - 0.05, rtol=0.01)


def test_codl_linear_takes_columns_that_are_multiples_of_each_other() -> None:
    X, y = sample()
    doubled = np.column_stack([X, 2 * X, np.zeros(len(y))])
    fitted = CodlLinear().fit(doubled, y)
    np.testing.assert_allclose(fitted.predict(doubled), y, rtol=1e-6)


def test_gbdt_beats_flops_linear_on_steps() -> None:
    rng = np.random.default_rng(4)
    X = rng.uniform(1, 1e6, (400, 2))
    y = 0.1 + np.ceil(X[:, 0] / 2.5e5) * (1 + (X[:, 1] > 5e5))
    folds = splits.shape_folds(np.arange(400))
    steps = held_out_accuracy(Gbdt, X, y, folds)
    line = held_out_accuracy(FlopsLinear, X, y, folds)
    assert steps.mape is not None
    assert line.mape is not None
    assert steps.mape < line.mape / 4
    assert steps.acc10 is not None
    assert steps.acc10 > 90


def test_gbdt_follows_the_law_beyond_what_was_measured() -> None:
    X, y = sample()
    np.testing.assert_allclose(Gbdt().fit(X, y).predict(10 * X), 10 * y - 9 * 0.05, rtol=0.01)


# What is held out


labels = st.lists(st.tuples(st.integers(0, 12), st.integers(20, 40)), min_size=1, max_size=60)


@given(labels)
def test_shape_folds_separate_nothing_that_belongs_together(rows: list[tuple[int, int]]) -> None:
    groups = splits.linked(rows)
    folds = splits.shape_folds(groups)
    assert len(folds) == (min(5, len(set(groups))) if len(set(groups)) > 1 else 0)
    for fold in folds:
        train_rows, test_rows = ([rows[i] for i in part] for part in (fold.train, fold.test))
        assert train_rows
        assert test_rows
        for label in (0, 1):
            assert not {row[label] for row in train_rows} & {row[label] for row in test_rows}
    held_out = np.concatenate([fold.test for fold in folds]) if folds else np.arange(len(rows))
    assert sorted(held_out) == list(range(len(rows)))


@given(labels)
def test_groups_are_no_larger_than_needed(rows: list[tuple[int, int]]) -> None:
    groups = splits.linked(rows)
    for number in set(groups):
        own = {rows[i] for i in np.flatnonzero(groups == number)}
        reached, todo = set(), [next(iter(own))]
        while todo:
            row = todo.pop()
            reached.add(row)
            todo += [o for o in own - reached if o[0] == row[0] or o[1] == row[1]]
        assert reached == own


@given(st.integers(2, 500))
def test_row_fold_is_70_to_30(rows: int) -> None:
    (fold,), (again,) = splits.row_folds(rows), splits.row_folds(rows)
    assert sorted([*fold.train, *fold.test]) == list(range(rows))
    assert abs(len(fold.test) - 0.3 * rows) <= 0.5
    np.testing.assert_array_equal(fold.test, again.test)


def test_nothing_held_out_is_seen_in_fitting() -> None:
    class Spy(LatencyEstimator):
        def _fit(self, X: np.ndarray, y: np.ndarray, groups: np.ndarray) -> None:
            self.seen_ = set(X[:, 0])

        def _predict(self, X: np.ndarray) -> np.ndarray:
            assert not self.seen_ & set(X[:, 0])
            return np.ones(len(X))

    X, y = np.arange(50.0)[:, None], np.ones(50)
    folds = splits.shape_folds(splits.linked([(i // 7,) for i in range(50)]))
    accuracy = held_out_accuracy(Spy, X, y, folds)
    assert (accuracy.n_test, accuracy.acc5, accuracy.mape) == (50, 100, 0)


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


def test_sharing_features() -> None:
    shapes = [Shape(1, 6, 5, 7), Shape(1, 4, 1, 7)]
    table = features.table("variant", "data_sharing_to_cpu", shapes, SOC)
    assert table.names == ("bytes", "padded_bytes", "channels", "rows", "blocks")
    assert table.values.tolist() == [[840, 1120, 6, 5, 2], [112, 112, 4, 1, 1]]


OPS = (
    "conv2d in=1x64x14x14 oc=64 kernel=3 pad=1",
    "conv2d in=1x64x14x14 oc=64 kernel=3 pad=1 groups=64",
    "conv2d in=1x64x14x14 oc=64 kernel=3 pad=1 groups=8",
    "conv2d in=1x64x14x14 oc=64 kernel=1",
    "conv2d in=1x64x14x14 oc=2 kernel=3 pad=1",
    "pooling in=1x64x14x14 mode=avg kernel=2 stride=2",
    "fc in=1x64x1x1 oc=64",
    "concat in=1x64x14x14,1x32x14x14",
    "eltwise in=1x64x14x14,1x64x14x14",
    "reshape in=1x64x14x14 to=1x12544",
    "conv2d in=1x64x14x14 oc=2 kernel=3 pad=1",
    "pooling in=1x64x14x14 mode=avg kernel=14",
    "conv_transpose2d in=1x64x14x14 oc=32 kernel=4 stride=2 size=28x28 crop=1",
    "resize in=1x64x14x14 size=28x28",
    "matmul in=64x32,32x48",
    "max_indices in=1x8x14x14 kernel=2 stride=2",
    "norm in=64x32 axis=1",
    "reduce in=64x32 axes=1 mode=sum",
    "softmax in=64x32 axes=1",
    "pad in=5x20 before=1x3 after=1x40",
    "slice in=100x100 starts=9x0 steps=1x3 to=20x34",
    "tile in=1x3x1x40 repeats=2x1x50x1",
    "transpose in=100x17 perm=1x0",
    "windows in=1x8x14x5 count=6 kernel=3 stride=2",
    "concat_nd in=7x5x1,7x5x2 axis=2",
    "gather in=100x17,5 axis=0",
)


@pytest.mark.parametrize("variant", registry.VARIANTS, ids=lambda v: f"{v.op_kind}_{v.name}")
@pytest.mark.parametrize("feature_set", ["flops", "variant"])
def test_every_variant_has_features(
    variant: registry.Variant, feature_set: features.FeatureSet
) -> None:
    ops = [op for op in map(parse, OPS) if op.kind == variant.op_kind]
    accepted = [op for op in ops if variant.refusal(op, SOC) is None]
    assert accepted
    table = features.table(feature_set, registry.target(variant, accepted[0]), accepted, SOC)
    assert table.values.shape == (len(accepted), len(table.names))
    assert (table.values >= 0).all()
    if feature_set == "variant":
        expected = variant.features(accepted[0], SOC)
        assert dict(zip(table.names, table.values[0], strict=True)) == expected


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


# Training


def found(report: TrainReport, name: str, target: str) -> dict[str, PredictorRow]:
    rows = [row for row in report.predictors if (row.name, row.target) == (name, target)]
    return {row.split: row for row in rows}


def test_report_holds_the_contract(trained: tuple[Path, TrainReport]) -> None:
    folder, report = trained
    content = json.loads(json.dumps(report.to_json()))
    keys = "name target processor n_train n_test split acc10 acc5 mape bytes us_per_prediction"
    assert content["train_s"] > 0
    assert all(list(row) == keys.split() for row in content["predictors"])
    assert [f.name for f in fields(PredictorRow)] == keys.split()
    assert content["sources"] == ["simulated"]
    assert report.failed == 3
    assert sorted(report.files) == sorted(folder.rglob("*.json"))
    assert not list(folder.rglob("*.tmp"))


def test_every_target_has_its_predictors(trained: tuple[Path, TrainReport]) -> None:
    targets = {GEMM, "pooling_cpu_direct_max"}
    targets |= {f"data_sharing_{direction}" for direction in features.DIRECTIONS}
    mulayer = {"mulayer_conv2d_cpu", "mulayer_pooling_cpu"}
    for name in ESTIMATORS:
        expected = targets | mulayer if name == "flops_linear" else targets
        assert set(load(SOC, name, trained[0]).targets) == expected


def test_held_out_accuracy_of_the_law(trained: tuple[Path, TrainReport]) -> None:
    rows = found(trained[1], "codl_linear", GEMM)
    n = 40 * 7
    assert (rows["row"].n_train, rows["row"].n_test) == (n - 84, 84)
    assert rows["shape"].n_test == n
    assert n * 0.7 < rows["shape"].n_train <= n * 0.8
    for row in rows.values():
        assert row.processor == "cpu"
        assert row.acc5 is not None
        assert row.acc5 > 98
        assert row.bytes == (trained[0] / SOC.name / row.name / f"{GEMM}.json").stat().st_size
    flops = found(trained[1], "flops_linear", GEMM)["shape"]
    assert flops.acc10 is not None
    assert flops.acc10 < 90


def test_a_missing_system_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *args: object, **kwargs: object) -> object:
        if name == "lightgbm":
            raise OSError("libgomp.so.1: cannot open shared object file")
        return importing(name, *args, **kwargs)  # type: ignore[arg-type]

    importing = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(CodlError, match=r"libgomp.so.1.*libgomp1 on Debian"):
        Gbdt().fit(np.ones((4, 1)), np.ones(4))


def test_the_names_are_those_of_the_estimators() -> None:
    assert tuple(ESTIMATORS) == names.NAMES


def test_one_op_has_nothing_to_hold_out(trained: tuple[Path, TrainReport]) -> None:
    rows = found(trained[1], "codl_linear", "pooling_cpu_direct_max")
    assert (rows["shape"].n_test, rows["shape"].acc10, rows["shape"].mape) == (0, None, None)
    assert rows["row"].acc10 is not None


def test_a_target_without_an_ok_row_is_a_note(trained: tuple[Path, TrainReport]) -> None:
    (note,) = (n for n in trained[1].notes if n.startswith("fc_cpu_gemv"))
    assert "no ok row and 1 failed" in note
    assert f"codl collect --soc {SOC.name}" in note


def test_training_is_deterministic(
    dataset: Dataset, trained: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    steps: list[tuple[int, int, str]] = []
    report = train(SOC, dataset, folder=tmp_path, progress=lambda *step: steps.append(step))
    assert [step[0] for step in steps] == list(range(len(report.files)))
    for path in report.files:
        assert path.read_bytes() == (trained[0] / path.relative_to(tmp_path)).read_bytes()
    for old, new in zip(trained[1].predictors, report.predictors, strict=True):
        assert replace(old, us_per_prediction=0) == replace(new, us_per_prediction=0)


def test_parts_and_activations_shared_by_ops_are_held_out_together(tmp_path: Path) -> None:
    """Two ops with one part in common, and one that differs in its activation: one shape."""
    data = Dataset(tmp_path / SOC.name)
    texts = ("oc=64 kernel=3 pad=1", "oc=64 kernel=3 pad=1 act=relu", "oc=128 kernel=3 pad=1")
    for text in texts:
        op = parse(f"conv2d in=1x64x28x28 {text}")
        for share in (0.25, 0.5, 1.0):
            part = op.restrict(split(op, "OC", share)[1])
            data.ops(GEMM).append(op_row(op, "OC", share, part, law_ms(part)))
    report = train(SOC, data, predictors=["codl_linear"], folder=tmp_path / "p")
    assert {row.n_test for row in report.predictors if row.split == "shape"} == {0}


def test_mulayer_learns_the_preferred_variant(tmp_path: Path) -> None:
    data = Dataset(tmp_path / SOC.name)
    for op, dim, share, part in conv_parts(ops=6):
        data.ops(GEMM).append(op_row(op, dim, share, part, 100.0))
        if part.kernel == (3, 3):  # type: ignore[attr-defined]
            data.ops("conv2d_cpu_winograd").append(op_row(op, dim, share, part, 1.0))
    train(SOC, data, predictors=["flops_linear"], folder=tmp_path / "p")
    stored = load(SOC, "flops_linear", tmp_path / "p").stored["mulayer_conv2d_cpu"]
    assert [table["file"] for table in stored.dataset["tables"]] == [
        "t_conv2d_cpu_winograd.csv",
        "t_conv2d_cpu_gemm.csv",
    ]
    assert stored.dataset["rows"] == 6 * 7


def test_datasets_that_cannot_be_trained_on(tmp_path: Path) -> None:
    data = Dataset(tmp_path / SOC.name)
    with pytest.raises(InvalidFileError, match=r"no dataset here.*codl collect"):
        train(SOC, data, folder=tmp_path)
    op = parse("conv2d in=1x64x9x9 oc=64 kernel=3")
    data.ops("conv2d_cpu_magic").append(op_row(op, "H", 1, op, 1.0))
    report = train(SOC, data, folder=tmp_path)
    assert report.predictors == ()
    assert "conv2d_cpu_magic" in report.notes[0]
    with pytest.raises(UnknownNameError, match="Did you mean 'codl_linear'"):
        train(SOC, data, predictors=["codl_liner"], folder=tmp_path)
    data.sharing().append(SharingRow(direction="to_gpus", shape="1x2x3x4", latency_ms=1))
    with pytest.raises(InvalidFileError, match=r"t_data_sharing.csv.*Did you mean 'to_gpu'"):
        train(SOC, data, folder=tmp_path)
    data.ops(GEMM).append(replace(op_row(op, "H", 1, op, 1.0), part="conv2d in=1x64"))
    with pytest.raises(InvalidFileError, match=r"t_conv2d_cpu_gemm.csv, op "):
        train(SOC, data, folder=tmp_path)


# Stored predictors


@pytest.mark.parametrize("name", ESTIMATORS)
def test_loaded_predictors_predict_the_same(
    name: str, dataset: Dataset, trained: tuple[Path, TrainReport]
) -> None:
    rows = [row for row in dataset.ops(GEMM).read() if row.status == "ok"]
    parts = [parse(row.part) for row in rows]
    feature_set = ESTIMATORS[name].feature_set
    table = features.table(feature_set, GEMM, parts, SOC)
    fitted = ESTIMATORS[name]().fit(table.values, np.array([row.latency_ms for row in rows]))
    np.testing.assert_array_equal(
        load(SOC, name, trained[0]).latency_ms(GEMM, parts), fitted.predict(table.values)
    )


def test_predictions_come_in_order_and_once(
    trained: tuple[Path, TrainReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(SOC, "codl_linear", trained[0])
    parts = [part for *_, part in conv_parts(seed=5)]
    expected = [law_ms(part) for part in parts]
    np.testing.assert_allclose(loaded.latency_ms(GEMM, parts), expected, rtol=0.03)
    assert loaded.latency_ms(GEMM, []).shape == (0,)
    shapes = [Shape(1, 16, 10, 20), Shape(1, 8, 3, 20), Shape(1, 16, 10, 20)]
    sharing = [0.01 + 1e-6 * shape.bytes for shape in shapes]
    np.testing.assert_allclose(loaded.sharing_ms("to_gpu", shapes), sharing, rtol=0.01)
    monkeypatch.setattr(predictors.features, "table", lambda *_: pytest.fail("predicted twice"))
    np.testing.assert_allclose(loaded.latency_ms(GEMM, parts[::-1]), expected[::-1], rtol=0.03)


def test_missing_predictors(trained: tuple[Path, TrainReport], tmp_path: Path) -> None:
    loaded = load(SOC, "codl_linear", trained[0])
    op = parse("fc in=1x64x1x1 oc=64")
    with pytest.raises(UnknownNameError) as caught:
        loaded.latency_ms("fc_cpu_gemv", [op])
    for wanted in ("fc_cpu_gemv", GEMM, str(loaded.folder), f"codl train --soc {SOC.name}"):
        assert wanted in str(caught.value)
    with pytest.raises(InvalidFileError, match=r"no predictors here.*codl train --soc simulated"):
        load(SOC, "gbdt", tmp_path)
    with pytest.raises(UnknownNameError, match="Did you mean 'gbdt'"):
        load(SOC, "gbd", trained[0])


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one key of a file, nested keys joined by dots; None takes the key out."""

    def apply(content: dict[str, Any]) -> None:
        *path, last = key.split(".")
        for name in path:
            content = content[name]
        if value is None:
            del content[last]
        else:
            content[last] = value

    return apply


def change_example(content: dict[str, Any]) -> None:
    next(iter(content["examples"].values()))["padded_macs"] *= 2


CHANGES: list[tuple[Callable[[dict[str, Any]], None], type[CodlError], str]] = [
    (change("version", 2), InvalidFileError, "version: must be 1, got 2"),
    (change("unit", "us"), InvalidFileError, "unit: must be 'ms', got 'us'"),
    (change("state", None), InvalidFileError, "state: the key is missing"),
    (change("features", "x"), InvalidFileError, "features: expected list, got 'x'"),
    (change("predictor", "nn"), UnknownNameError, "'nn'.*codl_linear"),
    (change("predictor", "gbdt"), MismatchError, "predictor: is 'gbdt'.*'codl_linear'"),
    (change("target", "fc_cpu_gemv"), MismatchError, "target: is 'fc_cpu_gemv'"),
    (change("soc", "phone"), MismatchError, "soc: is 'phone'.*'simulated'"),
    (change("features", ["rows"]), MismatchError, "features: is rows, but .*padded_macs"),
    (change("examples", {}), InvalidFileError, "examples: there must be at least one"),
    (change("examples", {"x": {}}), InvalidFileError, "examples, 'x': Unknown op 'x'"),
    (change_example, MismatchError, "padded_macs was .* in training and is .* now"),
    (change("state.overhead_ms", -1), InvalidFileError, "state: overhead_ms must not be negative"),
    (change("state.floor_ms", "x"), InvalidFileError, "state: floor_ms .* got 'x'"),
    (
        change("state.coefficients_ms.padded_macs", None),
        InvalidFileError,
        "padded_macs must be a finite number, got None",
    ),
    (
        change("state.coefficients_ms.padded_mac", 1.0),
        InvalidFileError,
        "Did you mean 'padded_macs'",
    ),
]


@pytest.mark.parametrize(("apply", "error", "message"), CHANGES, ids=[c[2] for c in CHANGES])
def test_changed_files_are_refused(
    apply: Callable[[dict[str, Any]], None],
    error: type[CodlError],
    message: str,
    trained: tuple[Path, TrainReport],
    tmp_path: Path,
) -> None:
    old = trained[0] / SOC.name / "codl_linear" / f"{GEMM}.json"
    content = json.loads(old.read_text())
    apply(content)
    path = tmp_path / old.relative_to(trained[0])
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    with pytest.raises(error, match=message) as caught:
        load(SOC, "codl_linear", tmp_path)
    assert str(path) in str(caught.value)
    assert f"codl train --soc {SOC.name}" in str(caught.value)


def test_changed_models_and_names_are_refused(
    trained: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    old = trained[0] / SOC.name / "gbdt" / f"{GEMM}.json"
    folder = tmp_path / SOC.name / "gbdt"
    folder.mkdir(parents=True)
    content = json.loads(old.read_text())
    content["state"]["model"][-2] = "leaf_value=1"
    (folder / old.name).write_text(json.dumps(content))
    with pytest.raises(InvalidFileError, match=r"state: model must have the SHA-256"):
        load(SOC, "gbdt", tmp_path)
    (folder / old.name).write_text(old.read_text()[:1000])
    with pytest.raises(InvalidFileError, match="not a readable JSON file"):
        load(SOC, "gbdt", tmp_path)
    (folder / old.name).unlink()
    text = old.read_text().replace(f'"target": "{GEMM}"', '"target": "conv2d_cpu_gem"')
    (folder / "conv2d_cpu_gem.json").write_text(text)
    with pytest.raises(UnknownNameError, match="Did you mean 'conv2d_cpu_gemm'"):
        load(SOC, "gbdt", tmp_path)


def test_another_soc_needs_another_training(trained: tuple[Path, TrainReport]) -> None:
    """The same name, but vectors of another width: the GEMM is padded to other blocks."""
    wider = replace(SOC, cpu=replace(SOC.cpu, simd_floats=64))
    with pytest.raises(MismatchError, match="kernel variant or the SoC has changed"):
        load(wider, "codl_linear", trained[0])
