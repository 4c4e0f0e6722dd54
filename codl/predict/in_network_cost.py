"""In-network cost: what ops take in a network beyond what they take alone, fitted to stages.

A predictor knows an op that runs again and again. In a network other ops have run since its weights
were read, a net has to be called, tensors are packed at its ends, and the other processor works
beside it on the same memory. All of that is fitted at once, to stages of small plans that ran
(`StageRow`): a shard takes its ops' predicted latencies, and a cost for each call and each byte.
Coefficients are of a SoC's memory and runtimes, each library of the CPU by itself, so they hold for
models that nobody measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, InvalidFileError, UnknownNameError
from codl.ir import Op, Shape, parse
from codl.ir.columns import elements
from codl.ir.types import PROCESSORS, Direction, Processor
from codl.kernels import registry
from codl.kernels.base import LIBRARIES, Variant
from codl.kernels.feature_columns import beyond, gpu_cache_bytes
from codl.kernels.tuning import Tuning
from codl.lower.rules import loading, storing
from codl.measure.dataset import SEPARATOR, Dataset, StageRow
from codl.predict import features
from codl.records.results import Amount
from codl.records.soc import Soc

#: Fewer stages of a processor than this say nothing.
FEWEST = 12
#: Fits, each of which weighs shards by how far off the last one was; closer ones count alike.
REFITS, NEAR = 40, 0.003
#: Ways to pack and unpack, by their names.
PACKING: Mapping[str, Direction] = {
    way(library): way(library) for way in (loading, storing) for library in LIBRARIES
}


@dataclass(frozen=True)
class InNetworkCost:
    """Milliseconds of a processor's shard in a network, for each of what it does.

    Its ops take what they take alone: `alone` is a factor of that in files from before. A call is
    of a net on the CPU and of a kernel on the GPU. All others are for a byte: of weights that an op
    alone keeps in any cache (as the op has them, and as a variant transforms them: those are read
    point by point, far apart); of what nets pack and unpack; and of everything where the other
    processor works at the same time. Tensors lie where the op before has left them, and in memory
    that others had before: they cost something (`tensor_ms`) in files from before alone.
    """

    alone: Amount = 1.0
    call_ms: Amount = 0.0
    weight_ms: Amount = 0.0
    transformed_ms: Amount = 0.0
    tensor_ms: Amount = 0.0
    packed_ms: Amount = 0.0
    beside_ms: Amount = 0.0


#: Whose costs there may be: a processor's, `cpu` being ncnn's, and those of the CPU's other
#: libraries, each of which calls, passes on and packs in its own way.
Owner: TypeAlias = Literal["cpu", "gpu", "ort", "openvino"]
InNetworkCosts: TypeAlias = Mapping[Owner, InNetworkCost]
OTHERS: tuple[Owner, ...] = ("ort", "openvino")


def owner_of(processor: Processor, library: str) -> Owner:
    """Whose costs are those of a processor in a library."""
    return library if processor == "cpu" and library in OTHERS else processor


def costs_of(costs: InNetworkCosts, processor: Processor, library: str = "") -> InNetworkCost:
    """The costs of a library that has some, or else the processor's; nothing where it has none."""
    return costs.get(owner_of(processor, library)) or costs.get(processor, NOTHING)


def library_of(way: Direction) -> str:
    """The library that packs or unpacks."""
    return next((library for library in OTHERS if way.endswith(f"_{library}")), "ncnn")


def measured_way(
    way: Direction, targets: Collection[str], costs: InNetworkCosts
) -> Direction | None:
    """What was measured of a packing: itself, ncnn's in its place, or nothing but its bytes.

    Bytes tell of a library that has costs of its own.
    """
    library = library_of(way)
    if library == "ncnn" or features.sharing_target(way) in targets:
        return way
    if library in costs:
        return None
    return "load" if way.startswith("load") else "store"


def largest_cache(soc: Soc, processor: Processor) -> float:
    """Bytes of the largest cache that a processor reads through; 0 where that is not known."""
    if processor == "gpu" and not soc.gpu.is_cpu:
        return gpu_cache_bytes(soc)
    return float(max([soc.cpu.l2_cache_bytes, *(cache.bytes for cache in soc.cpu.caches)]))


@dataclass(frozen=True)
class Traffic:
    """Bytes that ops read and write, as they lie in memory, each shaped (ops)."""

    weights: NDArray[np.float64]
    #: Of weights that a kernel variant has transformed.
    transformed: NDArray[np.float64]
    #: Inputs and outputs.
    tensors: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        elements: NDArray[np.float64],
        growth: NDArray[np.float64],
        is_transformed: NDArray[np.bool_],
    ) -> Traffic:
        """From elements of inputs, weights and outputs, shaped (3, ops).

        Weights are `growth` times as many in memory.
        """
        inputs, weights, outputs = 4 * elements
        weights = weights * growth
        return cls(weights * ~is_transformed, weights * is_transformed, inputs + outputs)

    def kept(self, cache: float) -> NDArray[np.float64]:
        """What ops that are repeated keep in a cache of so many bytes, and lose inside a network.

        Of weights, transformed ones and tensors, shaped (3, ops).
        """
        each = np.stack([self.weights, self.transformed, self.tensors])
        size = np.maximum(each.sum(axis=0), 1.0)
        kept: NDArray[np.float64] = (1 - beyond(size, cache) / size) * each
        return kept


#: Ops take what they take alone.
NOTHING = InNetworkCost()


class OpPredictors(Protocol):
    """What predicts ops alone, and packing; milliseconds."""

    @property
    def targets(self) -> tuple[str, ...]: ...

    def latency_ms(self, target: str, items: Sequence[Op]) -> NDArray[np.float64]: ...

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]: ...


def fitted(
    soc: Soc, dataset: Dataset, predictors: OpPredictors, tuning: Tuning = Tuning()
) -> dict[Owner, InNetworkCost]:
    """The costs by a dataset's stages; of whom there are few there are none.

    `tuning` is that of the kernels that ran. Raises `InvalidFileError` for a row whose text is no
    op or no shape.
    """
    costs: dict[Owner, InNetworkCost] = {}
    for side in PROCESSORS:
        all_of_side = shards(soc, dataset, predictors, side, tuning)
        owners: tuple[Owner, ...] = ("cpu", *OTHERS) if side == "cpu" else (side,)
        for owner in owners:
            mine = [shard for shard in all_of_side if shard.owner == owner]
            if owner == side and len(mine) < FEWEST:
                mine = all_of_side
            if len(mine) >= FEWEST:
                costs[owner] = InNetworkCost(*fit(mine))
    return costs


@dataclass(frozen=True)
class Shard:
    """What a processor did in a stage: amounts in the order of the costs."""

    owner: Owner
    amounts: tuple[float, ...]
    taken_ms: float


def shards(
    soc: Soc,
    dataset: Dataset,
    predictors: OpPredictors,
    side: Processor,
    tuning: Tuning = Tuning(),
) -> list[Shard]:
    """A processor's shards in a dataset's stages, but for those in several libraries at once.

    Raises `InvalidFileError` for a row whose text is no op or no shape.
    """
    table, slower = dataset.table("stage"), dataset.calibration()
    rows = [row for row in table.read() if row.status == "ok"]
    try:
        stages = _Stages(side, predictors, _works(rows, side, predictors, soc, tuning))
        every = [stages.shard(row, slower.get(row.run, {}).get(side, 1.0)) for row in rows]
    except CodlError as error:
        raise InvalidFileError(table.path, str(error)) from error
    return [shard for shard in every if shard is not None]


class _Work(NamedTuple):
    """An op in a variant: milliseconds alone, and the bytes that it moves and keeps in caches."""

    alone_ms: float
    backend: str
    #: Bytes of inputs, weights and output as the op has them.
    moved: float
    #: Of weights, as they are and transformed.
    kept: NDArray[np.float64]


@dataclass(frozen=True)
class _Stages:
    """What a processor did in stages."""

    side: Processor
    predictors: OpPredictors
    #: By text, the ops that have a predictor.
    works: Mapping[str, _Work]

    def shard(self, row: StageRow, slower: float) -> Shard | None:
        """What it did in a stage; None where that is nothing, or has no predictor.

        Nor where several libraries were at it. `slower` is by how much it was slower than in the
        dataset's first run.
        """
        cpu = row.cpu_ops, row.cpu_calls, row.cpu_ms
        gpu = row.gpu_ops, row.gpu_calls, row.gpu_ms
        (texts, calls, taken_ms), other = (cpu, gpu) if self.side == "cpu" else (gpu, cpu)
        ran = texts.split(SEPARATOR)
        if taken_ms <= 0 or not all(text in self.works for text in ran):
            return None
        works = [self.works[text] for text in ran]
        owner, *others = {owner_of(self.side, work.backend) for work in works}
        if others:
            return None
        moves = list(moves_of(row.packed)) if self.side == "cpu" else []
        packed = sum(shape.bytes for _, shape in moves)
        try:
            packing_ms = fsum(self._packing_ms(way, owner, shape) for way, shape in moves)
        except UnknownNameError:  # packing was not measured
            return None
        weights, transformed = np.sum([work.kept for work in works], axis=0).tolist()
        moved = (fsum(work.moved for work in works) + 2 * packed) * bool(other[0])
        alone_ms = fsum(work.alone_ms for work in works) + packing_ms
        amounts = (alone_ms, float(calls), weights, transformed, 0.0, float(packed), moved)
        return Shard(owner, amounts, taken_ms / slower)

    def _packing_ms(self, way: Direction, owner: Owner, shape: Shape) -> float:
        """What it takes as far as it was measured; 0 where only bytes tell."""
        if library_of(way) == "ncnn" and owner in OTHERS:  # in files from before
            way = loading(owner) if way == "load" else storing(owner)
        measured = measured_way(way, self.predictors.targets, dict.fromkeys(OTHERS, NOTHING))
        if measured is None:
            return 0.0
        parts = self.predictors.sharing_ms(measured, [shape]).values()
        return sum(float(part[0]) for part in parts)


def _works(
    rows: Sequence[StageRow], side: Processor, predictors: OpPredictors, soc: Soc, tuning: Tuning
) -> dict[str, _Work]:
    """What a processor ran in stages, by its text `variant op`.

    One batch for each target; without those that have no predictor.
    """
    lists = (row.cpu_ops if side == "cpu" else row.gpu_ops for row in rows)
    by_variant: dict[tuple[str, Variant], dict[str, Op]] = {}
    for text in dict.fromkeys(text for texts in lists if texts for text in texts.split(SEPARATOR)):
        name, _, of_op = text.partition(" ")
        op = parse(of_op)
        variant = registry.find(op, name)
        by_variant.setdefault((registry.target(variant, op), variant), {})[text] = op
    works: dict[str, _Work] = {}
    cache = largest_cache(soc, side)
    for (target, variant), ops_by_text in by_variant.items():
        if target in predictors.targets:
            ops = list(ops_by_text.values())
            growth = tuning.weight_growth(variant, ops, soc)
            is_transformed = np.full(len(ops), variant.transforms_weights)
            sizes = np.array(elements(ops), np.float64)
            traffic = Traffic.of(sizes, growth, is_transformed)
            moved = 4 * sizes.sum(axis=0)
            alone_ms = predictors.latency_ms(target, ops)
            each = zip(alone_ms, moved, traffic.kept(cache)[:2].T, strict=True)
            works |= {
                text: _Work(ms, variant.backend, size, kept)
                for text, (ms, size, kept) in zip(ops_by_text, each, strict=True)
            }
    return works


def moves_of(text: str) -> Iterator[tuple[Direction, Shape]]:
    """What `StageRow.packed` lists; raises `CodlError` for what is no such list."""
    for move in filter(None, text.split(SEPARATOR)):
        way, _, sizes = move.partition(" ")
        if way not in PACKING:
            raise CodlError(f"Cannot read {move!r}: expected one of {', '.join(PACKING)}, a shape.")
        shape = features.read(features.sharing_target("load"), sizes)
        assert isinstance(shape, Shape)
        yield PACKING[way], shape


def fit(some: Sequence[Shard]) -> list[float]:
    """Costs of at least 0 with the least sum of logarithmic errors; the first cost is 1.

    So shards that something disturbed count little, and too much is as wrong as too little.
    """
    from scipy.optimize import nnls  # planning needs none of it

    taken_ms = np.array([shard.taken_ms for shard in some])
    alone_ms, *columns = np.array([shard.amounts for shard in some]).T
    parts = np.column_stack(columns)
    scale = np.maximum((parts / taken_ms[:, None]).max(axis=0), 1e-30)
    parts /= scale
    weights = 1 / taken_ms
    costs = np.zeros(len(scale))
    for _ in range(REFITS):
        costs, _ = nnls(parts * weights[:, None], (taken_ms - alone_ms) * weights)
        fitted_ms = np.maximum(alone_ms + parts @ costs, 1e-9)
        errors = np.maximum(np.abs(np.log(fitted_ms / taken_ms)), NEAR)
        weights = 1 / np.sqrt(errors * fitted_ms * taken_ms)
    return [1.0, *(float(cost) for cost in costs / scale)]
