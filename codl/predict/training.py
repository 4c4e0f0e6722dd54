"""Training: fits, stores and evaluates every predictor for every target of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

from codl.errors import CodlError, MismatchError
from codl.ir.results import PredictorRow, Split
from codl.ir.soc import Soc
from codl.kernels.tuning import Tuning
from codl.measure.dataset import Dataset
from codl.predict import (
    cross_validation as held_out,
)
from codl.predict import (
    domain_adaptation as transfer,
)
from codl.predict import (
    features,
)
from codl.predict import (
    serialization as store,
)
from codl.predict import (
    training_set as samples,
)
from codl.predict.cross_validation import HeldOut, TrainingRows
from codl.predict.domain_adaptation import Known
from codl.predict.estimators import (
    LatencyEstimator,
    trees,
)
from codl.predict.features import FeatureTable
from codl.predict.folds import row_folds, shape_folds
from codl.predict.names import DEFAULT, ESTIMATORS, FOLDER
from codl.predict.serialization import StoredPredictor
from codl.predict.training_set import Samples

#: Rows in the batch whose prediction is timed, about a planner's.
TIMED_ROWS = 1000
#: How often the shapes are dealt out to folds anew.
SEEDS = 3

#: Called with the number of steps done, the number of all, and what comes next.
Progress = Callable[[int, int, str], None]
T = TypeVar("T")
SPLITS: tuple[Split, ...] = ("row", "shape")


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """What was trained.

    Accuracies are those of `HeldOut`: in the shape split every row is held out once, in five folds,
    and figures are medians over `seeds`. `failed` rows were left out; `notes` say which targets
    were, and why.

    `train_s` is the time to read the dataset and to fit and store every predictor, `evaluate_s`
    that for the held-out figures; `bytes` is the size of each predictor's file.
    """

    soc: str
    predictors: tuple[PredictorRow, ...]
    train_s: float
    evaluate_s: float
    seeds: int
    bytes: Mapping[str, int]
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
class _Step:
    """One predictor of one target, and what it is fitted to."""

    own: Samples
    estimator: type[LatencyEstimator]
    table: FeatureTable
    known: tuple[Known, ...] = ()

    @property
    def rows(self) -> TrainingRows:
        own = self.own
        return TrainingRows(self.table.values, own.latency_ms, own.runs, own.groups)

    @property
    def label(self) -> str:
        return f"{self.estimator.name} {self.own.target}"

    @property
    def effort(self) -> tuple[bool, int]:
        """What grows with the time that it takes; the default predictor takes longest."""
        return self.estimator.name == DEFAULT, len(self.own.samples)


def train(
    soc: Soc,
    dataset: Dataset,
    tuning: Tuning = Tuning(),
    *,
    predictors: Sequence[str] | None = None,
    folder: Path = FOLDER,
    like: Sequence[tuple[Soc, Dataset]] = (),
    evaluate: bool = True,
    seeds: int = SEEDS,
    jobs: int = 1,
    progress: Progress | None = None,
) -> TrainReport:
    """Fit and store every predictor of every target with an ok row; hold out unless told not to.

    Stored are estimators fitted on all ok rows, in `folder/<soc>/<predictor>.json`, by `jobs`
    processes. The predictor `codl` starts from what the SoCs of `like` take, for every target that
    they have and where that makes it better.

    Raises `MismatchError` for a SoC of `like` that has none of the targets, `UnknownNameError` for
    an unknown predictor and `InvalidFileError` for a dataset
    that is empty or cannot be read. A target without any ok row becomes a note.
    """
    start = perf_counter()
    predictors = tuple(ESTIMATORS) if predictors is None else predictors
    for name in predictors:
        ESTIMATORS.find(name)
    targets, notes = samples.read(dataset)
    notes += [_empty(own, soc) for own in targets if not own.samples]
    notes += _tuned_since(soc, dataset, tuning)
    usable = [own for own in targets if own.samples]
    steps = _steps(soc, tuning, usable, predictors)
    if like:
        steps, told = _beside(soc, tuning, steps, like)
        notes += told
    tell = _Counter(progress, len(steps) * (1 + evaluate))
    with threadpool_limits(1, user_api="blas"), _pool(jobs) as pool:
        stored = _in_turn(pool, partial(_fit, soc, tuning), steps, tell)
        files = _save(stored, folder)
        fitted = perf_counter()
        looks: list[dict[Split, HeldOut]] = [{} for _ in steps]
        if evaluate:
            looks = _in_turn(pool, partial(_evaluated, seeds=seeds), steps, tell)
            stored = [
                replace(one, held_out=look["shape"].figures)
                for one, look in zip(stored, looks, strict=True)
            ]
            files = _save(stored, folder)
    done = perf_counter()
    rows = [
        row for each in zip(steps, stored, looks, strict=True) for row in _rows(soc, tuning, *each)
    ]
    return TrainReport(
        soc=soc.name,
        predictors=tuple(rows),
        train_s=fitted - start,
        evaluate_s=done - fitted,
        seeds=seeds,
        bytes={name: path.stat().st_size for name, path in files.items()},
        failed=sum(own.failed for own in targets if not features.is_mulayer(own.target)),
        sources=tuple(sorted({source for own in usable for source in own.sources})),
        notes=tuple(notes),
        files=tuple(files.values()),
    )


def _save(stored: Sequence[StoredPredictor], folder: Path) -> dict[str, Path]:
    """Write the file of every predictor; the files by its name."""
    by_name: dict[str, list[StoredPredictor]] = {}
    for one in stored:
        by_name.setdefault(one.predictor, []).append(one)
    return {name: store.save(own, folder) for name, own in by_name.items()}


class _Counter:
    """Tells of every step that is waited for."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, label: str) -> None:
        if self._progress:
            self._progress(self._done, self._total, label)
        self._done += 1


def _pool(jobs: int) -> Executor:
    """Processes, as most of the work is Python's own; one thread for one job.

    They are forked, so that nothing is imported anew, and where that cannot be, threads.
    """
    if jobs > 1 and "fork" in get_all_start_methods():
        _import_libraries()
        return ProcessPoolExecutor(jobs, mp_context=get_context("fork"))
    return ThreadPoolExecutor(jobs)


def _import_libraries() -> None:
    """What fitting imports where it first needs it: once, before there are several processes."""
    import sklearn.tree  # noqa: F401

    with suppress(CodlError):  # not every predictor needs it
        trees.lightgbm()


def _in_turn(
    pool: Executor, work: Callable[[_Step], T], steps: Sequence[_Step], tell: _Counter
) -> list[T]:
    """The work of every step, in their order; those with the most rows are begun first."""
    order = sorted(range(len(steps)), key=lambda at: steps[at].effort, reverse=True)
    asked = {at: pool.submit(work, steps[at]) for at in order}
    results = {}
    for at in order:
        tell(steps[at].label)
        results[at] = asked[at].result()
    return [results[at] for at in range(len(steps))]


def _steps(
    soc: Soc, tuning: Tuning, usable: Sequence[Samples], predictors: Sequence[str]
) -> list[_Step]:
    """Every predictor of every target; features of a target are computed once for all of them.

    What sharing takes as a whole is for those that know nothing finer; others add its parts.
    """
    steps = []
    summed = {features.whole_of(own.target) for own in usable}
    for own in usable:
        tables: dict[str, FeatureTable] = {}
        for estimator in (ESTIMATORS[name] for name in predictors):
            kind = estimator.feature_set
            if features.is_mulayer(own.target) and kind != "flops":
                continue
            if estimator.is_of_wholes and not features.is_whole(own.target):
                continue
            if not estimator.is_of_wholes and own.target in summed:
                continue
            if kind not in tables:
                tables[kind] = features.table(kind, own.target, own.items, soc, tuning)
            steps.append(_Step(own, estimator, tables[kind]))
    return steps


def _beside(
    soc: Soc, tuning: Tuning, steps: Sequence[_Step], like: Sequence[tuple[Soc, Dataset]]
) -> tuple[list[_Step], list[str]]:
    """The steps with known SoCs' latencies as features where they help, and notes where not."""
    wanted = {step.own.target for step in steps}
    known: dict[str, list[Known]] = {}
    for other, dataset in like:
        targets = [own for own in samples.read(dataset)[0] if own.samples and own.target in wanted]
        if other.name == soc.name or not targets:
            raise MismatchError(
                f"{soc.name} cannot start from {other.name}: it must be another SoC with a dataset "
                f"of one of {', '.join(sorted(wanted))}."
            )
        for own in (own for own in targets if not features.is_mulayer(own.target)):
            one = Known.of(other, own, tables=_digests(own))
            known.setdefault(own.target, []).append(one)
    result, notes = [], []
    for step in steps:
        others = tuple(known.get(step.own.target, ()))
        if step.estimator.name != DEFAULT or not others:
            result.append(step)
        elif transfer.helps(step.own, soc, others, tuning, name=DEFAULT):
            table = transfer.table(step.own.target, step.own.items, soc, others, tuning)
            result.append(replace(step, table=table, known=others))
        else:
            names = ", ".join(one.soc.name for one in others)
            notes.append(f"{step.own.target} is predicted better without {names}.")
            result.append(step)
    return result, notes


def _tuned_since(soc: Soc, dataset: Dataset, tuning: Tuning) -> list[str]:
    """A note where the dataset predates the current tuning."""
    if soc.is_replayed:
        return []
    runs = dataset.manifest().get("runs", {}) if dataset.manifest_path.exists() else {}
    old = [name for name, run in runs.items() if run.get("tuning", "") != tuning.fingerprint]
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


def _fit(soc: Soc, tuning: Tuning, step: _Step) -> StoredPredictor:
    """The estimator fitted on all rows."""
    own, table = step.own, step.table
    return StoredPredictor(
        predictor=step.estimator.name,
        target=own.target,
        soc=soc.name,
        tuning=tuning.fingerprint,
        features=table.names,
        known=step.known,
        examples=_examples(soc, tuning, step),
        rows=len(own.samples),
        items=len(set(own.items)),
        tables=_digests(own),
        sources=tuple(own.sources),
        held_out={},
        estimator=step.rows.fit(step.estimator, np.arange(len(own.samples))),
    )


def _evaluated(step: _Step, seeds: int) -> dict[Split, HeldOut]:
    """The accuracy on rows held out, for each split."""
    rows, groups = step.rows, step.own.groups
    shape = [
        held_out.accuracy(step.estimator, rows, shape_folds(groups, seed)) for seed in range(seeds)
    ]
    row = held_out.accuracy(step.estimator, rows, row_folds(len(rows.latency_ms)))
    return {"row": row, "shape": held_out.over_seeds(shape)}


def _examples(soc: Soc, tuning: Tuning, step: _Step) -> Mapping[str, str]:
    """Digests of the features of the median and the slowest sample on this SoC; of all of a few.

    For the papers' predictors, whose files are to be small, of one alone: of the middle half the
    one with the shortest text.
    """
    own = step.own
    order = np.argsort(own.latency_ms, kind="stable")
    chosen = list(dict.fromkeys(own.items))
    if len(chosen) >= store.FEW_ITEMS:
        median = len(order) // 2
        chosen = [own.items[at] for at in (order[median], order[-1])]
        if step.estimator.is_of_wholes:
            middle = [own.items[at] for at in order[median // 2 : median + median // 2]]
            chosen = [min(middle, key=lambda item: len(features.write(item)))]
    part = features.table(step.estimator.feature_set, own.target, chosen, soc, tuning)
    return store.examples_of(chosen, part)


def _digests(own: Samples) -> dict[str, str]:
    """The tables that the samples are of, by the start of their SHA-256."""
    files = {path.stem.removeprefix("t_"): path for path in own.files}
    return {name: sha256(path.read_bytes()).hexdigest()[:8] for name, path in files.items()}


def _rows(
    soc: Soc,
    tuning: Tuning,
    step: _Step,
    stored: StoredPredictor,
    looks: Mapping[Split, HeldOut],
) -> list[PredictorRow]:
    own, size = step.own, stored.bytes
    with_features, without = _us_per_prediction(soc, tuning, own, stored)
    nothing = HeldOut(n_train=len(own.samples), n_test=0)
    return [
        PredictorRow(
            name=stored.predictor,
            target=own.target,
            processor=own.processor,
            split=split,
            bytes=size,
            us_per_prediction=with_features,
            us_without_features=without,
            **asdict(looks.get(split, nothing)),
        )
        for split in SPLITS
    ]


def _us_per_prediction(
    soc: Soc, tuning: Tuning, own: Samples, stored: StoredPredictor
) -> tuple[float, float]:
    """Microseconds for each of a batch of items: with their features, and without."""
    items = (own.items * -(-TIMED_ROWS // len(own.items)))[:TIMED_ROWS]
    both, alone = [], []
    for _ in range(3):
        start = perf_counter()
        table = stored.table(items, soc, tuning)
        known = perf_counter()
        stored.estimator.predict(table.values)
        end = perf_counter()
        both.append(end - start)
        alone.append(end - known)
    count = len(items)
    return round(1e6 * median(both) / count, 3), round(1e6 * median(alone) / count, 3)
