"""Active learning: what a collection measures next, and when it has measured enough."""

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
from codl.ir import Activation, Op, Shape
from codl.ir.types import Processor
from codl.kernels.tuning import Tuning
from codl.measure.dataset import Dataset
from codl.measure.measurement_order import Tier
from codl.measure.tasks import SHARES, OpTask, SharingTask, Task, part_of
from codl.predict import ESTIMATORS, features, training_set
from codl.predict.cross_validation import TrainingRows, shape_folds
from codl.predict.estimators import LatencyEstimator
from codl.predict.features import Item
from codl.predict.training_set import Samples
from codl.records.soc import Soc

T = TypeVar("T")
Values: TypeAlias = NDArray[np.float64]
#: A part of an op without its activation, on a processor.
Key: TypeAlias = tuple[Processor, Op]
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
#: Columns whose logarithms spread by less are taken for constant.
LEAST_SPREAD = 1e-6


@dataclass(frozen=True)
class MeasuredPart:
    """A part of an op in one kernel variant, its latency and what was predicted for it; in ms."""

    op: Op
    processor: Processor
    part: Op
    latency_ms: float
    predicted_ms: float


@dataclass(frozen=True)
class Regret:
    """Percent over `ops` ops; data sharing is left out, as in the ideal of the paper."""

    ops: int
    mean: float
    p95: float


@dataclass(frozen=True)
class _ShardTimes:
    """A processor's part: predicted and measured latency of the variant chosen, and the best."""

    predicted: float
    chosen: float
    best: float


def regret(parts: Iterable[MeasuredPart], soc: Soc) -> Regret | None:
    """Over all ops with a split that was measured on both sides; None where there is none."""
    shards: dict[Key, list[MeasuredPart]] = {}
    for part in parts:
        shards.setdefault(key_of(part.processor, part.part), []).append(part)
    ops = dict.fromkeys(plain(part.op) for of_shard in shards.values() for part in of_shard)
    times = {key: _shard(of_shard) for key, of_shard in shards.items()}
    regrets = [value for op in ops if (value := _of(op, times, soc)) is not None]
    if not regrets:
        return None
    mean, p95 = 100 * float(np.mean(regrets)), 100 * float(np.percentile(regrets, 95))
    return Regret(len(regrets), round(mean, 2), round(p95, 2))


def plain(op: Op) -> Op:
    """The op without its activation, which makes no other shape."""
    return op.with_activation(Activation())


def key_of(processor: Processor, part: Op) -> Key:
    return processor, plain(part)


def splits(op: Op, soc: Soc) -> list[tuple[Key, ...]]:
    """What is run in every split of an op, one part on each processor; and whole on either one."""
    pairs: list[tuple[Key, ...]] = [(key_of("cpu", op),), (key_of("gpu", op),)]
    for dim in op.dims:
        for share in SHARES[:-1]:
            cpu = part_of(op, "cpu", dim, round(1 - share, 6), soc)
            gpu = part_of(op, "gpu", dim, share, soc)
            if cpu is not None and gpu is not None:
                pairs.append((key_of("cpu", cpu), key_of("gpu", gpu)))
    return pairs


def _shard(parts: Sequence[MeasuredPart]) -> _ShardTimes:
    chosen = min(parts, key=lambda part: part.predicted_ms)
    best = min(part.latency_ms for part in parts)
    return _ShardTimes(chosen.predicted_ms, chosen.latency_ms, best)


def _of(op: Op, shards: Mapping[Key, _ShardTimes], soc: Soc) -> float | None:
    """Latency of the split with the lowest prediction over the lowest latency, less 1."""
    pairs = [
        [shards[key] for key in keys]
        for keys in splits(op, soc)
        if all(key in shards for key in keys)
    ]
    if not any(len(pair) == 2 for pair in pairs):
        return None
    chosen = min(pairs, key=lambda pair: max(shard.predicted for shard in pair))
    best = min(max(shard.best for shard in pair) for pair in pairs)
    return max(shard.chosen for shard in chosen) / best - 1


def is_random(item: Item) -> bool:
    """Whether an item is of the half that is always taken in random order.

    Its accuracy when held out is that of all; that of the rows which were chosen for being
    difficult is not. The item alone decides, so that a later run knows without being told.
    """
    return crc32(features.write(item).encode()) % 2 == 0


def farthest_first(measured: Values, candidates: Values, weights: Values) -> list[int]:
    """Weighted farthest-point sampling: indices of all candidates, far from `measured` first.

    Distances are Euclidean, between the logarithms of features (items, features) in units of their
    spread, times the candidate's weight; a candidate that was taken counts as measured.
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
        at = int(np.argmax(np.where(left, np.sqrt(away) * weights, -1.0)))
        order.append(at)
        left[at] = False
        np.minimum(away, ((new - new[at]) ** 2).sum(1), out=away)
    return order


def in_turns(streams: Iterable[Iterable[T]]) -> Iterator[T]:
    """The first of each, the second of each, and so on; those that are over drop out."""
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
    """What is known of a target: the features of its rows, and the estimator of all of them."""

    values: features.FeatureTable
    fitted: LatencyEstimator


@dataclass
class ActiveLearner:
    """Active learning of a collection: tasks of targets whose accuracy still grows.

    Every second task is the next one of a random half, on which accuracy is looked at. The others
    come from the rest: where a predictor is least certain and nothing alike is measured; the
    targets in turns. All of that within a tier: no task comes before those of the tiers below, and
    none of these is left out. Everything comes from rows on disk, so a collection that goes on
    needs no memory of the last.
    """

    soc: Soc
    dataset: Dataset
    budget_s: float
    tiers: Mapping[Task, Tier] = field(default_factory=dict)
    curves: dict[str, list[LearningPoint]] = field(default_factory=dict)
    regret: Regret | None = None
    tuning: Tuning = Tuning()
    _models: dict[str, _TargetModel] = field(default_factory=dict)
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
            targets, _ = training_set.read(self.dataset)
        except CodlError:
            return  # there is no row yet
        with threadpool_limits(1, user_api="blas"):
            for samples in filter(_is_learned, targets):
                curve = self.curves.setdefault(samples.target, [])
                if curve and len(samples.samples) < (1 + NEWS) * curve[-1].rows:
                    continue
                rows, self._models[samples.target] = _fit(samples, self.soc, self.tuning)
                look, predicted = _held_out(samples, rows)
                curve.append(look)
                self._parts[samples.target] = _parts(samples, predicted)
        self.regret = regret([p for parts in self._parts.values() for p in parts], self.soc)

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
            if target in self._models and not is_random(_item(task)):
                chosen.setdefault(target, []).append(task)
            else:
                others.append(task)
        ranked = [self._by_use(target, tasks) for target, tasks in chosen.items()]
        first = list(in_turns([others, in_turns(ranked)]))
        return first + [task for task in missing if self._has_converged(task)]

    def _table(self, target: str, tasks: Iterable[Task]) -> features.FeatureTable:
        feature_set = ESTIMATORS[ESTIMATOR].feature_set
        return features.table(
            feature_set, target, [_item(task) for task in tasks], self.soc, self.tuning
        )

    def _by_use(self, target: str, tasks: Sequence[Task]) -> list[Task]:
        """Tasks of a target, those first that are uncertain and unlike all others."""
        model, candidates = self._models[target], self._table(target, tasks).values
        low, high = model.fitted.interval(candidates)
        order = farthest_first(model.values.values, candidates, np.log(high / low))
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


def _is_learned(samples: Samples) -> bool:
    """Whether the tasks of a target are chosen here: parts of ops, and data sharing as a whole."""
    if features.is_mulayer(samples.target) or samples.target.endswith(features.SHARING_PARTS):
        return False
    return any(isinstance(sample.item, Op | Shape) for sample in samples.samples[:1])


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


def _fit(samples: Samples, soc: Soc, tuning: Tuning) -> tuple[TrainingRows, _TargetModel]:
    estimator = ESTIMATORS[ESTIMATOR]
    table = features.table(estimator.feature_set, samples.target, samples.items, soc, tuning)
    rows = TrainingRows(table.values, samples.latency_ms, samples.runs, samples.groups)
    return rows, _TargetModel(table, rows.fit(estimator, np.arange(len(samples.samples))))


def _held_out(samples: Samples, rows: TrainingRows) -> tuple[LearningPoint, Mapping[int, float]]:
    """Accuracy with whole shapes held out, and the predictions, by the sample's index."""
    folds, count = shape_folds(samples.groups), len(samples.samples)
    if not folds:
        return LearningPoint(samples.target, count), {}
    predicted = np.zeros(count)
    for fold in folds:
        fitted = rows.fit(ESTIMATORS[ESTIMATOR], fold.train)
        predicted[fold.test] = fitted.predict(rows.values[fold.test], runs=rows.runs_at(fold.test))
    tested = np.array([is_random(item) for item in samples.items])
    error = (np.abs(predicted - rows.latency_ms) / rows.latency_ms)[tested]
    predictions = dict(enumerate(predicted.tolist()))
    if not len(error):
        return LearningPoint(samples.target, count), predictions
    look = LearningPoint(
        samples.target,
        count,
        len(error),
        acc10=round(100 * float((error <= 0.10).mean()), 2),
        acc5=round(100 * float((error <= 0.05).mean()), 2),
        mape=round(100 * float(error.mean()), 2),
    )
    return look, predictions


def _parts(samples: Samples, predicted: Mapping[int, float]) -> list[MeasuredPart]:
    """What the regret of a split is computed from: parts of ops with both latencies."""
    return [
        MeasuredPart(op, samples.processor, sample.item, sample.latency_ms, predicted[at])
        for at, sample in enumerate(samples.samples)
        if at in predicted
        and samples.processor is not None
        and isinstance(sample.item, Op)
        and isinstance(op := sample.shapes[0], Op)
    ]
