"""Training: fits, stores and evaluates every predictor for every target of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from codl.ir.types import Direction
from codl.kernels.tuning import Tuning
from codl.measure.budget import Budget, Ended, Progress, nobody
from codl.measure.dataset import Dataset
from codl.predict import DEFAULT, ESTIMATORS, FOLDER, features
from codl.predict import in_network_cost as inside
from codl.predict import serialization as store
from codl.predict import training_set as samples
from codl.predict.cross_validation import HeldOut
from codl.predict.estimators import LatencyEstimator
from codl.predict.in_network_cost import InNetworkCosts
from codl.predict.model_set import Predictors
from codl.predict.serialization import StoredPredictor
from codl.predict.training_set import Samples
from codl.predict.training_steps import FOLDS_COST, Step, TrainingTask, beside, steps_of
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
class _TrainingSet:
    """What a dataset has to train on; `notes` say what was left out."""

    usable: Sequence[Samples]
    steps: Sequence[Step]
    notes: Sequence[str]
    failed: int

    @classmethod
    def read(
        cls,
        soc: Soc,
        dataset: Dataset,
        tuning: Tuning,
        predictors: Sequence[str],
        like: Sequence[tuple[Soc, Dataset]],
        tally: _Tally,
        passes: Sequence[int] = (1,),
    ) -> _TrainingSet:
        """`passes` are how many times as long as fitting each takes that will follow."""
        targets, notes = samples.read(dataset)
        notes += [_empty(own, soc) for own in targets if not own.samples]
        notes += _packing(soc, dataset, {own.target for own in targets})
        notes += _tuned_since(soc, dataset, tuning)
        notes += _statistics(dataset)
        usable = [own for own in targets if own.samples]
        steps = steps_of(soc, tuning, usable, predictors)
        if like:
            tally.expect(steps, (2 * FOLDS_COST, *passes))
            steps, told = beside(
                soc, tuning, steps, like, lambda cost: tally.tell(2 * FOLDS_COST * cost)
            )
            notes += told
        else:
            tally.expect(steps, passes)
        failed = sum(own.failed for own in targets if not features.is_mulayer(own.target))
        return cls(usable, steps, notes, failed)


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
    workers: Workers = Workers(),
    budget: Budget | None = None,
    progress: Progress = nobody,
) -> TrainReport:
    """Fit and store every predictor of every target with an ok row; hold out unless told not to.

    Fitting takes as long as it takes; held out is what the budget is enough for, the default
    predictor and the largest targets first. Ctrl-C keeps what was held out before.

    Stored are estimators fitted on all ok rows, in `folder/<soc>/<predictor>.json`. Each predictor
    of each target is fitted and evaluated by one of the `workers`; files and figures are the same
    whoever they are. The predictor `codl` starts from what the SoCs of `like` take, for every
    target that they have and where that makes it better.

    Raises `MismatchError` for a SoC of `like` that has none of the targets, `UnknownNameError` for
    an unknown predictor and `InvalidFileError` for a dataset that is empty or cannot be read. A
    target without any ok row becomes a note.
    """
    start, budget = perf_counter(), budget or Budget()
    predictors = tuple(ESTIMATORS) if predictors is None else predictors
    for name in predictors:
        ESTIMATORS.find(name)
    tally = _Tally(budget, progress)
    held_out_cost = (1 + seeds) * FOLDS_COST
    passes = (1, held_out_cost) if evaluate else (1,)
    found = _TrainingSet.read(soc, dataset, tuning, predictors, like, tally, passes)
    steps = found.steps
    work = _Work(workers, steps, tally)
    fits = zip(steps, work.map(_fit, None), strict=True)
    stored = [step.stored(soc, tuning, own) for step, own in fits]
    around = {name: _inside(soc, dataset, tuning, name, stored) for name in predictors}
    files = _save(stored, folder, around)
    stored_at = perf_counter()
    found_out = work.some(_hold_out, seeds, times=held_out_cost) if evaluate else {}
    looks: list[dict[Split, HeldOut]] = [found_out.get(at, {}) for at in range(len(steps))]
    if found_out:
        stored = [_with_figures(one, look) for one, look in zip(stored, looks, strict=True)]
        files = _save(stored, folder, around)
    done = perf_counter()
    rows = zip(steps, stored, looks, strict=True)
    return TrainReport(
        soc=soc.name,
        predictors=tuple(row for each in rows for row in _rows(soc, tuning, *each)),
        train_s=stored_at - start,
        evaluate_s=done - stored_at,
        seeds=seeds,
        bytes={name: path.stat().st_size for name, path in files.items()},
        failed=found.failed,
        sources=tuple(sorted({source for own in found.usable for source in own.sources})),
        notes=tuple(found.notes),
        files=tuple(files.values()),
        stopped=budget.ended,
        left=len(steps) - len(found_out) if evaluate else 0,
    )


def _with_figures(stored: StoredPredictor, look: Mapping[Split, HeldOut]) -> StoredPredictor:
    return replace(stored, held_out=look["shape"].figures) if look else stored


def fitted(
    soc: Soc,
    dataset: Dataset,
    tuning: Tuning = Tuning(),
    *,
    predictor: str = DEFAULT,
    workers: Workers = Workers(),
) -> Predictors:
    """One predictor of every target with an ok row, as `train` fits it; nothing is stored.

    Raises as `train` does.
    """
    ESTIMATORS.find(predictor)
    tally = _Tally(Budget())
    steps = _TrainingSet.read(soc, dataset, tuning, [predictor], (), tally).steps
    fits = zip(steps, _Work(workers, steps, tally).map(_fit, None), strict=True)
    stored = [step.stored(soc, tuning, own) for step, own in fits]
    by_target = {one.target: one for one in stored}
    own = _inside(soc, dataset, tuning, predictor, stored)
    return Predictors(predictor, soc, dataset.folder, by_target, tuning, own)


def _inside(
    soc: Soc, dataset: Dataset, tuning: Tuning, name: str, stored: Sequence[StoredPredictor]
) -> InNetworkCosts:
    """What a predictor's ops take more inside a network; the papers' predictors know of nothing."""
    if ESTIMATORS[name].is_of_wholes:
        return {}
    by_target = {one.target: one for one in stored if one.predictor == name}
    return inside.fitted(soc, dataset, Predictors(name, soc, dataset.folder, by_target, tuning))


def _save(
    stored: Sequence[StoredPredictor], folder: Path, around: Mapping[str, InNetworkCosts]
) -> dict[str, Path]:
    """Write the file of every predictor; the files by its name."""
    by_name: dict[str, list[StoredPredictor]] = {}
    for one in stored:
        by_name.setdefault(one.predictor, []).append(one)
    return {name: store.save(own, folder, around[name]) for name, own in by_name.items()}


class _Tally:
    """How far all work has come: told are its pieces, and the time left is by what they cost."""

    def __init__(self, budget: Budget, progress: Progress = nobody) -> None:
        self.budget, self._progress = budget, progress
        self._done = self._total = self._spent = self._cost = 0

    def expect(self, steps: Sequence[Step], passes: Sequence[int]) -> None:
        """Each step once in every pass, for so many times its cost."""
        self._total = len(steps) * len(passes)
        self._cost = sum(step.cost for step in steps) * sum(passes)

    def tell(self, cost: int) -> None:
        self._done, self._spent = self._done + 1, self._spent + cost
        self._progress(self._done, self._total, self.budget.to_go_s(self._spent, self._cost))


class _Work:
    """The tasks of all steps, which are worked on in some passes, and how far that has come."""

    def __init__(self, workers: Workers, steps: Sequence[Step], tally: _Tally) -> None:
        self._tasks = [step.task for step in steps]
        self._costs = [step.cost for step in steps]
        #: Those with the most rows are begun first.
        self._order = sorted(range(len(steps)), key=lambda at: steps[at].effort, reverse=True)
        self._workers = workers.at_most(len(steps))
        self._tally = tally

    def map(self, work: Callable[[Any, TrainingTask], R], common: Any) -> list[R]:
        """The work on every step's task, in the order of the steps."""
        done: dict[int, R] = {}
        with closing(self._workers.results(work, common, self._in_order())) as results:
            for place, result in results:
                at = self._order[place]
                done[at] = result
                self._tally.tell(self._costs[at])
        return [done[at] for at in range(len(self._tasks))]

    def some(
        self, work: Callable[[Any, TrainingTask], R], common: Any, *, times: int
    ) -> dict[int, R]:
        """The work on as many steps' tasks as there is time for, by the steps' places.

        Each takes so many times the step's cost.
        """
        done: dict[int, R] = {}
        tasks, budget = self._in_order(), self._tally.budget
        with (
            closing(self._workers.results(work, common, tasks)) as results,
            budget.keeping(tasks),
        ):
            for place, result in budget.steps(results, total=len(tasks)):
                at = self._order[place]
                done[at] = result
                self._tally.tell(times * self._costs[at])
        return done

    def _in_order(self) -> list[TrainingTask]:
        return [self._tasks[at] for at in self._order]


def _fit(_: None, task: TrainingTask) -> LatencyEstimator:
    return task.fitted()


def _hold_out(seeds: int, task: TrainingTask) -> dict[Split, HeldOut]:
    return task.held_out(seeds)


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


def _empty(own: Samples, soc: Soc) -> str:
    return (
        f"{own.target} has no ok row and {own.failed} failed ones: no predictor. "
        f"`codl collect --soc {soc.name}` measures more."
    )


def _packing(soc: Soc, dataset: Dataset, targets: Collection[str]) -> Iterator[str]:
    """What stages rest on and has no row at all, as where a collection ended early."""
    if not dataset.table("stage").path.exists():
        return
    for way in PACKING:
        if (target := features.sharing_target(way)) not in targets:
            yield (
                f"Too few rows of {target} (0 of {store.FEW_ITEMS}): no predictor of it, and "
                "stages with it are left out. "
                f"`codl collect --soc {soc.name} --resume` measures more."
            )


def _rows(
    soc: Soc,
    tuning: Tuning,
    step: Step,
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
    return round(1e6 * level(both) / count, 3), round(1e6 * level(alone) / count, 3)
