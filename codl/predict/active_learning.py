"""Active learning: what a collection measures next, and when it has measured enough."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from codl.errors import CodlError
from codl.ir import Op, Shape
from codl.kernels.tuning import Tuning
from codl.measure.dataset import Dataset
from codl.measure.measurement_order import Tier
from codl.measure.tasks import OpTask, SharingTask, Task
from codl.predict import ESTIMATORS, features
from codl.predict import training_set as samples
from codl.predict.acquisition import (
    CONTESTED,
    Bounds,
    contested,
    farthest_first,
    in_turns,
    is_random,
)
from codl.predict.cross_validation import TrainingRows
from codl.predict.estimators import (
    LatencyEstimator,
)
from codl.predict.features import Item
from codl.predict.folds import shape_folds
from codl.predict.regret import Key, MeasuredPart, Regret, key_of, plain, regret
from codl.predict.training_set import Samples
from codl.records.soc import Soc

#: The predictor whose accuracy is looked at.
ESTIMATOR = "codl"
#: The first look comes after this part of the budget, the next when this part more time has passed.
FIRST, PAUSE = 0.15, 0.6
#: Looks take some seconds, in which nothing is measured; no more than this part of the time.
LOOKING = 0.08
#: With this share of rows of shapes never seen within 10 % and within 5 %, a target is done.
ENOUGH = {"acc10": 95.0, "acc5": 80.0}
#: A target has converged where `GROWTH` more rows (a share of those before) gained less than `GAIN`
#: percent, `TWICE` in a row: once is chance.
GROWTH, GAIN, TWICE = 0.3, 1.0, 2
#: A target is evaluated again after this share of more rows.
NEWS = 0.15
#: Accuracy on fewer rows is chance.
LEAST_ROWS = 30


@dataclass(frozen=True)
class LearningPoint:
    """Accuracy in percent on shapes held out; None with too few shapes.

    Of all `rows`, in so far as they were in random order: `tested` of them.
    """

    target: str
    rows: int
    tested: int = 0
    acc10: float | None = None
    acc5: float | None = None
    mape: float | None = None

    @property
    def is_enough(self) -> bool:
        if self.acc10 is None or self.acc5 is None or self.tested < LEAST_ROWS:
            return False
        return self.acc10 >= ENOUGH["acc10"] and self.acc5 >= ENOUGH["acc5"]


@dataclass(frozen=True)
class _TargetModel:
    """What is known of a target: its rows, their features, and the estimator of all of them."""

    own: Samples
    values: features.FeatureTable
    fitted: LatencyEstimator


@dataclass
class ActiveLearner:
    """Active learning of a collection: tasks of targets whose accuracy still grows.

    Every second task is the next one of a random half, on which accuracy is looked at. The others
    come from the rest: where a predictor is least certain and nothing alike is measured, more so
    where the choice of a split hangs on it; the targets in turns. All of that within a tier: no
    task comes before those of the tiers below, and none of these is left out. Everything comes
    from rows on disk, so a collection that goes on needs no memory of the last.
    """

    soc: Soc
    dataset: Dataset
    budget_s: float
    tiers: Mapping[Task, Tier] = field(default_factory=dict)
    curves: dict[str, list[LearningPoint]] = field(default_factory=dict)
    regret: Regret | None = None
    tuning: Tuning = Tuning()
    _known: dict[str, _TargetModel] = field(default_factory=dict)
    _parts: dict[str, list[MeasuredPart]] = field(default_factory=dict)
    _rank: dict[Task, int] = field(default_factory=dict)
    _next_s: float | None = None

    def choose(self, missing: Sequence[Task], seconds: float) -> Sequence[Task]:
        """Order `missing` by expected information; empty once every target has converged.

        Looks at the rows now and then only, and changes nothing before the first look.
        """
        if seconds >= (FIRST * self.budget_s if self._next_s is None else self._next_s):
            start = perf_counter()
            self.look()
            self._rank = {task: at for at, task in enumerate(self._ordered(missing))}
            took = perf_counter() - start
            self._next_s = seconds + max(PAUSE * seconds, took / LOOKING)
        if not self.curves:
            return missing
        if all(self._tier(task) is Tier.MORE and self._has_converged(task) for task in missing):
            return ()
        last = len(self._rank)
        return sorted(missing, key=lambda task: (self._tier(task), self._rank.get(task, last)))

    def look(self) -> None:
        """Fit every target with new rows and hold its shapes out; context terms are left out."""
        try:
            targets, _ = samples.read(self.dataset)
        except CodlError:
            return  # there is no row yet
        with threadpool_limits(1, user_api="blas"):
            for own in targets:
                curve = self.curves.setdefault(own.target, []) if _is_learned(own) else None
                if curve is None or (curve and len(own.samples) < (1 + NEWS) * curve[-1].rows):
                    continue
                rows, known = _fit(own, self.soc, self.tuning)
                look, predicted = _held_out(own, rows)
                curve.append(look)
                self._known[own.target] = known
                self._parts[own.target] = _parts(own, predicted)
        self.regret = regret([part for own in self._parts.values() for part in own], self.soc)

    def expected(self) -> dict[str, Any] | None:
        """What the rows are good for, as JSON; None where there are none. Looks once more."""
        self.look()
        if not self.curves:
            return None
        targets = [asdict(curve[-1]) for _, curve in sorted(self.curves.items())]
        regret_json = None if self.regret is None else asdict(self.regret)
        return {"predictor": ESTIMATOR, "targets": targets, "regret": regret_json}

    def _tier(self, task: Task) -> Tier:
        return self.tiers.get(task, Tier.MORE)

    def _has_converged(self, task: Task) -> bool:
        target = _target(task)
        return target is not None and has_converged(self.curves.get(target, []))

    def _ordered(self, missing: Sequence[Task]) -> list[Task]:
        """Those of converged targets last; of the others every second one in the order given."""
        growing = [task for task in missing if not self._has_converged(task)]
        chosen: dict[str, list[Task]] = {}
        others: list[Task] = []
        for task in growing:
            target = _target(task)
            if target in self._known and not is_random(_item(task)):
                chosen.setdefault(target, []).append(task)
            else:
                others.append(task)
        bounds = {target: self._bounds(target, tasks) for target, tasks in chosen.items()}
        open_parts = self._contested(chosen, bounds)
        ranked = [
            self._by_use(target, tasks, bounds[target], open_parts)
            for target, tasks in chosen.items()
        ]
        first = list(in_turns([others, in_turns(ranked)]))
        return first + [task for task in missing if self._has_converged(task)]

    def _table(self, target: str, tasks: Iterable[Task]) -> features.FeatureTable:
        feature_set = ESTIMATORS[ESTIMATOR].feature_set
        return features.table(
            feature_set, target, [_item(task) for task in tasks], self.soc, self.tuning
        )

    def _bounds(self, target: str, tasks: Sequence[Task]) -> list[Bounds]:
        values = self._table(target, tasks).values
        low, high = self._known[target].fitted.interval(values)
        return [Bounds(*pair) for pair in zip(low.tolist(), high.tolist(), strict=True)]

    def _contested(
        self, chosen: Mapping[str, Sequence[Task]], bounds: Mapping[str, Sequence[Bounds]]
    ) -> Mapping[Key, float]:
        """The parts that a split may need, by what is measured and what is predicted."""
        known: dict[Key, list[Bounds]] = {}
        ops: dict[Op, None] = {}
        for parts in self._parts.values():
            for part in parts:
                exact = Bounds(part.latency_ms, part.latency_ms)
                known.setdefault(key_of(part.processor, part.part), []).append(exact)
                ops[plain(part.op)] = None
        for target, tasks in chosen.items():
            for task, bound in zip(tasks, bounds[target], strict=True):
                if isinstance(task, OpTask):
                    known.setdefault(key_of(task.processor, task.part), []).append(bound)
                    ops[plain(task.op)] = None
        return contested(ops, known, self.soc)

    def _by_use(
        self,
        target: str,
        tasks: Sequence[Task],
        bounds: Sequence[Bounds],
        open_parts: Mapping[Key, float],
    ) -> list[Task]:
        """Tasks of a target, those first that are uncertain, unlike all others, and contested."""
        weights = np.array([np.log(bound.high / bound.low) for bound in bounds])
        for at, (task, bound) in enumerate(zip(tasks, bounds, strict=True)):
            if isinstance(task, OpTask):
                limit = open_parts.get(key_of(task.processor, task.part), 0.0)
                weights[at] *= CONTESTED if bound.low <= limit else 1.0
        measured = self._known[target].values.values
        order = farthest_first(measured, self._table(target, tasks).values, weights)
        return [tasks[at] for at in order]


def has_converged(curve: Sequence[LearningPoint]) -> bool:
    """Stopping rule: a target is accurate enough, or its learning curve is flat, twice in a row."""
    if curve and curve[-1].is_enough:
        return True
    steps: list[LearningPoint] = []
    for look in reversed([look for look in curve if look.tested >= LEAST_ROWS]):
        if not steps or look.rows * (1 + GROWTH) <= steps[-1].rows:
            steps.append(look)
    gains = [
        later.acc10 - before.acc10
        for later, before in pairwise(steps)
        if later.acc10 is not None and before.acc10 is not None
    ]
    return len(gains) >= TWICE and max(gains[:TWICE]) < GAIN


def _is_learned(own: Samples) -> bool:
    """Whether the tasks of a target are chosen here: parts of ops, and data sharing as a whole."""
    if features.is_mulayer(own.target) or own.target.endswith(features.SHARING_PARTS):
        return False
    return any(isinstance(sample.item, Op | Shape) for sample in own.samples[:1])


def _target(task: Task) -> str | None:
    """What a task's row is learned by; None for what surrounds an op."""
    if isinstance(task, OpTask):
        return task.tables[0]
    if isinstance(task, SharingTask):
        return features.sharing_target(task.direction, task.storage)
    return None


def _item(task: Task) -> Item:
    if isinstance(task, OpTask):
        return task.part
    assert isinstance(task, SharingTask)
    return task.shape


def _fit(own: Samples, soc: Soc, tuning: Tuning) -> tuple[TrainingRows, _TargetModel]:
    estimator = ESTIMATORS[ESTIMATOR]
    table = features.table(estimator.feature_set, own.target, own.items, soc, tuning)
    rows = TrainingRows(table.values, own.latency_ms, own.runs, own.groups)
    return rows, _TargetModel(own, table, rows.fit(estimator, np.arange(len(own.samples))))


def _held_out(own: Samples, rows: TrainingRows) -> tuple[LearningPoint, Mapping[int, float]]:
    """Accuracy with whole shapes held out, and the predictions, by the sample's index."""
    folds, count = shape_folds(own.groups), len(own.samples)
    if not folds:
        return LearningPoint(own.target, count), {}
    predicted = np.zeros(count)
    for fold in folds:
        fitted = rows.fit(ESTIMATORS[ESTIMATOR], fold.train)
        predicted[fold.test] = fitted.predict(rows.values[fold.test], runs=rows.runs_at(fold.test))
    tested = np.array([is_random(item) for item in own.items])
    error = (np.abs(predicted - rows.latency_ms) / rows.latency_ms)[tested]
    predictions = dict(enumerate(predicted.tolist()))
    if not len(error):
        return LearningPoint(own.target, count), predictions
    look = LearningPoint(
        own.target,
        count,
        len(error),
        acc10=round(100 * float((error <= 0.10).mean()), 2),
        acc5=round(100 * float((error <= 0.05).mean()), 2),
        mape=round(100 * float(error.mean()), 2),
    )
    return look, predictions


def _parts(own: Samples, predicted: Mapping[int, float]) -> list[MeasuredPart]:
    """What the regret of a split is computed from: parts of ops with both latencies."""
    return [
        MeasuredPart(op, own.processor, sample.item, sample.latency_ms, predicted[at])
        for at, sample in enumerate(own.samples)
        if at in predicted
        and own.processor is not None
        and isinstance(sample.item, Op)
        and isinstance(op := sample.shapes[0], Op)
    ]
