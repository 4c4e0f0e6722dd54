"""Active learning: the order of a collection's tasks, and its stopping rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, TypeAlias, TypeVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from codl.errors import CodlError
from codl.ir import Op, Shape
from codl.ir.records.soc import Soc
from codl.kernels.tuning import Tuning
from codl.measure.dataset import Dataset
from codl.measure.measurement_order import Tier
from codl.measure.tasks import OpTask, SharingTask, Task
from codl.predict import ESTIMATORS, features, training_set
from codl.predict.features import Item
from codl.predict.training_set import Samples, TrainingRows, shape_folds

T = TypeVar("T")
Values: TypeAlias = NDArray[np.float64]
#: The evaluated predictor.
ESTIMATOR = "codl"
#: Share of the budget before the first evaluation, and relative growth of time until the next.
FIRST, PAUSE = 0.15, 0.6
#: Largest share of time for evaluations, during which nothing is measured.
LOOKING = 0.08
#: Percent of held-out rows within 10 % and 5 % at which a target is accurate enough.
ENOUGH = {"acc10": 95.0, "acc5": 80.0}
#: A target has converged when a relative `GROWTH` of rows gained less than `GAIN` percentage points
#: of accuracy, `TWICE` in a row, since once is chance.
GROWTH, GAIN, TWICE = 0.3, 1.0, 2
#: Relative growth of rows after which a target is evaluated again.
NEWS = 0.15
#: Fewest tested rows of a meaningful accuracy.
LEAST_ROWS = 30
#: Columns whose logarithms have a smaller spread are constant.
LEAST_SPREAD = 1e-6


def is_random(item: Item) -> bool:
    """Whether an item belongs to the half of items measured in random order.

    Held-out accuracy on this half is unbiased, unlike on items chosen for uncertainty. A hash of
    the item decides, so later runs agree.
    """
    return crc32(features.write(item).encode()) % 2 == 0


def farthest_first(measured: Values, candidates: Values) -> list[int]:
    """Farthest-point sampling: indices of all candidates, far from `measured` first.

    Distances are Euclidean between logarithms of features (items, features), scaled by their
    spread. A taken candidate counts as measured.
    """
    logs = np.log1p(np.abs(np.vstack([measured, candidates])))
    spread = logs.std(0)
    scaled = (logs / np.where(spread > LEAST_SPREAD, spread, np.inf)).astype(np.float64)
    old, new = scaled[: len(measured)], scaled[len(measured) :]
    away = np.full(len(new), np.inf)
    for row in old:
        np.minimum(away, ((new - row) ** 2).sum(1), out=away)
    order, left = [], np.ones(len(new), bool)
    for _ in range(len(new)):
        at = int(np.argmax(np.where(left, away, -1.0)))
        order.append(at)
        left[at] = False
        np.minimum(away, ((new - new[at]) ** 2).sum(1), out=away)
    return order


def in_turns(streams: Iterable[Iterable[T]]) -> Iterator[T]:
    """Round-robin over streams: the first of each, the second of each, and so on."""
    running = [iter(stream) for stream in streams]
    while running:
        still = []
        for stream in running:
            for value in stream:
                yield value
                still.append(stream)
                break
        running = still


@dataclass(frozen=True)
class LearningPoint:
    """Accuracy in percent on held-out shapes; None with too few shapes.

    It covers the `tested` rows of `rows` that are in random order (`is_random`).
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


@dataclass
class ActiveLearner:
    """Active learning of a collection: tasks of targets whose accuracy still grows.

    Every second task comes from a random half, which measures accuracy. The others are those most
    distant from measured items, with targets in turns. Tiers keep their order, and only `Tier.MORE`
    may be left out. All state derives from rows on disk, so a resumed collection needs no other
    memory.
    """

    soc: Soc
    dataset: Dataset
    budget_s: float
    tiers: Mapping[Task, Tier] = field(default_factory=dict)
    curves: dict[str, list[LearningPoint]] = field(default_factory=dict)
    tuning: Tuning = Tuning()
    #: By target, the features of its measured rows.
    _measured: dict[str, Values] = field(default_factory=dict)
    _rank: dict[Task, int] = field(default_factory=dict)
    _next_s: float | None = None

    def choose(self, missing: Sequence[Task], seconds: float) -> Sequence[Task]:
        """Order `missing` by expected information; empty once every target has converged.

        Rows are evaluated only now and then; before the first time the order stays. `seconds` is
        the time since the collection began.
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
        """Cross-validate every target with enough new rows, except context terms."""
        try:
            targets, _ = training_set.read(self.dataset)
        except CodlError:
            return  # there is no row yet
        with threadpool_limits(1, user_api="blas"):
            for samples in filter(_is_learned, targets):
                curve = self.curves.setdefault(samples.target, [])
                if curve and len(samples.samples) < (1 + NEWS) * curve[-1].rows:
                    continue
                values = self._measured[samples.target] = self._features(
                    samples.target, samples.items
                )
                curve.append(_held_out(samples, samples.rows(values)))

    def expected(self) -> dict[str, Any] | None:
        self.look()
        if not self.curves:
            return None
        targets = [asdict(curve[-1]) for _, curve in sorted(self.curves.items())]
        return {"predictor": ESTIMATOR, "targets": targets}

    def _tier(self, task: Task) -> Tier:
        return self.tiers.get(task, Tier.MORE)

    def _has_converged(self, task: Task) -> bool:
        target = _target(task)
        return target is not None and has_converged(self.curves.get(target, []))

    def _ordered(self, missing: Sequence[Task]) -> list[Task]:
        """Chosen and given-order tasks in turns; tasks of converged targets last."""
        growing = [task for task in missing if not self._has_converged(task)]
        chosen: dict[str, list[Task]] = {}
        others: list[Task] = []
        for task in growing:
            target = _target(task)
            if target in self._measured and not is_random(_item(task)):
                chosen.setdefault(target, []).append(task)
            else:
                others.append(task)
        ranked = []
        for target, tasks in chosen.items():
            candidates = self._features(target, [_item(task) for task in tasks])
            ranked.append([tasks[at] for at in farthest_first(self._measured[target], candidates)])
        first = list(in_turns([others, in_turns(ranked)]))
        return first + [task for task in missing if self._has_converged(task)]

    def _features(self, target: str, items: Sequence[Item]) -> Values:
        feature_set = ESTIMATORS[ESTIMATOR].feature_set
        return features.table(feature_set, target, items, self.soc, self.tuning).values


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


def _is_learned(samples: Samples) -> bool:
    """Whether active learning covers a target: parts of ops, and whole exchanges."""
    if features.is_mulayer(samples.target) or samples.target.endswith(features.SHARING_PARTS):
        return False
    return any(isinstance(sample.item, Op | Shape) for sample in samples.samples[:1])


def _target(task: Task) -> str | None:
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


def _held_out(samples: Samples, rows: TrainingRows) -> LearningPoint:
    """Accuracy on held-out shapes, over the rows in random order."""
    folds, count = shape_folds(samples.groups), len(samples.samples)
    tested = np.array([is_random(item) for item in samples.items])
    if not folds or not tested.any():
        return LearningPoint(samples.target, count)
    predicted = np.zeros(count)
    for fold in folds:
        fitted = rows.fit(ESTIMATORS[ESTIMATOR], fold.train)
        predicted[fold.test] = fitted.predict(rows.values[fold.test], runs=rows.runs_at(fold.test))
    error = (np.abs(predicted - rows.latency_ms) / rows.latency_ms)[tested]
    return LearningPoint(
        samples.target,
        count,
        len(error),
        acc10=round(100 * float((error <= 0.10).mean()), 2),
        acc5=round(100 * float((error <= 0.05).mean()), 2),
        mape=round(100 * float(error.mean()), 2),
    )
