"""Training rows of every target, read from a dataset, and cross-validation on them.

Only rows of status ok become samples. Rows of the same part, or of parts of the same op, form a
group that is held out as a whole; activations do not distinguish shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, InvalidFileError, UnknownNameError, explained
from codl.ir import Activation, Op, parse
from codl.ir.types import Processor
from codl.kernels import registry
from codl.measure.dataset import (
    CsvTable,
    Dataset,
    DispatchRow,
    OpRow,
    SharingRow,
    WaitRow,
)
from codl.predict import features
from codl.predict.estimators import LatencyEstimator
from codl.predict.features import EventWait, Item, Launches

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
#: What a row has measured: target, processor, item, the shapes that link it to its group, latency.
Reading: TypeAlias = tuple[str, Processor | None, Item, tuple[Item, ...], float]


@dataclass(frozen=True)
class Sample:
    """One ok row: item, shapes that link it to its group, latency, source, measurement run."""

    item: Item
    shapes: tuple[Item, ...]
    latency_ms: float
    source: str
    run: str


@dataclass(frozen=True)
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
    kernels, notes, factors = list[Samples](), [], dataset.calibration()
    for name, table in tables.items():
        if table.row_type is OpRow:
            try:
                kernels += [
                    _of_variant(each, factors) for each in _samples(table, partial(_op, name))
                ]
            except UnknownNameError as error:
                notes.append(f"{table.path} is left out. {error}")
    everything = [*kernels, *_mulayer(kernels)]
    if "data_sharing" in tables:
        everything += _samples(dataset.table("data_sharing"), partial(_exchange, factors))
    for kind in features.CONTEXT:
        everything += _samples(dataset.table(kind), partial(_context, kind))
    return everything, notes


def _samples(table: CsvTable[Any], read: Callable[[Any], Iterable[Reading]]) -> list[Samples]:
    """The samples of a table by target; parts of exchanges without any are left out.

    Replayed tables have whole exchanges alone. Raises `InvalidFileError` for an unreadable row.
    """
    by_target: dict[tuple[str, Processor | None], list[Sample]] = {}
    failed: Counter[str] = Counter()
    for row in table.read():
        try:
            found = list(read(row))
        except CodlError as error:
            raise InvalidFileError(table.path, str(error), where=f"{row.key}") from error
        for target, processor, item, shapes, latency_ms in found:
            samples = by_target.setdefault((target, processor), [])
            if row.status != "ok":
                failed[target] += features.whole_of(target) is None
            elif latency_ms > 0:
                samples.append(Sample(item, shapes, latency_ms, row.source, row.run))
    return [
        Samples(target, processor, tuple(samples), failed[target], (table.path,))
        for (target, processor), samples in by_target.items()
        if samples or features.whole_of(target) is None
    ]


def _op(target: str, row: OpRow) -> Iterator[Reading]:
    if row.status != "ok":  # its op may be of another codl
        yield target, None, Launches(0), (), 0.0
        return
    part, op = parse(row.part), parse(row.op)
    shapes = (op.with_activation(Activation()), part.with_activation(Activation()))
    yield target, None, part, shapes, row.latency_ms


def _of_variant(samples: Samples, factors: Factors) -> Samples:
    """A kernel variant's samples with its processor, at the speed of the machine's first run.

    Raises `UnknownNameError` for an unknown variant.
    """
    ops = {(op.kind, op.flavor): op for op in samples.items if isinstance(op, Op)}
    variants = {features.variant_of(samples.target, op) for op in ops.values()}
    processor = variants.pop().processor if variants else None
    return replace(
        samples,
        processor=processor,
        samples=tuple(
            replace(each, latency_ms=each.latency_ms / slower.get(processor or "", 1.0))
            for each in samples.samples
            for slower in (factors.get(each.run, {}),)
        ),
    )


def _exchange(factors: Factors, row: SharingRow) -> Iterator[Reading]:
    """A whole exchange, and each of its parts."""
    known = {"direction": features.DIRECTIONS, "layout": features.STORAGES}
    for name, values in known.items():
        if (value := getattr(row, name)) not in values:
            raise UnknownNameError(name, value, values)
    slower = mean(list(factors.get(row.run, {}).values()) or [1.0])
    parts = features.SHARING_PARTS if row.direction in ("to_gpu", "to_cpu") else ()
    for part in ("", *parts):
        target = features.sharing_target(row.direction, features.STORAGES[row.layout], part)  # type: ignore[arg-type]
        shape = features.read(target, row.shape)
        yield target, None, shape, (shape,), getattr(row, f"{part or 'latency'}_ms") / slower


def _context(kind: str, row: DispatchRow | WaitRow) -> Iterator[Reading]:
    if isinstance(row, DispatchRow):
        item: Any = Launches(row.count)
        processor: Any = row.processor
    else:
        item = EventWait(row.gap_ms)
        processor = item.processor
    yield f"{kind}_{processor}", processor, item, (item,), row.latency_ms


def _mulayer(kernels: Sequence[Samples]) -> list[Samples]:
    """muLayer's samples, by op kind and processor, from each part's preferred measured variant."""
    by_kind: dict[tuple[str, Processor], list[tuple[int, Samples]]] = {}
    for samples in kernels:
        op = next((item for item in samples.items if isinstance(item, Op)), None)
        if op is not None and samples.processor is not None:
            rank = registry.known_to(op).index(features.variant_of(samples.target, op))
            by_kind.setdefault((op.kind, samples.processor), []).append((rank, samples))
    found = []
    for (kind, processor), ranked in sorted(by_kind.items(), key=itemgetter(0)):
        tables = [samples for _, samples in sorted(ranked, key=itemgetter(0))]
        preferred: dict[Item, Samples] = {}
        for table in tables:
            preferred = dict.fromkeys(table.items, table) | preferred
        found.append(
            Samples(
                features.mulayer_target(kind, processor),
                processor,
                samples=tuple(s for t in tables for s in t.samples if preferred[s.item] is t),
                failed=sum(table.failed for table in tables),
                files=tuple(path for table in tables for path in table.files),
            )
        )
    return found


# Cross-validation.


class Fold(NamedTuple):
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
    return [Fold(*fold) for fold in splitter.split(groups, groups=groups)]


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
    runs: Sequence[str]
    groups: Indices

    def fit(self, estimator: type[LatencyEstimator], at: Indices) -> LatencyEstimator:
        X, y = self.values[at], self.latency_ms[at]
        return estimator.fit(X, y, runs=self.runs_at(at), groups=self.groups[at])

    def runs_at(self, at: Indices) -> list[str]:
        return [self.runs[i] for i in at]


def accuracy(
    estimator: type[LatencyEstimator], rows: TrainingRows, folds: Sequence[Fold]
) -> HeldOut:
    """Accuracy on the rows that folds hold out."""
    if not folds:
        return HeldOut(n_train=len(rows.latency_ms), n_test=0)
    errors = []
    for fold in folds:
        fitted = rows.fit(estimator, fold.train)
        X, wanted = rows.values[fold.test], rows.latency_ms[fold.test]
        predicted = fitted.predict(X, runs=rows.runs_at(fold.test))
        errors.append(np.abs(predicted - wanted) / wanted)
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
