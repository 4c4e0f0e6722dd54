"""Training: every predictor for every target of a dataset, stored, with its held-out accuracy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from codl.dataset import Dataset
from codl.errors import UnknownNameError
from codl.kernels import tuned
from codl.predict import features, samples, store
from codl.predict.estimators import ESTIMATORS, LatencyEstimator
from codl.predict.features import FeatureTable
from codl.predict.names import FOLDER
from codl.predict.samples import Samples
from codl.predict.splits import Fold, row_folds, shape_folds
from codl.predict.store import StoredPredictor
from codl.soc import Soc

#: Rows in the batch whose prediction is timed, about a planner's.
TIMED_ROWS = 1000

#: Called with the number of steps done, the number of all, and what comes next.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class PredictorRow:
    """One predictor of one target under one split, as `codl train --json` prints it.

    `acc10` and `acc5` are the percentage of held-out rows within 10 % and 5 %, `mape` the mean
    absolute error in percent, all None where nothing could be held out. In the shape split every
    row is held out once and `n_train` is the fewest rows fitted on. `bytes` is the stored file's
    size; a prediction's time includes its features, in a batch.
    """

    name: str
    target: str
    processor: str | None
    n_train: int
    n_test: int
    split: Literal["row", "shape"]
    acc10: float | None
    acc5: float | None
    mape: float | None
    bytes: int
    us_per_prediction: float


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """What was trained. `failed` rows were left out; `notes` say which targets were, and why."""

    soc: str
    predictors: tuple[PredictorRow, ...]
    train_s: float
    failed: int
    sources: tuple[str, ...]
    notes: tuple[str, ...]
    files: tuple[Path, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "predictors": [asdict(row) for row in self.predictors],
            "files": [str(path) for path in self.files],
        }


@dataclass(frozen=True)
class HeldOut:
    """Accuracy in percent on rows that were not fitted; None where nothing could be held out."""

    n_train: int
    n_test: int
    acc10: float | None = None
    acc5: float | None = None
    mape: float | None = None


def train(
    soc: Soc,
    dataset: Dataset,
    *,
    predictors: Sequence[str] = tuple(ESTIMATORS),
    folder: Path = FOLDER,
    progress: Progress | None = None,
) -> TrainReport:
    """Fit, hold out and store every predictor of every target with an ok row.

    Stored are estimators fitted on all ok rows, under `folder/<soc>/<predictor>/`. Raises
    `UnknownNameError` for an unknown predictor and `InvalidFileError` for a dataset that is empty
    or cannot be read. A target without any becomes a note.
    """
    start = perf_counter()
    for name in predictors:
        if name not in ESTIMATORS:
            raise UnknownNameError("predictor", name, ESTIMATORS)
    found, notes = samples.read(dataset)
    notes += [_empty(own, soc) for own in found if not own.samples]
    notes += _tuned_since(soc, dataset)
    usable = [own for own in found if own.samples]
    steps = [
        (own, ESTIMATORS[name])
        for own in usable
        for name in predictors
        if not features.is_mulayer(own.target) or ESTIMATORS[name].feature_set == "flops"
    ]
    rows: list[PredictorRow] = []
    files: list[Path] = []
    for done, (own, estimator) in enumerate(steps):
        if progress:
            progress(done, len(steps), f"{estimator.name} {own.target}")
        stored = _fit(soc, own, estimator)
        files.append(store.save(stored, folder))
        rows += _rows(soc, own, stored, files[-1])
    return TrainReport(
        soc=soc.name,
        predictors=tuple(rows),
        train_s=perf_counter() - start,
        failed=sum(own.failed for own in found if not features.is_mulayer(own.target)),
        sources=tuple(sorted({source for own in usable for source in own.sources})),
        notes=tuple(notes),
        files=tuple(files),
    )


def _tuned_since(soc: Soc, dataset: Dataset) -> list[str]:
    """A note where features of the choices of now would stand beside latencies of others."""
    runs = dataset.manifest().get("runs", {}) if dataset.manifest_path.exists() else {}
    old = [name for name, run in runs.items() if run.get("tuning", "") != tuned.fingerprint(soc)]
    if not old:
        return []
    return [
        f"Kernels were tuned after {', '.join(old)} of {dataset.folder} had measured them: collect "
        "anew, or predictions are of the kernels of then."
    ]


def _empty(own: Samples, soc: Soc) -> str:
    return (
        f"{own.target} has no ok row and {own.failed} failed ones: no predictor. "
        f"`codl collect --soc {soc.name}` measures more."
    )


def _fit(soc: Soc, own: Samples, estimator: type[LatencyEstimator]) -> StoredPredictor:
    """The estimator fitted on all rows, with its accuracy on those held out."""
    table = features.table(estimator.feature_set, own.target, own.items, soc)
    latency_ms = own.latency_ms
    row = row_folds(len(latency_ms))
    held_out = {
        "row": asdict(held_out_accuracy(estimator, table.values, latency_ms, row)),
        "shape": asdict(
            held_out_accuracy(estimator, table.values, latency_ms, shape_folds(own.groups))
        ),
    }
    return StoredPredictor(
        predictor=estimator.name,
        target=own.target,
        soc=soc.name,
        processor=own.processor,
        features=table.names,
        examples=_examples(own, table),
        dataset=_origin(own),
        held_out=held_out,
        estimator=estimator().fit(table.values, latency_ms),
    )


def held_out_accuracy(
    estimator: type[LatencyEstimator],
    values: NDArray[np.float64],
    latency_ms: NDArray[np.float64],
    folds: Sequence[Fold],
) -> HeldOut:
    """Fit on every fold's rows and predict those it holds out, all folds together.

    `values` is shaped (rows, features), `latency_ms` (rows).
    """
    if not folds:
        return HeldOut(n_train=len(latency_ms), n_test=0)
    errors = []
    for fold in folds:
        fitted = estimator().fit(values[fold.train], latency_ms[fold.train])
        wanted = latency_ms[fold.test]
        errors.append(np.abs(fitted.predict(values[fold.test]) - wanted) / wanted)
    error = np.concatenate(errors)
    return HeldOut(
        n_train=min(len(fold.train) for fold in folds),
        n_test=len(error),
        acc10=_percent(error <= 0.10),
        acc5=_percent(error <= 0.05),
        mape=_percent(error),
    )


def _percent(values: NDArray[Any]) -> float:
    return round(100 * float(values.mean()), 2)


def _examples(own: Samples, table: FeatureTable) -> Mapping[str, Mapping[str, float]]:
    """The features of the fastest, the median and the slowest sample."""
    order = np.argsort(own.latency_ms, kind="stable")
    chosen = [int(order[at]) for at in (0, len(order) // 2, -1)]
    part = FeatureTable(table.names, table.values[chosen])
    return store.examples_of([own.items[at] for at in chosen], part)


def _origin(own: Samples) -> dict[str, Any]:
    files = [{"file": p.name, "sha256": sha256(p.read_bytes()).hexdigest()} for p in own.files]
    rows = {"rows": len(own.samples), "failed": own.failed}
    return {"tables": files, **rows, "sources": own.sources}


def _rows(soc: Soc, own: Samples, stored: StoredPredictor, path: Path) -> list[PredictorRow]:
    us = _us_per_prediction(soc, own, stored.estimator)
    size = path.stat().st_size
    splits: tuple[Literal["row", "shape"], ...] = ("row", "shape")
    return [
        PredictorRow(
            name=stored.predictor,
            target=own.target,
            processor=own.processor,
            split=split,
            bytes=size,
            us_per_prediction=us,
            **stored.held_out[split],
        )
        for split in splits
    ]


def _us_per_prediction(soc: Soc, own: Samples, estimator: LatencyEstimator) -> float:
    items = (own.items * -(-TIMED_ROWS // len(own.items)))[:TIMED_ROWS]
    seconds = []
    for _ in range(3):
        start = perf_counter()
        table = features.table(estimator.feature_set, own.target, items, soc)
        estimator.predict(table.values)
        seconds.append(perf_counter() - start)
    return round(1e6 * median(seconds) / len(items), 3)
