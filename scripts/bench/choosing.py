"""Replays a dataset in the order of `codl collect --budget` and in random order, and compares.

    python scripts/bench/choosing.py --soc host [--folder lat_datasets] [--seeds 0,1,2,3]

A quarter of the ops and shared shapes is held out for good. Of the others, rows are taken in
batches, as a collection would write them; after some shares of them a predictor is trained on what
there is: its accuracy on the rows held out, the mean over all targets, and the regret of the splits
that it chooses for the ops held out and for the others. All latencies are the dataset's: nothing is
measured.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from codl.errors import CodlError
from codl.ir import Op, Shape, parse
from codl.kernels import registry
from codl.measure.dataset import Dataset, OpRow, Row, SharingRow
from codl.measure.tasks import OpTask, SharingTask, Task
from codl.predict import ESTIMATORS, features
from codl.predict import training_set as samples
from codl.predict.active_learning import ESTIMATOR, ActiveLearner, MeasuredPart, plain, regret
from codl.predict.cross_validation import connected_groups
from codl.predict.training_set import Samples
from codl.records import soc as socs
from codl.records.soc import Soc

HELD_OUT = 0.25
SHARES = (0.15, 0.25, 0.35, 0.5, 0.75, 1.0)
BATCH = 100
BUDGET_S = 600.0

Rows = Mapping[Task, Row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--soc", required=True)
    parser.add_argument("--folder", type=Path, default=Path("lat_datasets"))
    parser.add_argument("--seeds", default="0,1,2,3", help="each holds out others")
    options = parser.parse_args()
    soc = socs.load(options.soc)
    rows = dict(read(Dataset.of(soc.name, options.folder)))
    found: dict[tuple[str, float], list[tuple[float, ...]]] = {}
    seeds = [int(seed) for seed in options.seeds.split(",")]
    for seed in seeds:
        pool, held_out = parted(rows, seed)
        for name in ("random", "chosen"):
            for share, scores in replayed(soc, rows, pool, held_out, name):
                found.setdefault((name, share), []).append(scores)
    print(f"{len(rows)} rows of {soc.name}, {len(seeds)} seeds; percent")
    print(f"{'order':8} {'rows':>5} {'acc10':>6} {'acc5':>6} {'regret: unseen':>15} {'others':>7}")
    for (name, share), scores in sorted(found.items(), key=lambda item: (item[0][1], item[0][0])):
        acc10, acc5, unseen, others = np.nanmean(scores, axis=0)
        print(f"{name:8} {share:5.0%} {acc10:6.1f} {acc5:6.1f} {unseen:15.2f} {others:7.2f}")


def read(dataset: Dataset) -> Iterator[tuple[Task, Row]]:
    """The tasks that the ok rows of kernel variants and of data sharing were measured for."""
    for name, table in dataset.tables().items():
        for row in table.read():
            if row.status != "ok":
                continue
            if isinstance(row, OpRow):
                op, part = parse(row.op), parse(row.part)
                variant = next(v for v in registry.known_to(part) if registry.target(v, op) == name)
                names = (name,)
                yield (
                    OpTask(names, variant.name, variant.processor, op, row.dim, row.share, part),
                    row,
                )
            elif isinstance(row, SharingRow):
                shape = Shape(*map(int, row.shape.split("x")))
                yield SharingTask(row.direction, shape, features.STORAGES[row.layout]), row


def parted(rows: Rows, seed: int) -> tuple[list[Task], set[Task]]:
    """The tasks to choose from in random order, and those of the shapes that are held out."""
    tasks = list(rows)
    groups = connected_groups([_labels(task) for task in tasks])
    dice = random.Random(seed)
    numbers = sorted(set(groups.tolist()))
    away = set(dice.sample(numbers, round(HELD_OUT * len(numbers))))
    held_out = {task for task, group in zip(tasks, groups, strict=True) if group in away}
    pool = [task for task in tasks if task not in held_out]
    dice.shuffle(pool)
    return pool, held_out


def _labels(task: Task) -> tuple[Op | Shape, ...]:
    if isinstance(task, OpTask):
        return plain(task.op), plain(task.part)
    assert isinstance(task, SharingTask)
    return (task.shape,)


def replayed(
    soc: Soc, rows: Rows, pool: Sequence[Task], held_out: set[Task], order: str
) -> Iterator[tuple[float, tuple[float, ...]]]:
    """Scores after every share of the rows."""
    test = _samples(rows, held_out)
    everything = _samples(rows, rows)
    with tempfile.TemporaryDirectory() as folder:
        dataset = Dataset.of(soc.name, Path(folder))
        chooser = ActiveLearner(soc, dataset, BUDGET_S)
        missing, total = list(pool), len(pool)
        for share in SHARES:
            while len(missing) > (1 - share) * total:
                seconds = BUDGET_S * (total - len(missing)) / total
                wanted = missing if order == "random" else chooser.choose(missing, seconds)
                count = min(BATCH, len(missing) - int((1 - share) * total))
                batch = list(wanted or missing)[:count]
                _write(dataset, rows, batch)
                taken = set(batch)
                missing = [task for task in missing if task not in taken]
            yield share, scored(soc, samples.read(dataset)[0], test, everything, held_out)


def _write(dataset: Dataset, rows: Rows, tasks: Sequence[Task]) -> None:
    new: dict[str, list[Row]] = {}
    for task in tasks:
        new.setdefault(task.tables[0], []).append(rows[task])
    for name, own in new.items():
        dataset.table(name).append(*own)


def _samples(rows: Rows, tasks: set[Task] | Rows) -> dict[str, Samples]:
    """As training reads them."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = Dataset.of("some", Path(folder))
        _write(dataset, rows, [task for task in rows if task in tasks])
        return {own.target: own for own in samples.read(dataset)[0]}


def scored(
    soc: Soc,
    measured: Sequence[Samples],
    test: Mapping[str, Samples],
    everything: Mapping[str, Samples],
    held_out: set[Task],
) -> tuple[float, float, float, float]:
    """Mean accuracy (10 %, 5 %) on what is held out, and mean regret there and on the others."""
    estimator = ESTIMATORS[ESTIMATOR]
    accuracies, parts = [], []
    unseen = {plain(task.op) for task in held_out if isinstance(task, OpTask)}
    for own in measured:
        if own.target not in test or features.is_mulayer(own.target) or len(own.samples) < 2:
            continue
        table = features.table(estimator.feature_set, own.target, own.items, soc)
        with threadpool_limits(1):
            fitted = estimator.fit(table.values, own.latency_ms, groups=own.groups)
        error = _errors(fitted, test[own.target], soc)
        if not own.target.endswith(features.SHARING_PARTS):
            accuracies.append((np.mean(error <= 0.1), np.mean(error <= 0.05)))
        if own.processor is not None:
            parts += _parts(fitted, everything[own.target], soc)
    mean = 100 * np.mean(accuracies, axis=0)
    regrets = [
        regret([part for part in parts if (plain(part.op) in unseen) is is_unseen], soc)
        for is_unseen in (True, False)
    ]
    values = [float("nan") if found is None else found.mean for found in regrets]
    return float(mean[0]), float(mean[1]), values[0], values[1]


def _errors(fitted, own: Samples, soc: Soc):  # type: ignore[no-untyped-def]
    table = features.table(fitted.feature_set, own.target, own.items, soc)
    return np.abs(fitted.predict(table.values) - own.latency_ms) / own.latency_ms


def _parts(fitted, own: Samples, soc: Soc) -> list[MeasuredPart]:  # type: ignore[no-untyped-def]
    table = features.table(fitted.feature_set, own.target, own.items, soc)
    predicted = fitted.predict(table.values)
    return [
        MeasuredPart(sample.shapes[0], own.processor, sample.item, sample.latency_ms, float(ms))  # type: ignore[arg-type]
        for sample, ms in zip(own.samples, predicted, strict=True)
    ]


if __name__ == "__main__":
    try:
        main()
    except CodlError as error:
        raise SystemExit(f"error: {error}") from error
