"""Training: what is held out, what is reported, and what becomes of bad datasets."""

from __future__ import annotations

import builtins
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clocks import Hands
from support.simulated import GEMM, SOC, conv_parts, law_ms, op_row, write_dataset
from support.some import some

from codl.errors import CodlError, InvalidFileError, UnknownNameError
from codl.ir import parse, split, to_text
from codl.ir.records.results import PredictorRow
from codl.measure.budget import Budget
from codl.measure.dataset import Dataset, SharingRow, StageRow
from codl.predict import ESTIMATORS, features
from codl.predict.estimators import LatencyEstimator
from codl.predict.estimators.gp_ensemble import Codl
from codl.predict.estimators.trees import Gbdt
from codl.predict.model_set import load
from codl.predict.training import TrainReport, train
from codl.predict.training_set import (
    TrainingRows,
    accuracy,
    connected_groups,
    shape_folds,
)
from codl.predict.workers import Workers

# What is held out


labels = st.lists(st.tuples(st.integers(0, 12), st.integers(20, 40)), min_size=1, max_size=60)


@given(labels)
def test_shape_folds_separate_nothing_that_belongs_together(rows: list[tuple[int, int]]) -> None:
    groups = connected_groups(rows)
    folds = shape_folds(groups)
    assert len(folds) == (min(5, len(set(groups))) if len(set(groups)) > 1 else 0)
    for fold in folds:
        train_rows, test_rows = ([rows[i] for i in part] for part in (fold.train, fold.test))
        assert train_rows
        assert test_rows
        for label in (0, 1):
            assert not {row[label] for row in train_rows} & {row[label] for row in test_rows}
    held_out = np.concatenate([fold.test for fold in folds]) if folds else np.arange(len(rows))
    assert sorted(held_out) == list(range(len(rows)))


def test_nothing_held_out_is_seen_in_fitting() -> None:
    @dataclass(frozen=True, kw_only=True, eq=False)
    class Spy(LatencyEstimator):
        name = "spy"
        seen: set[float]

        @classmethod
        def _fit(cls, X: np.ndarray, y: np.ndarray) -> Spy:
            return cls(seen=set(X[:, 0]))

        def _predict(self, X: np.ndarray) -> np.ndarray:
            assert not self.seen & set(X[:, 0])
            return np.ones(len(X))

    X, y = np.arange(50.0)[:, None], np.ones(50)
    folds = shape_folds(connected_groups([(i // 7,) for i in range(50)]))
    found = accuracy(Spy, TrainingRows(X, y, [""] * 50, np.arange(50)), folds)
    assert (found.n_test, found.acc5, found.mape) == (50, 100, 0)


def test_runs_are_held_out_with_their_rows() -> None:
    """One run is twice as slow: who knows the run predicts it."""
    rng = np.random.default_rng(0)
    X = rng.uniform(1, 100, (120, 2))
    runs = ["slow" if slow else "fast" for slow in rng.random(120) < 0.5]
    y = (X @ np.array([0.02, 0.03]) + 0.1) * np.where(np.array(runs) == "slow", 2.0, 1.0)
    y *= rng.normal(1, 0.02, 120)
    groups = np.arange(120) // 2
    found = accuracy(Codl, TrainingRows(X, y, runs, groups), shape_folds(groups))
    assert found.acc10 is not None
    assert found.acc10 > 90


# Training


def found(report: TrainReport, name: str, target: str) -> dict[str, PredictorRow]:
    rows = [row for row in report.predictors if (row.name, row.target) == (name, target)]
    return {row.split: row for row in rows}


def test_report_holds_the_contract(trained: tuple[Path, TrainReport]) -> None:
    folder, report = trained
    content = json.loads(json.dumps(report.to_json()))
    keys = "name target processor n_train n_test split acc10 acc5 mape "
    keys += "bytes us_per_prediction"
    assert content["train_s"] > 0
    assert content["evaluate_s"] > 0
    files = {name: folder / SOC.name / f"{name}.json" for name in ESTIMATORS}
    assert content["bytes"] == {name: path.stat().st_size for name, path in files.items()}
    for name, size in content["bytes"].items():
        parts = {
            row["target"]: row["bytes"] for row in content["predictors"] if row["name"] == name
        }
        assert 0.5 * size < sum(parts.values()) < size
    for row in content["predictors"]:
        assert row["us_per_prediction"] > 0
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
    for name in some(ESTIMATORS):
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
        assert row.bytes > 0
    flops = found(trained[1], "flops_linear", GEMM)["shape"]
    assert flops.acc10 is not None
    assert flops.acc10 < 90


def test_training_is_deterministic(
    simulated: Dataset, trained: tuple[Path, TrainReport], tmp_path: Path
) -> None:
    steps: list[tuple[int, int, float]] = []
    report = train(
        SOC,
        simulated,
        folder=tmp_path,
        workers=Workers(2),
        progress=lambda *step: steps.append(step),
    )
    total = len(report.predictors)
    assert [step[:2] for step in steps] == [(done, total) for done in range(1, total + 1)]
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
            data.table(GEMM).append(op_row(op, "OC", share, part, law_ms(part)))
    report = train(SOC, data, predictors=["codl_linear"], folder=tmp_path / "p")
    assert {row.n_test for row in report.predictors if row.split == "shape"} == {0}


def test_datasets_that_cannot_be_trained_on(tmp_path: Path) -> None:
    data = Dataset(tmp_path / SOC.name)
    with pytest.raises(InvalidFileError, match=r"no dataset here.*codl collect"):
        train(SOC, data, folder=tmp_path)
    op = parse("conv2d in=1x64x9x9 oc=64 kernel=3")
    data.table("conv2d_cpu_magic").append(op_row(op, "H", 1, op, 1.0))
    report = train(SOC, data, folder=tmp_path)
    assert report.predictors == ()
    assert "conv2d_cpu_magic" in report.notes[0]
    with pytest.raises(UnknownNameError, match="Did you mean 'codl_linear'"):
        train(SOC, data, predictors=["codl_liner"], folder=tmp_path)
    data.table("data_sharing").append(
        SharingRow(direction="to_gpus", shape="1x2x3x4", latency_ms=1)
    )
    with pytest.raises(InvalidFileError, match=r"t_data_sharing.csv.*Did you mean 'to_gpu'"):
        train(SOC, data, folder=tmp_path)
    data.table(GEMM).append(replace(op_row(op, "H", 1, op, 1.0), part="conv2d in=1x64"))
    with pytest.raises(InvalidFileError, match=r"t_conv2d_cpu_gemm.csv, \('conv2d"):
        train(SOC, data, folder=tmp_path)


# What is held out where time is short


def test_what_there_is_no_time_for_is_stored_and_not_held_out(
    simulated: Dataset, tmp_path: Path
) -> None:
    clock = Hands()
    told: list[int] = []

    def tell(done: int, total: int, left_s: float) -> None:
        told.append(done)
        clock.now += 1.0

    names = ("flops_linear",)
    whole = train(SOC, simulated, predictors=names, folder=tmp_path / "a", progress=tell)
    clock.now = 100.0
    steps = len(told) // 2
    budget = Budget(steps + 1.5, clock)
    part = train(
        SOC, simulated, predictors=names, folder=tmp_path / "b", budget=budget, progress=tell
    )
    assert (whole.stopped, whole.left) == ("done", 0)
    assert (part.stopped, part.left) == ("budget", steps - 1)
    assert len(part.predictors) == len(whole.predictors)
    known = [row for row in part.predictors if row.acc10 is not None]
    assert known
    assert all(
        row in [replace(one, us_per_prediction=row.us_per_prediction) for one in whole.predictors]
        for row in known
    )
    for folder in ("a", "b"):
        assert load(SOC, "flops_linear", tmp_path / folder)


def test_ctrl_c_keeps_what_was_held_out_before(simulated: Dataset, tmp_path: Path) -> None:
    seen: list[int] = []

    def tell(done: int, total: int, left_s: float) -> None:
        seen.append(done)
        if done == total - 1:
            raise KeyboardInterrupt

    names = ("flops_linear",)
    found = train(SOC, simulated, predictors=names, folder=tmp_path, progress=tell)
    assert (found.stopped, found.left) == ("interrupted", 1)
    assert load(SOC, "flops_linear", tmp_path)


def test_where_packing_has_no_row_everything_else_is_trained(tmp_path: Path) -> None:
    """As where a collection of few samples ended before it came to it."""
    dataset = write_dataset(tmp_path / "data")
    rows = [row for row in dataset.table("data_sharing").read() if row.direction != "store"]
    dataset.table("data_sharing").path.unlink()
    dataset.table("data_sharing").append(*rows)
    text = to_text(next(conv_parts())[3])
    dataset.table("stage").append(
        StageRow(
            before=text,
            chain=text,
            dim="H",
            gpu_ratio=0.0,
            cpu_ops=f"cpu_gemm {text}",
            packed="load 1x64x28x56; store 1x64x28x56",
            cpu_ms=1.0,
            latency_ms=1.0,
        )
    )
    report = train(SOC, dataset, predictors=["codl"], folder=tmp_path / "out", evaluate=False)
    assert GEMM in {row.target for row in report.predictors}
    (note,) = [note for note in report.notes if note.startswith("Too few rows")]
    assert "data_sharing_store (0 of 8)" in note
    assert "codl collect --soc simulated --resume" in note


def test_a_missing_system_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str, *args: object, **kwargs: object) -> object:
        if name == "lightgbm":
            raise OSError("libgomp.so.1: cannot open shared object file")
        return importing(name, *args, **kwargs)  # type: ignore[arg-type]

    importing = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(CodlError, match=r"libgomp.so.1.*libgomp1 on Debian"):
        Gbdt.fit(np.ones((4, 1)), np.ones(4))


def test_mulayer_learns_the_preferred_variant(tmp_path: Path) -> None:
    data = Dataset(tmp_path / SOC.name)
    for op, dim, share, part in conv_parts(ops=6):
        data.table(GEMM).append(op_row(op, dim, share, part, 100.0))
        if part.kernel == (3, 3):  # type: ignore[attr-defined]
            data.table("conv2d_cpu_winograd").append(op_row(op, dim, share, part, 1.0))
    # Earlier versions wrote copies for muLayer, which are left alone.
    data.table("mulayer_conv2d_cpu").append(op_row(op, dim, share, part, 5.0))
    train(SOC, data, predictors=["flops_linear"], folder=tmp_path / "p")
    stored = load(SOC, "flops_linear", tmp_path / "p").stored["mulayer_conv2d_cpu"]
    assert set(stored.tables) == {"conv2d_cpu_winograd", "conv2d_cpu_gemm"}
    assert stored.rows == 6 * 7
