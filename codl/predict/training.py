"""Training of predictors: fitting, storage and evaluation for every target of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from timeit import repeat
from typing import Any, TypeAlias, TypeVar

import numpy as np

from codl.ir.records.results import PredictorRow, Split
from codl.ir.records.soc import Soc
from codl.ir.records.statistic import level
from codl.kernels.tuning import Tuning
from codl.measure.budget import Budget, Ended, Progress, no_progress
from codl.measure.dataset import Dataset
from codl.predict import (
    DEFAULT,
    ESTIMATORS,
    FOLDER,
    features,
    in_network_cost,
    training_set,
)
from codl.predict.estimators import LatencyEstimator
from codl.predict.features import FeatureTable
from codl.predict.model_set import FEW_ITEMS, Predictors, StoredPredictor, examples_of
from codl.predict.training_set import (
    HeldOut,
    Samples,
    TrainingRows,
    accuracy,
    row_folds,
    shape_folds,
)
from codl.predict.workers import Workers

#: Rows of a timed batch of predictions, about a planner's batch.
TIMED_ROWS = 1000
SPLITS: tuple[Split, ...] = ("row", "shape")
R = TypeVar("R")
TrainingTask: TypeAlias = tuple[type[LatencyEstimator], TrainingRows]


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """Result of `train`: accuracy, times, files and notes.

    `predictors` has accuracies as in `HeldOut`: the shape split holds out every row once, in five
    folds. `failed` counts rows left out; `notes` explain targets left out. `train_s` is the time to
    read the dataset and to fit and store every predictor, `evaluate_s` the time of held-out
    evaluation. `bytes` is the size of each predictor's file. `stopped` is the reason for the end of
    evaluation, `left` the number of unevaluated fits.
    """

    soc: str
    predictors: tuple[PredictorRow, ...]
    train_s: float
    evaluate_s: float
    bytes: Mapping[str, int]
    failed: int
    sources: tuple[str, ...]
    notes: tuple[str, ...]
    files: tuple[Path, ...]
    stopped: Ended = "done"
    left: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"files": [str(path) for path in self.files]}


def _fit(_: None, task: TrainingTask) -> LatencyEstimator:
    estimator, rows = task
    return rows.fit(estimator, np.arange(len(rows.latency_ms)))


def _hold_out(_: None, task: TrainingTask) -> dict[Split, HeldOut]:
    estimator, rows = task
    folds = {"row": row_folds(len(rows.latency_ms)), "shape": shape_folds(rows.groups)}
    return {split: accuracy(estimator, rows, folds[split]) for split in SPLITS}


@dataclass(frozen=True)
class PredictorFit:
    samples: Samples
    estimator: type[LatencyEstimator]
    table: FeatureTable

    @property
    def effort(self) -> tuple[bool, int]:
        """Sort key that grows with fitting time; the default predictor takes longest."""
        return self.estimator.name == DEFAULT, len(self.samples.samples)

    @property
    def task(self) -> TrainingTask:
        return self.estimator, self.samples.rows(self.table.values)

    def stored(self, fitted: LatencyEstimator) -> StoredPredictor[Any]:
        """The fitted estimator with its metadata, without held-out accuracy."""
        samples = self.samples
        return StoredPredictor(
            target=samples.target,
            rows=len(samples.samples),
            items=len(set(samples.items)),
            tables=samples.tables,
            sources=tuple(samples.sources),
            held_out={},
            features=self.table.names,
            examples=self._examples(),
            estimator=fitted,
        )

    def _examples(self) -> dict[str, str]:
        """Feature digests of example items, by text.

        Examples are the samples of median and highest latency, or all items of fewer than
        `FEW_ITEMS`. The papers' predictors, for small files, have one: the shortest text among
        the middle half of latencies.
        """
        items = self.samples.items
        order = np.argsort(self.samples.latency_ms, kind="stable").tolist()
        chosen = list({item: at for at, item in reversed([*enumerate(items)])}.values())[::-1]
        if len(chosen) >= FEW_ITEMS:
            median = len(order) // 2
            chosen = [order[median], order[-1]]
            if self.estimator.is_of_wholes:
                middle = order[median // 2 : median + median // 2]
                chosen = [min(middle, key=lambda at: len(features.write(items[at])))]
        table = FeatureTable(self.table.names, self.table.values[chosen])
        return examples_of([items[at] for at in chosen], table)


def train(
    soc: Soc,
    dataset: Dataset,
    tuning: Tuning = Tuning(),
    *,
    predictors: Sequence[str] | None = None,
    folder: Path = FOLDER,
    evaluate: bool = True,
    workers: Workers = Workers(),
    budget: Budget | None = None,
    progress: Progress = no_progress,
) -> TrainReport:
    """Fit and store every predictor of every target with an ok row; `evaluate` adds accuracies.

    Evaluation runs within the budget, the default predictor and the largest targets first. Ctrl-C
    keeps finished evaluations. Estimators are fitted on all ok rows and stored in
    `folder/<soc>/<predictor>.json`; files do not depend on `workers`. A target without an ok row
    becomes a note.

    Raises `UnknownNameError` for an unknown predictor and `InvalidFileError` for an empty or
    unreadable dataset.
    """
    start, budget = perf_counter(), budget or Budget()
    wanted = ESTIMATORS if predictors is None else predictors
    names = [ESTIMATORS.find(name).name for name in wanted]
    targets, left_out = training_set.read(dataset)
    steps = _steps(soc, tuning, targets, names)
    notes = [*left_out, *_notes(soc, dataset, tuning, targets)]
    work = _Work(steps, workers, budget, progress, len(steps) * (1 + evaluate))
    sets = {name: Predictors(name, soc, dataset.folder, {}, tuning) for name in names}
    _fill(sets, dataset, steps, dict(work.results(_fit)))
    files = {name: trained.save(folder) for name, trained in sets.items() if trained.stored}
    stored_at = perf_counter()
    held_out: dict[int, Mapping[Split, HeldOut]] = {}
    if evaluate:
        with budget.keeping(steps):
            held_out.update(work.results(_hold_out, within_budget=True))
    for at, splits in held_out.items():
        stored, target = sets[steps[at].estimator.name].stored, steps[at].samples.target
        stored[target] = replace(stored[target], held_out=splits["shape"].figures)
    if held_out:
        files = {name: sets[name].save(folder) for name in files}
    done = perf_counter()
    return TrainReport(
        soc=soc.name,
        predictors=tuple(_rows(sets, steps, held_out)),
        train_s=stored_at - start,
        evaluate_s=done - stored_at,
        bytes={name: path.stat().st_size for name, path in files.items()},
        failed=sum(each.failed for each in targets if not features.is_mulayer(each.target)),
        sources=tuple(sorted({source for samples in targets for source in samples.sources})),
        notes=tuple(notes),
        files=tuple(files.values()),
        stopped=budget.ended,
        left=len(steps) - len(held_out) if evaluate else 0,
    )


def _steps(
    soc: Soc, tuning: Tuning, targets: Sequence[Samples], predictors: Sequence[str]
) -> list[PredictorFit]:
    """Fits of every predictor for every target with samples.

    Predictors of one feature set share a target's features. The papers' predictors learn whole
    exchanges; the others learn an exchange's parts where measured.
    """
    steps, usable = [], [samples for samples in targets if samples.samples]
    summed = {features.whole_of(samples.target) for samples in usable}
    for samples in usable:
        target, tables = samples.target, dict[str, FeatureTable]()
        for estimator in map(ESTIMATORS.__getitem__, predictors):
            kind, is_of_wholes = estimator.feature_set, estimator.is_of_wholes
            is_learned = features.is_whole(target) if is_of_wholes else target not in summed
            if is_learned and (kind == "flops" or not features.is_mulayer(target)):
                if kind not in tables:
                    tables[kind] = features.table(kind, target, samples.items, soc, tuning)
                steps.append(PredictorFit(samples, estimator, tables[kind]))
    return steps


def _fill(
    sets: dict[str, Predictors],
    dataset: Dataset,
    steps: Sequence[PredictorFit],
    fitted: Mapping[int, LatencyEstimator],
) -> None:
    """Store the estimator of each step in its set, then fit the set's costs inside networks."""
    for at, step in enumerate(steps):
        sets[step.estimator.name].stored[step.samples.target] = step.stored(fitted[at])
    for name, trained in sets.items():
        if not ESTIMATORS[name].is_of_wholes:
            costs = in_network_cost.fitted(trained.soc, dataset, trained, trained.tuning)
            sets[name] = replace(trained, inside=costs)


@dataclass
class _Work:
    """Runs a task of each step on workers, the longest first, and reports progress."""

    steps: Sequence[PredictorFit]
    workers: Workers
    budget: Budget
    progress: Progress
    total: int
    done: int = 0

    def results(
        self, work: Callable[[None, TrainingTask], R], *, within_budget: bool = False
    ) -> Iterator[tuple[int, R]]:
        """The index of each step with its result; of as many steps as the budget allows."""
        count = len(self.steps)
        order = sorted(range(count), key=lambda at: self.steps[at].effort, reverse=True)
        tasks = [self.steps[at].task for at in order]
        with closing(self.workers.at_most(count).results(work, None, tasks)) as results:
            steps = self.budget.steps(results, total=count) if within_budget else results
            for place, result in steps:
                yield order[place], result
                self.done += 1
                self.progress(self.done, self.total, self.budget.to_go_s(self.done, self.total))


def _notes(soc: Soc, dataset: Dataset, tuning: Tuning, targets: Sequence[Samples]) -> list[str]:
    notes = [
        f"{samples.target} has no ok row and {samples.failed} failed ones: no predictor. "
        f"`codl collect --soc {soc.name}` measures more."
        for samples in targets
        if not samples.samples
    ]
    if dataset.table("stage").path.exists():
        # Packing has no row where a collection ended early.
        packing = {features.sharing_target("load"), features.sharing_target("store")}
        notes += [
            f"Too few rows of {target} (0 of {FEW_ITEMS}): no predictor of it, and stages with it "
            f"are left out. `codl collect --soc {soc.name} --resume` measures more."
            for target in sorted(packing - {one.target for one in targets})
        ]
    runs = dataset.manifest()["runs"] if dataset.manifest_path.exists() else {}
    old = [name for name, run in runs.items() if run.get("tuning", "") != tuning.fingerprint]
    if old and not soc.is_replayed:
        notes.append(
            f"Kernels were tuned after {', '.join(old)} of {dataset.folder} had measured them: "
            "collect anew, or predictions are of the kernels of then."
        )
    return notes


def _rows(
    sets: Mapping[str, Predictors],
    steps: Sequence[PredictorFit],
    held_out: Mapping[int, Mapping[Split, HeldOut]],
) -> Iterator[PredictorRow]:
    for at, step in enumerate(steps):
        trained, samples = sets[step.estimator.name], step.samples
        us_per_prediction = _us_per_prediction(trained, samples)
        nothing = HeldOut(n_train=len(samples.samples), n_test=0)
        for split in SPLITS:
            yield PredictorRow(
                name=trained.name,
                target=samples.target,
                processor=samples.processor,
                split=split,
                bytes=trained.stored[samples.target].bytes,
                us_per_prediction=us_per_prediction,
                **asdict(held_out.get(at, {}).get(split, nothing)),
            )


def _us_per_prediction(trained: Predictors, samples: Samples) -> float:
    """Microseconds of a prediction in a batch."""
    items = (samples.items * -(-TIMED_ROWS // len(samples.items)))[:TIMED_ROWS]
    taken_s = repeat(lambda: trained.latency_ms(samples.target, items), number=1, repeat=3)
    return round(1e6 * level(taken_s) / len(items), 3)
