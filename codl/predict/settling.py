"""Says when a collection has measured enough, what to measure first, and what to expect of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from codl.collect.tasks import OpTask, SharingTask, Task
from codl.dataset import Dataset
from codl.errors import CodlError
from codl.ops import Op, Shape
from codl.predict import features, samples
from codl.predict.estimators import ESTIMATORS
from codl.predict.held_out import Rows
from codl.predict.regret import Part, Regret, regret
from codl.predict.samples import Samples
from codl.predict.splits import shape_folds
from codl.soc import Soc

#: The predictor whose accuracy is looked at.
ESTIMATOR = "codl"
#: The first look comes after so many seconds, and the next whenever this part of them has passed:
#: a look takes some seconds, in which nothing is measured.
FIRST_S, PAUSE = 60.0, 0.6
#: With this share of rows of shapes never seen within 10 % and within 5 %, a target is done.
ENOUGH = {"acc10": 95.0, "acc5": 80.0}
#: Where so many more rows, in parts of those before, gain less than this, more will not either.
GROWTH, GAIN = 0.3, 1.0
#: A target is looked at again with so many more rows, in parts of those before.
NEWS = 0.15
#: Accuracy on fewer rows is chance.
LEAST_ROWS = 30


@dataclass(frozen=True)
class Look:
    """Accuracy in percent on shapes held out, with so many rows; None with too few shapes."""

    target: str
    rows: int
    acc10: float | None = None
    acc5: float | None = None
    mape: float | None = None

    @property
    def is_enough(self) -> bool:
        known = self.rows >= LEAST_ROWS and self.acc10 is not None and self.acc5 is not None
        return known and self.acc10 >= ENOUGH["acc10"] and self.acc5 >= ENOUGH["acc5"]  # type: ignore[operator]


@dataclass
class Settling:
    """Chooses tasks of targets whose accuracy still grows; none when it grows nowhere.

    Everything comes from rows on disk, so a collection that goes on needs no memory of the last.
    """

    soc: Soc
    dataset: Dataset
    looks: dict[str, list[Look]] = field(default_factory=dict)
    regret: Regret | None = None
    _parts: dict[str, list[Part]] = field(default_factory=dict)
    _next_s: float = FIRST_S

    def choose(self, missing: Sequence[Task], seconds: float) -> Sequence[Task]:
        """`missing` with the settled targets' tasks last; none when all targets have settled.

        Looks at the rows now and then only, and tells nothing before the first look.
        """
        if seconds >= self._next_s:
            self.look()
            self._next_s = seconds * (1 + PAUSE)
        if not self.looks:
            return missing
        open_tasks = [task for task in missing if not self._is_settled(task)]
        if not open_tasks:
            return ()
        chosen = set(open_tasks)
        return [*open_tasks, *(task for task in missing if task not in chosen)]

    def look(self) -> None:
        """Hold out shapes for every target with news, what surrounds ops left out."""
        try:
            found, _ = samples.read(self.dataset)
        except CodlError:
            return  # there is no row yet
        with threadpool_limits(1, user_api="blas"):
            for own in found:
                looks = self.looks.setdefault(own.target, []) if _is_learned(own) else None
                if looks is None or (looks and len(own.samples) < (1 + NEWS) * looks[-1].rows):
                    continue
                look, predicted = _held_out(own, self.soc)
                looks.append(look)
                self._parts[own.target] = _parts(own, predicted)
        self.regret = regret([part for own in self._parts.values() for part in own], self.soc)

    def expected(self) -> dict[str, Any] | None:
        """What the last look found, as JSON; None before the first."""
        if not self.looks:
            return None
        targets = [asdict(looks[-1]) for _, looks in sorted(self.looks.items())]
        found = None if self.regret is None else asdict(self.regret)
        return {"predictor": ESTIMATOR, "targets": targets, "regret": found}

    def _is_settled(self, task: Task) -> bool:
        looks = [self.looks.get(target, []) for target in _targets(task)]
        return bool(looks) and all(_has_settled(own) for own in looks)


def _is_learned(own: Samples) -> bool:
    """Whether the tasks of a target are chosen here: parts of ops, and data sharing."""
    items = [sample.item for sample in own.samples[:1]]
    return not features.is_mulayer(own.target) and any(isinstance(i, Op | Shape) for i in items)


def _has_settled(looks: Sequence[Look]) -> bool:
    """Whether a target is good enough, or gained next to nothing by the last rows."""
    if not looks:
        return False
    last = looks[-1]
    if last.is_enough:
        return True
    before = [x for x in looks if x.rows * (1 + GROWTH) <= last.rows and x.rows >= LEAST_ROWS]
    if not before or last.acc10 is None or before[-1].acc10 is None:
        return False
    return last.acc10 - before[-1].acc10 < GAIN


def _targets(task: Task) -> tuple[str, ...]:
    """What a task's row is learned by; of data sharing the whole, whose parts have targets too."""
    if isinstance(task, OpTask):
        return tuple(name for name in task.tables if not features.is_mulayer(name))
    if isinstance(task, SharingTask):
        return (features.sharing_target(task.direction, task.storage),)
    return ()


def _held_out(own: Samples, soc: Soc) -> tuple[Look, Mapping[int, float]]:
    """Accuracy with whole shapes held out, and the predictions, by the sample's index."""
    estimator = ESTIMATORS[ESTIMATOR]
    folds = shape_folds(own.groups)
    count = len(own.samples)
    if not folds:
        return Look(own.target, count), {}
    table = features.table(estimator.feature_set, own.target, own.items, soc)
    rows = Rows(table.values, own.latency_ms, own.runs, own.groups)
    predicted = np.zeros(count)
    for fold in folds:
        fitted = rows.fit(estimator, fold.train)
        predicted[fold.test] = fitted.predict(rows.values[fold.test], runs=rows.runs_at(fold.test))
    error = np.abs(predicted - rows.latency_ms) / rows.latency_ms
    look = Look(
        own.target,
        count,
        acc10=round(100 * float((error <= 0.10).mean()), 2),
        acc5=round(100 * float((error <= 0.05).mean()), 2),
        mape=round(100 * float(error.mean()), 2),
    )
    return look, dict(enumerate(predicted.tolist()))


def _parts(own: Samples, predicted: Mapping[int, float]) -> list[Part]:
    """What the regret of a split is computed from: parts of ops with both latencies."""
    return [
        Part(op, own.processor, sample.item, sample.latency_ms, predicted[at])
        for at, sample in enumerate(own.samples)
        if at in predicted
        and own.processor is not None
        and isinstance(sample.item, Op)
        and isinstance(op := sample.shapes[0], Op)
    ]
