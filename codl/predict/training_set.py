"""Training sets: the samples of every target, read from the tables of a dataset.

Only rows with the status ok become samples. Rows that ran the same part, or parts of the same op,
are in one group, which is held out as a whole; an activation makes no other shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from statistics import mean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, InvalidFileError, UnknownNameError
from codl.ir import OP_TYPES, Activation, Op, parse
from codl.ir.types import PROCESSORS, Processor
from codl.kernels import registry
from codl.measure.dataset import CsvTable, Dataset, OpRow, SharingRow
from codl.predict import context_terms, features
from codl.predict.context_terms import Batch
from codl.predict.cross_validation import Indices, TrainingRows, connected_groups
from codl.predict.features import Item

#: How much slower a processor was than in the first run, by run and processor.
Factors: TypeAlias = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Sample:
    """One ok row: what ran, the shapes it must not be separated from, its latency, its source.

    `run` names the measurement run that it is of.
    """

    item: Item
    shapes: tuple[Item, ...]
    latency_ms: float
    source: str
    run: str


@dataclass(frozen=True, kw_only=True)
class Samples:
    """All samples of one target; `processor` is None for data sharing, which takes both.

    `failed` counts the rows left out, `files` are the tables that the samples come from.
    """

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
        """The tables that the samples are of, by the start of their SHA-256."""
        files = {path.stem.removeprefix("t_"): path for path in self.files}
        return {name: sha256(path.read_bytes()).hexdigest()[:8] for name, path in files.items()}

    def rows(self, values: NDArray[np.float64]) -> TrainingRows:
        """What an estimator is fitted to, with some features of the items."""
        return TrainingRows(values, self.latency_ms, self.runs, self.groups)


def read(dataset: Dataset) -> tuple[list[Samples], list[str]]:
    """The samples of every target that the dataset has tables for, and notes on what was left out.

    Raises `InvalidFileError` where there is no table, or with the row that is wrong.
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
    """The samples of a kernel variant; `UnknownNameError` where codl has no such variant."""
    rows = table.read()
    ok = [row for row in rows if row.status == "ok"]
    samples = [_sample(name, table.path, row) for row in ok]
    kinds = {(s.item.kind, s.item.flavor): s.item for s in samples if isinstance(s.item, Op)}
    variants = {features.variant_of(name, op) for op in kinds.values()}
    processor = variants.pop().processor if variants else None
    samples = [
        _calibrated(sample, factors.get(row.run, {}).get(processor or "", 1.0))
        for sample, row in zip(samples, ok, strict=True)
    ]
    return Samples(
        target=name,
        processor=processor,
        samples=tuple(samples),
        failed=len(rows) - len(ok),
        files=(table.path,),
    )


def _calibrated(sample: Sample, factor: float) -> Sample:
    """What the latency would have been in the first run; `factor` is how much slower this one was.

    Runs of other days find the machine in another state, which is not what separates two ops.
    """
    return replace(sample, latency_ms=sample.latency_ms / factor)


def _sample(name: str, path: Path, row: OpRow) -> Sample:
    try:
        part, op = parse(row.part), parse(row.op)
    except CodlError as error:
        raise InvalidFileError(path, str(error), where=f"op {row.op!r}") from error
    shapes = (op.with_activation(Activation()), part.with_activation(Activation()))
    return Sample(part, shapes, row.latency_ms, row.source, row.run)


def _sharing(table: CsvTable[SharingRow], factors: Factors) -> list[Samples]:
    rows, targets = table.read(), []
    for row in rows:
        if row.direction not in features.DIRECTIONS:
            reason = str(UnknownNameError("direction", row.direction, features.DIRECTIONS))
            raise InvalidFileError(table.path, reason, where=f"{row.key}")
        if row.layout not in features.STORAGES:
            reason = str(UnknownNameError("layout", row.layout, features.STORAGES))
            raise InvalidFileError(table.path, reason, where=f"{row.key}")
    for direction, layout in dict.fromkeys((row.direction, row.layout) for row in rows):
        rows_of_layout = [row for row in rows if (row.direction, row.layout) == (direction, layout)]
        targets += _of_direction(table.path, rows_of_layout, factors)
    return targets


def _of_direction(path: Path, rows: Sequence[SharingRow], factors: Factors) -> list[Samples]:
    """The samples of one direction and layout: of the whole, and of each part that takes time."""
    ok = [row for row in rows if row.status == "ok"]
    direction, storage = rows[0].direction, features.STORAGES[rows[0].layout]
    parts = features.SHARING_PARTS if direction in ("to_gpu", "to_cpu") else ()
    targets = []
    for part in ("", *parts):
        target = features.sharing_target(direction, storage, part)  # type: ignore[arg-type]
        samples = []
        for row in ok:
            latency_ms = getattr(row, f"{part}_ms") if part else row.latency_ms
            try:
                shape = features.read(target, row.shape)
            except CodlError as error:
                raise InvalidFileError(path, str(error), where=f"{row.key}") from error
            both = list(factors.get(row.run, {}).values()) or [1.0]
            if latency_ms > 0:
                sample = Sample(shape, (shape,), latency_ms, row.source, row.run)
                samples.append(_calibrated(sample, mean(both)))
        if part and not samples:
            continue  # replayed tables have wholes alone
        failed = len(rows) - len(ok)
        targets.append(
            Samples(
                target=target,
                processor=None,
                samples=tuple(samples),
                failed=0 if part else failed,
                files=(path,),
            )
        )
    return targets


def _context(dataset: Dataset) -> list[Samples]:
    """The samples of launches, signals and batches on each processor."""
    targets = []
    for kind in context_terms.KINDS:
        table = dataset.table(kind)
        rows = table.read()
        ok = [row for row in rows if row.status == "ok"]
        by_processor: dict[Processor, list[Sample]] = {}
        for row in ok:
            try:
                processor, item = context_terms.item_of(kind, row)
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


def _mulayer(kernels: Sequence[Samples]) -> list[Samples]:
    """muLayer's samples: for every part, those of the variant that codl prefers for it.

    muLayer knows an op kind and a processor but no variants, so its predictor learns what the
    default variant costs; where that one was not measured, the next in order of preference.
    """
    return [
        Samples(
            target=features.mulayer_target(kind, processor),
            processor=processor,
            samples=tuple(_preferred(tables)),
            failed=sum(table.failed for table in tables),
            files=tuple(path for table in tables for path in table.files),
        )
        for kind in sorted(OP_TYPES)
        for processor in PROCESSORS
        if (tables := _by_preference(kernels, kind, processor))
    ]


def _by_preference(kernels: Sequence[Samples], kind: str, processor: Processor) -> list[Samples]:
    """The sets of samples of an op kind and a processor, the preferred variant's first."""
    ranks = {}
    for samples in kernels:
        op = next((s.item for s in samples.samples if isinstance(s.item, Op)), None)
        if op is not None and op.kind == kind and samples.processor == processor:
            ranks[samples.target] = registry.known_to(op).index(
                features.variant_of(samples.target, op)
            )
    return sorted((s for s in kernels if s.target in ranks), key=lambda s: ranks[s.target])


def _preferred(tables: Iterable[Samples]) -> list[Sample]:
    taken: set[Item] = set()
    chosen: list[Sample] = []
    for table in tables:
        chosen += [sample for sample in table.samples if sample.item not in taken]
        taken.update(table.items)
    return chosen
