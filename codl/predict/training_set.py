"""Training rows of every target, read from a dataset, and cross-validation on them.

Only rows of status ok become samples. Rows of the same part, or of parts of the same op, form a
group that is held out as a whole; activations do not distinguish shapes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import product
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, InvalidFileError, UnknownNameError, explained
from codl.ir import OP_TYPES, Activation, Op, parse
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.measure.dataset import (
    BatchRow,
    CsvTable,
    Dataset,
    DispatchRow,
    OpRow,
    SharingRow,
    SignalRow,
)
from codl.predict import features
from codl.predict.estimators import LatencyEstimator
from codl.predict.features import Batch, Item, Launches

with explained():
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from sklearn.model_selection import GroupKFold

SEED = 0
TEST_SHARE = 0.3
FOLDS = 5

Indices: TypeAlias = NDArray[np.intp]
Values: TypeAlias = NDArray[np.float64]
#: Slowdown relative to the dataset's first run, by run and processor.
Factors: TypeAlias = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Sample:
    """One ok row: item, shapes that link it to its group, latency, source, measurement run."""

    item: Item
    shapes: tuple[Item, ...]
    latency_ms: float
    source: str
    run: str


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Samples of one target (`processor` None: both), count of `failed` rows, and table `files`."""

    target: str
    processor: Processor | None
    samples: tuple[Sample, ...]
    failed: int
    files: tuple[Path, ...]

    @cached_property
    def items(self) -> list[Item]:
        return [sample.item for sample in self.samples]

    @cached_property
    def latency_ms(self) -> NDArray[np.float64]:
        return np.array([sample.latency_ms for sample in self.samples], np.float64)

    @cached_property
    def runs(self) -> list[str]:
        return [sample.run for sample in self.samples]

    @cached_property
    def groups(self) -> Indices:
        return connected_groups([sample.shapes for sample in self.samples])

    @property
    def sources(self) -> list[str]:
        return sorted({sample.source for sample in self.samples})

    @property
    def tables(self) -> dict[str, str]:
        """The first 8 hex digits of the SHA-256 of each table of the samples, by table name."""
        files = {path.stem.removeprefix("t_"): path for path in self.files}
        return {name: sha256(path.read_bytes()).hexdigest()[:8] for name, path in files.items()}

    def rows(self, values: NDArray[np.float64]) -> TrainingRows:
        return TrainingRows(values, self.latency_ms, self.runs, self.groups)


def read(dataset: Dataset) -> tuple[list[Samples], list[str]]:
    """The samples of every target with a table in the dataset, and notes on omitted tables.

    Raises `InvalidFileError` for a dataset without tables or an unreadable row.
    """
    tables = dataset.tables()
    if not tables:
        fix = f"`codl collect --soc {dataset.folder.name} --serial local` measures one."
        raise InvalidFileError(dataset.folder, "there is no dataset here.", fix=fix)
    kernels, notes, factors = [], [], dataset.calibration()
    for name, table in tables.items():
        if table.row_type is not OpRow:
            continue
        try:
            kernels.append(_of_table(name, table, factors))
        except UnknownNameError as error:
            notes.append(f"{table.path} is left out. {error}")
    everything = [*kernels, *_mulayer(kernels)]
    if "data_sharing" in tables:
        everything += _sharing(dataset.sharing(), factors)
    return everything + _context(dataset), notes


def _of_table(name: str, table: CsvTable[OpRow], factors: Factors) -> Samples:
    """The samples of a kernel variant; raises `UnknownNameError` for an unknown variant.

    Latencies are brought to the first run's machine speed.
    """
    rows = table.read()
    samples = [_sample(table.path, row) for row in rows if row.status == "ok"]
    kinds = {(s.item.kind, s.item.flavor): s.item for s in samples if isinstance(s.item, Op)}
    variants = {features.variant_of(name, op) for op in kinds.values()}
    processor = variants.pop().processor if variants else None
    slower = [factors.get(sample.run, {}).get(processor or "", 1.0) for sample in samples]
    return Samples(
        target=name,
        processor=processor,
        samples=tuple(
            replace(sample, latency_ms=sample.latency_ms / factor)
            for sample, factor in zip(samples, slower, strict=True)
        ),
        failed=len(rows) - len(samples),
        files=(table.path,),
    )


def _sample(path: Path, row: OpRow) -> Sample:
    try:
        part, op = parse(row.part), parse(row.op)
    except CodlError as error:
        raise InvalidFileError(path, str(error), where=f"op {row.op!r}") from error
    shapes = (op.with_activation(Activation()), part.with_activation(Activation()))
    return Sample(part, shapes, row.latency_ms, row.source, row.run)


def _sharing(table: CsvTable[SharingRow], factors: Factors) -> list[Samples]:
    """The samples of each direction and layout: whole exchanges, and each part that takes time."""
    by_target: dict[tuple[str, str], list[SharingRow]] = {}
    for row in table.read():
        known = {"direction": features.DIRECTIONS, "layout": features.STORAGES}
        for name, values in known.items():
            if (value := getattr(row, name)) not in values:
                reason = str(UnknownNameError(name, value, values))
                raise InvalidFileError(table.path, reason, where=f"{row.key}")
        by_target.setdefault((row.direction, row.layout), []).append(row)
    targets = []
    for (direction, layout), rows in by_target.items():
        ok = [row for row in rows if row.status == "ok"]
        parts = features.SHARING_PARTS if direction in ("to_gpu", "to_cpu") else ()
        for part in ("", *parts):
            target = features.sharing_target(direction, features.STORAGES[layout], part)  # type: ignore[arg-type]
            samples = [*_exchanges(table.path, target, part, ok, factors)]
            if part and not samples:
                continue  # replayed tables have whole exchanges alone
            targets.append(
                Samples(
                    target=target,
                    processor=None,
                    samples=tuple(samples),
                    failed=0 if part else len(rows) - len(ok),
                    files=(table.path,),
                )
            )
    return targets


def _exchanges(
    path: Path, target: str, part: str, rows: Sequence[SharingRow], factors: Factors
) -> Iterator[Sample]:
    for row in rows:
        latency_ms = getattr(row, f"{part}_ms") if part else row.latency_ms
        try:
            shape = features.read(target, row.shape)
        except CodlError as error:
            raise InvalidFileError(path, str(error), where=f"{row.key}") from error
        slower = mean(list(factors.get(row.run, {}).values()) or [1.0])
        if latency_ms > 0:
            yield Sample(shape, (shape,), latency_ms / slower, row.source, row.run)


def _context(dataset: Dataset) -> list[Samples]:
    targets = []
    for kind in features.CONTEXT:
        table = dataset.table(kind)
        rows = table.read()
        ok = [row for row in rows if row.status == "ok"]
        by_processor: dict[Processor, list[Sample]] = {}
        for row in ok:
            try:
                processor, item = _context_item(kind, row)
            except CodlError as error:
                raise InvalidFileError(table.path, str(error), where=f"{row.key}") from error
            shapes = (item.op if isinstance(item, Batch) else item,)
            sample = Sample(item, shapes, row.latency_ms, row.source, row.run)
            by_processor.setdefault(processor, []).append(sample)
        targets += [
            Samples(
                target=f"{kind}_{processor}",
                processor=processor,
                samples=tuple(samples),
                failed=len(rows) - len(ok),
                files=(table.path,),
            )
            for processor, samples in by_processor.items()
        ]
    return targets


def _context_item(kind: str, row: DispatchRow | SignalRow | BatchRow) -> tuple[Processor, Item]:
    """The processor and the item of a row of a kind's table."""
    if isinstance(row, DispatchRow):
        return row.processor, Launches(row.count)  # type: ignore[return-value]
    if isinstance(row, SignalRow):
        signal = features.SIGNALS[kind](row.gap_ms)
        return signal.processor, signal
    return row.processor, Batch(parse(row.op), row.single_ms, row.images)  # type: ignore[return-value]


def _mulayer(kernels: Sequence[Samples]) -> list[Samples]:
    """muLayer's samples, by op kind and processor, from each part's preferred measured variant."""
    by_kind: dict[tuple[str, Processor], list[tuple[int, Samples]]] = {}
    for samples in kernels:
        op = next((s.item for s in samples.samples if isinstance(s.item, Op)), None)
        if op is not None and samples.processor is not None:
            rank = registry.known_to(op).index(features.variant_of(samples.target, op))
            by_kind.setdefault((op.kind, samples.processor), []).append((rank, samples))
    found = []
    for kind, processor in product(sorted(OP_TYPES), PROCESSORS):
        ranked = sorted(by_kind.get((kind, processor), []), key=itemgetter(0))
        if not ranked:
            continue
        tables = [samples for _, samples in ranked]
        preferred: dict[Item, int] = {}
        for at, table in enumerate(tables):
            preferred |= {item: at for item in table.items if item not in preferred}
        found.append(
            Samples(
                target=features.mulayer_target(kind, processor),
                processor=processor,
                samples=tuple(
                    sample
                    for at, table in enumerate(tables)
                    for sample in table.samples
                    if preferred[sample.item] == at
                ),
                failed=sum(table.failed for table in tables),
                files=tuple(path for table in tables for path in table.files),
            )
        )
    return found


# Cross-validation.


@dataclass(frozen=True)
class Fold:
    """Disjoint indices of training rows and held-out rows."""

    train: Indices
    test: Indices


def row_folds(rows: int) -> list[Fold]:
    """One fold with a fixed random 70 % of the rows for training; no fold for fewer than 2 rows."""
    if rows < 2:
        return []
    order = np.random.default_rng(SEED).permutation(rows)
    held_out = min(max(1, round(TEST_SHARE * rows)), rows - 1)
    return [Fold(np.sort(order[held_out:]), np.sort(order[:held_out]))]


def shape_folds(groups: Indices) -> list[Fold]:
    """Up to five folds that hold out every group, by number (rows), once; none for one group."""
    values, names = np.unique(groups, return_inverse=True)
    renamed = np.random.default_rng(SEED).permutation(len(values))[names]
    return _group_folds(renamed) if len(values) > 1 else []


def inner_folds(groups: Indices) -> list[Indices]:
    """Held-out rows of each fold: whole groups if there are several, else single rows.

    Folds partition the rows; two rows or more have at least two folds.
    """
    if len(np.unique(groups)) < 2:
        groups = np.arange(len(groups))
    if len(groups) < 2:
        return [np.arange(len(groups))]
    return [fold.test for fold in _group_folds(groups)]


def _group_folds(groups: Indices) -> list[Fold]:
    """Folds of similar size: groups in order of falling size go to the smallest fold."""
    splitter = GroupKFold(min(FOLDS, len(np.unique(groups))))
    return [Fold(train, test) for train, test in splitter.split(groups, groups=groups)]


def connected_groups(labels: Sequence[Iterable[Hashable]]) -> Indices:
    """Group numbers (rows): connected components of the graph of rows and labels.

    Rows are labelled with their op and their part. So neither two ratios of one op, nor one part
    of two ops, are ever on both sides of a split.
    """
    numbers: dict[Hashable, int] = {}
    edges = [
        (row, len(labels) + numbers.setdefault(label, len(numbers)))
        for row, labels_of_row in enumerate(labels)
        for label in labels_of_row
    ]
    size = len(labels) + len(numbers)
    rows, columns = np.array(edges, np.intp).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges), np.int8), (rows, columns)), shape=(size, size))
    _, groups = connected_components(graph, directed=False)
    return np.unique(groups[: len(labels)], return_inverse=True)[1].astype(np.intp)


@dataclass(frozen=True)
class HeldOut:
    """Accuracy in percent on held-out rows; None without folds.

    For predictions in each row's run, `acc10` and `acc5` are the share of errors within 10 % and
    5 %, `mape` the mean absolute percentage error.
    """

    n_train: int
    n_test: int
    acc10: float | None = None
    acc5: float | None = None
    mape: float | None = None

    @property
    def figures(self) -> dict[str, float]:
        """Rounded figures without None."""
        figures = {k: v for k, v in asdict(self).items() if k[:2] != "n_" and v is not None}
        # Finer digits of shares would be single rows.
        return {k: round(v, 1) if k == "mape" else round(v) for k, v in figures.items()}


@dataclass(frozen=True)
class TrainingRows:
    """Training data: features (rows, features), latencies (rows, ms), runs and shape groups."""

    values: Values
    latency_ms: Values
    runs: Sequence[str] | None = None
    groups: NDArray[np.intp] | None = None

    def fit(self, estimator: type[LatencyEstimator], at: NDArray[np.intp]) -> LatencyEstimator:
        groups = None if self.groups is None else self.groups[at]
        return estimator.fit(
            self.values[at], self.latency_ms[at], runs=self.runs_at(at), groups=groups
        )

    def runs_at(self, at: NDArray[np.intp]) -> list[str] | None:
        return None if self.runs is None else [self.runs[i] for i in at]


def accuracy(
    estimator: type[LatencyEstimator],
    rows: TrainingRows,
    folds: Sequence[Fold],
    tested: NDArray[np.bool_] | None = None,
) -> HeldOut:
    """Accuracy on the rows that folds hold out, of the `tested` ones (by default all)."""
    if not folds:
        return HeldOut(n_train=len(rows.latency_ms), n_test=0)
    errors = []
    for fold in folds:
        fitted = rows.fit(estimator, fold.train)
        X, wanted = rows.values[fold.test], rows.latency_ms[fold.test]
        predicted = fitted.predict(X, runs=rows.runs_at(fold.test))
        error = np.abs(predicted - wanted) / wanted
        errors.append(error if tested is None else error[tested[fold.test]])
    error = np.concatenate(errors)
    return HeldOut(
        n_train=min(len(fold.train) for fold in folds),
        n_test=len(error),
        acc10=percent(error <= 0.10),
        acc5=percent(error <= 0.05),
        mape=percent(error),
    )


def percent(values: NDArray[Any]) -> float:
    return round(100 * float(values.mean()), 2)
