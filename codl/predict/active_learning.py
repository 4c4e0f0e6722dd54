"""Active learning: the order of a collection's tasks, and the accuracy that its rows give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, TypeAlias
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
from codl.predict.estimators.numerics import farthest_points
from codl.predict.features import Item
from codl.predict.training_set import Samples, TrainingRows, accuracy, shape_folds

Values: TypeAlias = NDArray[np.float64]
#: The evaluated predictor.
ESTIMATOR = "codl"
#: Share of the budget before tasks are first ordered, and relative growth of time until the next.
FIRST, PAUSE = 0.15, 0.6
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
    order = farthest_points(new, len(new), away)
    return order + sorted(set(range(len(new))) - set(order))  # equal ones last


def in_turns(streams: Iterable[Iterable[Task]]) -> list[Task]:
    """Round-robin over streams: the first of each, the second of each, and so on."""
    return [task for turn in zip_longest(*streams) for task in turn if task is not None]


@dataclass
class ActiveLearner:
    """Active learning of a collection: the order of its tasks.

    Every second task comes from a random half, which measures accuracy. The others are those most
    distant from measured items, with targets in turns. Tiers keep their order. All state derives
    from rows on disk, so a resumed collection needs no other memory.
    """

    soc: Soc
    dataset: Dataset
    budget_s: float
    tiers: Mapping[Task, Tier] = field(default_factory=dict)
    tuning: Tuning = Tuning()
    _rank: dict[Task, int] = field(default_factory=dict)
    _next_s: float | None = None

    def choose(self, missing: Sequence[Task], seconds: float) -> Sequence[Task]:
        """Order `missing` by expected information.

        Tasks are ordered anew only now and then; before the first time the order stays. `seconds`
        is the time since the collection began.
        """
        if seconds >= (FIRST * self.budget_s if self._next_s is None else self._next_s):
            self._rank = {task: at for at, task in enumerate(self._ordered(missing))}
            self._next_s = (1 + PAUSE) * seconds
        if not self._rank:
            return missing
        last = len(self._rank)
        return sorted(
            missing,
            key=lambda task: (self.tiers.get(task, Tier.MORE), self._rank.get(task, last)),
        )

    def expected(self) -> dict[str, Any] | None:
        """The accuracy of each target but context terms on held-out shapes; None without rows.

        It covers the `tested` rows of `rows` that are in random order (`is_random`).
        """
        targets = []
        with threadpool_limits(1, user_api="blas"):
            for samples in sorted(self._samples(), key=lambda samples: samples.target):
                tested = np.array([is_random(item) for item in samples.items])
                folds = shape_folds(samples.groups) if tested.any() else []
                found = accuracy(ESTIMATORS[ESTIMATOR], self._rows(samples), folds, tested)
                targets.append(
                    {
                        "target": samples.target,
                        "rows": len(samples.samples),
                        "tested": found.n_test,
                        "acc10": found.acc10,
                        "acc5": found.acc5,
                        "mape": found.mape,
                    }
                )
        return {"predictor": ESTIMATOR, "targets": targets} if targets else None

    def _samples(self) -> list[Samples]:
        try:
            targets, _ = training_set.read(self.dataset)
        except CodlError:
            return []  # there is no row yet
        return [*filter(_is_learned, targets)]

    def _rows(self, samples: Samples) -> TrainingRows:
        return samples.rows(self._features(samples.target, samples.items))

    def _ordered(self, missing: Sequence[Task]) -> list[Task]:
        """Chosen and given-order tasks in turns."""
        measured = {samples.target: samples for samples in self._samples()}
        chosen: dict[str, list[tuple[Task, Item]]] = {}
        others: list[Task] = []
        for task in missing:
            target, item = _subject(task) or ("", None)
            if item is not None and target in measured and not is_random(item):
                chosen.setdefault(target, []).append((task, item))
            else:
                others.append(task)
        ranked = []
        for target, tasks in chosen.items():
            candidates = self._features(target, [item for _, item in tasks])
            order = farthest_first(self._rows(measured[target]).values, candidates)
            ranked.append([tasks[at][0] for at in order])
        return in_turns([others, in_turns(ranked)])

    def _features(self, target: str, items: Sequence[Item]) -> Values:
        feature_set = ESTIMATORS[ESTIMATOR].feature_set
        return features.table(feature_set, target, items, self.soc, self.tuning).values


def _is_learned(samples: Samples) -> bool:
    """True for the targets that active learning orders: kernels of ops, and whole transfers."""
    if features.is_mulayer(samples.target) or samples.target.endswith(features.SHARING_PARTS):
        return False
    return any(isinstance(sample.item, Op | Shape) for sample in samples.samples[:1])


def _subject(task: Task) -> tuple[str, Item] | None:
    """The target and the item of a task; None for a context term or a stage."""
    if isinstance(task, OpTask):
        return task.tables[0], task.part
    if isinstance(task, SharingTask):
        return features.sharing_target(task.direction, task.storage), task.shape
    return None
