"""Training: fits, stores and evaluates every predictor for every target of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from codl.ir.types import Direction
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
from codl.predict.cross_validation import (
    HeldOut,
    TrainingRows,
    accuracy,
    over_seeds,
    row_folds,
    shape_folds,
)
from codl.predict.estimators import LatencyEstimator
from codl.predict.features import FeatureTable
from codl.predict.model_set import FEW_ITEMS, Predictors, StoredPredictor, examples_of
from codl.predict.training_set import Samples
from codl.records.results import PredictorRow, Split
from codl.records.soc import Soc
from codl.records.statistic import level
from codl.workers import Workers

#: Rows in the batch whose prediction is timed, about a planner's.
TIMED_ROWS = 1000
#: How often the shapes are dealt out to folds anew; each takes as long as the first.
SEEDS = 1
SPLITS: tuple[Split, ...] = ("row", "shape")
#: What stages on the CPU rest on beside ops.
PACKING: tuple[Direction, ...] = ("load", "store")
#: How many times as long as others the default predictor takes to fit, and how many times as long
#: as fitting it takes to hold out rows once in five folds.
DEFAULT_COST, FOLDS_COST = 15, 3
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class TrainReport:
    """What was trained.

    Accuracies are those of `HeldOut`: in the shape split every row is held out once, in five folds,
    and figures are medians over `seeds`. `failed` rows were left out; `notes` say which targets
    were, and why.

    `train_s` is the time to read the dataset and to fit and store every predictor, `evaluate_s`
    that for the held-out figures; `bytes` is the size of each predictor's file. `stopped` says what
    ended the evaluation, and `left` of how many predictors of a target it knows nothing.
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
    stopped: Ended = "done"
    left: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "predictors": [asdict(row) for row in self.predictors],
            "files": [str(path) for path in self.files],
        }


@dataclass(frozen=True)
class TrainingTask:
    """An estimator and its rows: all that a worker needs, and nothing of where they are from."""

    estimator: type[LatencyEstimator]
    rows: TrainingRows

    def fitted(self) -> LatencyEstimator:
        """The estimator fitted on all rows."""
        return self.rows.fit(self.estimator, np.arange(len(self.rows.latency_ms)))

    def held_out(self, seeds: int) -> dict[Split, HeldOut]:
        """The accuracy on rows held out, for each split."""
        rows, groups = self.rows, self.rows.groups
        assert groups is not None
        shape = [accuracy(self.estimator, rows, shape_folds(groups, seed)) for seed in range(seeds)]
        row = accuracy(self.estimator, rows, row_folds(len(rows.latency_ms)))
        return {"row": row, "shape": over_seeds(shape)}


@dataclass(frozen=True)
class PredictorFit:
    """One predictor of one target, and what it is fitted to."""

    samples: Samples
    estimator: type[LatencyEstimator]
    table: FeatureTable

    @property
    def task(self) -> TrainingTask:
        return TrainingTask(self.estimator, self.samples.rows(self.table.values))

    @property
    def effort(self) -> tuple[bool, int]:
        """What grows with the time that it takes; the default predictor takes longest."""
        return self.estimator.name == DEFAULT, len(self.samples.samples)

    @property
    def cost(self) -> int:
        """About how long it takes to fit beside others."""
        is_default, rows = self.effort
        return rows * (DEFAULT_COST if is_default else 1)

    def stored(self, soc: Soc, tuning: Tuning, fitted: LatencyEstimator) -> StoredPredictor[Any]:
        """The fitted estimator with all that is known about it."""
        samples = self.samples
        return StoredPredictor(
            target=samples.target,
            rows=len(samples.samples),
            items=len(set(samples.items)),
            tables=samples.tables,
            sources=tuple(samples.sources),
            held_out={},
            features=self.table.names,
            examples=self._examples(soc, tuning),
            estimator=fitted,
        )

    def _examples(self, soc: Soc, tuning: Tuning) -> dict[str, str]:
        """Digests of the features of the median and the slowest sample, or of all of a few.

        For the papers' predictors, whose files are to be small, of one alone: of the middle half
        the one with the shortest text.
        """
        items = self.samples.items
        order = np.argsort(self.samples.latency_ms, kind="stable")
        chosen = list(dict.fromkeys(items))
        if len(chosen) >= FEW_ITEMS:
            median = len(order) // 2
            chosen = [items[at] for at in (order[median], order[-1])]
            if self.estimator.is_of_wholes:
                middle = [items[at] for at in order[median // 2 : median + median // 2]]
                chosen = [min(middle, key=lambda item: len(features.write(item)))]
        target, feature_set = self.samples.target, self.estimator.feature_set
        return examples_of(chosen, features.table(feature_set, target, chosen, soc, tuning))


def train(
    soc: Soc,
    dataset: Dataset,
    tuning: Tuning = Tuning(),
    *,
    predictors: Sequence[str] | None = None,
    folder: Path = FOLDER,
    evaluate: bool = True,
    seeds: int = SEEDS,
    workers: Workers = Workers(),
    budget: Budget | None = None,
    progress: Progress = no_progress,
) -> TrainReport:
    """Fit and store every predictor of every target with an ok row; hold out unless told not to.

    Held out is what the budget is enough for, the default predictor and the largest targets first.
    Ctrl-C keeps what was held out before. Stored are estimators fitted on all ok rows, in
    `folder/<soc>/<predictor>.json`; files are the same whatever `workers` there are.

    Raises `UnknownNameError` for an unknown predictor and `InvalidFileError` for a dataset that is
    empty or cannot be read. A target without any ok row becomes a note.
    """
    start, budget = perf_counter(), budget or Budget()
    wanted = ESTIMATORS if predictors is None else predictors
    names = [ESTIMATORS.find(name).name for name in wanted]
    work = _Work(workers, budget, progress)
    held_out_cost = (1 + seeds) * FOLDS_COST
    targets, left_out = training_set.read(dataset)
    steps = _steps(soc, tuning, targets, names)
    notes = [*left_out, *_notes(soc, dataset, tuning, targets)]
    work.expect(steps, [1] + [held_out_cost] * evaluate)
    sets = _fitted_sets(soc, dataset, tuning, names, steps, work)
    files = {name: samples.save(folder) for name, samples in sets.items() if samples.stored}
    stored_at = perf_counter()
    held_out = work.some(steps, _hold_out, seeds, times=held_out_cost) if evaluate else {}
    if held_out:
        sets = _with_figures(sets, steps, held_out)
        files = {name: samples.save(folder) for name, samples in sets.items() if samples.stored}
    done = perf_counter()
    return TrainReport(
        soc=soc.name,
        predictors=tuple(_rows(sets, steps, held_out)),
        train_s=stored_at - start,
        evaluate_s=done - stored_at,
        seeds=seeds,
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
    """Every predictor of every target with samples.

    Features of a target are computed once for all predictors. What sharing takes as a whole is for
    those that know nothing finer; others add its parts.
    """
    steps, usable = [], [samples for samples in targets if samples.samples]
    estimators = [ESTIMATORS[name] for name in predictors]
    summed = {features.whole_of(samples.target) for samples in usable}
    for samples in usable:
        tables: dict[str, FeatureTable] = {}
        for estimator in estimators:
            kind = estimator.feature_set
            if features.is_mulayer(samples.target) and kind != "flops":
                continue
            if estimator.is_of_wholes and not features.is_whole(samples.target):
                continue
            if not estimator.is_of_wholes and samples.target in summed:
                continue
            if kind not in tables:
                tables[kind] = features.table(kind, samples.target, samples.items, soc, tuning)
            steps.append(PredictorFit(samples, estimator, tables[kind]))
    return steps


def _fitted_sets(
    soc: Soc,
    dataset: Dataset,
    tuning: Tuning,
    predictors: Sequence[str],
    steps: Sequence[PredictorFit],
    work: _Work,
) -> dict[str, Predictors]:
    """Every predictor's set; the papers' know nothing of what ops take more inside a network."""
    stored: dict[str, dict[str, StoredPredictor[Any]]] = {name: {} for name in predictors}
    for step, estimator in zip(steps, work.map(steps, _fit, None), strict=True):
        stored[step.estimator.name][step.samples.target] = step.stored(soc, tuning, estimator)
    sets = {
        name: Predictors(name, soc, dataset.folder, targets, tuning)
        for name, targets in stored.items()
    }
    return {
        name: fitted_set
        if ESTIMATORS[name].is_of_wholes
        else replace(fitted_set, inside=in_network_cost.fitted(soc, dataset, fitted_set, tuning))
        for name, fitted_set in sets.items()
    }


def _with_figures(
    sets: Mapping[str, Predictors],
    steps: Sequence[PredictorFit],
    held_out: Mapping[int, Mapping[Split, HeldOut]],
) -> dict[str, Predictors]:
    """The sets, whose predictors know how well they do on shapes that were held out."""
    stored = {name: dict(predictors.stored) for name, predictors in sets.items()}
    for at, splits in held_out.items():
        of_set, target = stored[steps[at].estimator.name], steps[at].samples.target
        of_set[target] = replace(of_set[target], held_out=splits["shape"].figures)
    return {name: replace(sets[name], stored=of_set) for name, of_set in stored.items()}


def _fit(_: None, task: TrainingTask) -> LatencyEstimator:
    return task.fitted()


def _hold_out(seeds: int, task: TrainingTask) -> dict[Split, HeldOut]:
    return task.held_out(seeds)


class _Work:
    """Hands steps' tasks to workers in passes, and tells how far that has come by their cost."""

    def __init__(self, workers: Workers, budget: Budget, progress: Progress) -> None:
        self._workers, self._budget, self._progress = workers, budget, progress
        self._done = self._total = self._spent = self._cost = 0

    def expect(self, steps: Sequence[PredictorFit], passes: Sequence[int]) -> None:
        """Each step once in every pass, which takes that many times its cost."""
        self._total = len(steps) * len(passes)
        self._cost = sum(step.cost for step in steps) * sum(passes)

    def tell(self, cost: int) -> None:
        self._done, self._spent = self._done + 1, self._spent + cost
        self._progress(self._done, self._total, self._budget.to_go_s(self._spent, self._cost))

    def map(
        self, steps: Sequence[PredictorFit], work: Callable[[Any, TrainingTask], R], common: Any
    ) -> list[R]:
        """The work on every step's task, in the order of the steps."""
        done: dict[int, R] = {}
        order, tasks = self._in_order(steps)
        workers = self._workers.at_most(len(steps))
        with closing(workers.results(work, common, tasks)) as results:
            for place, result in results:
                done[order[place]] = result
                self.tell(steps[order[place]].cost)
        return [done[at] for at in range(len(steps))]

    def some(
        self,
        steps: Sequence[PredictorFit],
        work: Callable[[Any, TrainingTask], R],
        common: Any,
        *,
        times: int,
    ) -> dict[int, R]:
        """The work on as many steps' tasks as there is time for, by the steps' places."""
        done: dict[int, R] = {}
        order, tasks = self._in_order(steps)
        workers = self._workers.at_most(len(steps))
        with (
            closing(workers.results(work, common, tasks)) as results,
            self._budget.keeping(tasks),
        ):
            for place, result in self._budget.steps(results, total=len(tasks)):
                done[order[place]] = result
                self.tell(times * steps[order[place]].cost)
        return done

    def _in_order(self, steps: Sequence[PredictorFit]) -> tuple[list[int], list[TrainingTask]]:
        """The places of steps, and their tasks: those with the most rows are begun first."""
        order = sorted(range(len(steps)), key=lambda at: steps[at].effort, reverse=True)
        return order, [steps[at].task for at in order]


def _notes(soc: Soc, dataset: Dataset, tuning: Tuning, targets: Sequence[Samples]) -> list[str]:
    """What has no predictor, and what makes latencies doubtful."""
    notes = [
        f"{samples.target} has no ok row and {samples.failed} failed ones: no predictor. "
        f"`codl collect --soc {soc.name}` measures more."
        for samples in targets
        if not samples.samples
    ]
    notes += _packing(soc, dataset, {samples.target for samples in targets})
    return notes + _tuned_since(soc, dataset, tuning) + _statistics(dataset)


def _tuned_since(soc: Soc, dataset: Dataset, tuning: Tuning) -> list[str]:
    """A note where the dataset predates the current tuning."""
    if soc.is_replayed:
        return []
    runs = dataset.manifest()["runs"] if dataset.manifest_path.exists() else {}
    old = [name for name, run in runs.items() if run.get("tuning", "") != tuning.fingerprint]
    if not old:
        return []
    return [
        f"Kernels were tuned after {', '.join(old)} of {dataset.folder} had measured them: collect "
        "anew, or predictions are of the kernels of then."
    ]


def _statistics(dataset: Dataset) -> list[str]:
    """A note where runs of the dataset have latencies by different statistics."""
    used = dataset.statistics()
    if len(set(used.values())) < 2:
        return []
    each = "; ".join(f"{name}: {statistic}" for name, statistic in used.items())
    return [
        f"Latencies in {dataset.folder} are not all by one statistic ({each}). Anchors take out "
        "how much they differ in the mean, but not by op: collect anew for one."
    ]


def _packing(soc: Soc, dataset: Dataset, targets: Collection[str]) -> Iterator[str]:
    """What stages rest on and has no row at all, as where a collection ended early."""
    if not dataset.table("stage").path.exists():
        return
    for way in PACKING:
        if (target := features.sharing_target(way)) not in targets:
            yield (
                f"Too few rows of {target} (0 of {FEW_ITEMS}): no predictor of it, and "
                "stages with it are left out. "
                f"`codl collect --soc {soc.name} --resume` measures more."
            )


def _rows(
    sets: Mapping[str, Predictors],
    steps: Sequence[PredictorFit],
    held_out: Mapping[int, Mapping[Split, HeldOut]],
) -> Iterator[PredictorRow]:
    """A row for each split of every step."""
    for at, step in enumerate(steps):
        trained, samples = sets[step.estimator.name], step.samples
        with_features, without = _us_per_prediction(trained, samples)
        nothing = HeldOut(n_train=len(samples.samples), n_test=0)
        for split in SPLITS:
            yield PredictorRow(
                name=trained.name,
                target=samples.target,
                processor=samples.processor,
                split=split,
                bytes=trained.stored[samples.target].bytes,
                us_per_prediction=with_features,
                us_without_features=without,
                **asdict(held_out.get(at, {}).get(split, nothing)),
            )


def _us_per_prediction(trained: Predictors, samples: Samples) -> tuple[float, float]:
    """Microseconds for each of a batch of items: with their features, and without."""
    stored = trained.stored[samples.target]
    items = (samples.items * -(-TIMED_ROWS // len(samples.items)))[:TIMED_ROWS]
    both, alone = [], []
    for _ in range(3):
        start = perf_counter()
        table = stored.table(items, trained.soc, trained.tuning)
        tabled = perf_counter()
        stored.estimator.predict(table.values)
        end = perf_counter()
        both.append(end - start)
        alone.append(end - tabled)
    count = len(items)
    return round(1e6 * level(both) / count, 3), round(1e6 * level(alone) / count, 3)
