"""In-network costs: the latency of ops in a network beyond their latency alone, fitted to stages.

A predictor models an op in repetition. In a network, other ops evict its weights from caches, nets
are called, tensors are packed at their ends, and the other processor competes for memory. One fit
to measured stages of small plans (`StageRow`) covers all of these: a shard takes its ops' predicted
latencies plus costs for each call and each byte. Coefficients belong to a SoC's memory and
runtimes, separately for each CPU library, so they transfer to models without measurements.
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
from codl.ir.columns import ColumnsByType
from codl.ir.records.results import Amount
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS, Direction, Processor
from codl.kernels import registry
from codl.kernels.base import Variant
from codl.kernels.tiling import beyond, gpu_cache_bytes
from codl.kernels.tuning import Tuning
from codl.measure.dataset import SEPARATOR, Dataset, StageRow
from codl.predict import features

#: Fewest stages of a processor for a fit.
FEWEST = 12
#: Iterations of re-weighted least squares, and the least log error in a shard's weight.
REFITS, NEAR = 40, 0.003
#: Directions of packing and unpacking, by name.
PACKING: Mapping[str, Direction] = {
    way: way for way in features.DIRECTIONS if way.startswith(("load", "store"))
}


@dataclass(frozen=True)
class InNetworkCost:
    """Costs in milliseconds of a processor's shard in a network.

    `call_ms` is for a net call on the CPU or a kernel on the GPU. The others are for a byte:
    `weight_ms` and `transformed_ms` of weights that an op alone keeps in a cache (plain ones, and
    ones transformed by a variant, read with large strides); `packed_ms` of tensors that nets pack
    and unpack; `beside_ms` of all traffic while the other processor works. Older files also have
    `alone`, a factor of the ops' latency alone, and `tensor_ms`, for a byte of tensors.
    """

    alone: Amount = 1.0
    call_ms: Amount = 0.0
    weight_ms: Amount = 0.0
    transformed_ms: Amount = 0.0
    tensor_ms: Amount = 0.0
    packed_ms: Amount = 0.0
    beside_ms: Amount = 0.0


#: Owners of costs: the GPU, and each CPU library with its own calls and packing (`cpu` is ncnn).
Owner: TypeAlias = Literal["cpu", "gpu", "ort", "openvino"]
InNetworkCosts: TypeAlias = Mapping[Owner, InNetworkCost]
OTHERS: tuple[Owner, ...] = ("ort", "openvino")


def owner_of(processor: Processor, library: str) -> Owner:
    return library if processor == "cpu" and library in OTHERS else processor


def costs_of(costs: InNetworkCosts, processor: Processor, library: str = "") -> InNetworkCost:
    """The costs of a library, else of its processor, else zero costs (`NOTHING`)."""
    return costs.get(owner_of(processor, library)) or costs.get(processor, NOTHING)


def library_of(way: Direction) -> str:
    return next((library for library in OTHERS if way.endswith(f"_{library}")), "ncnn")


def measured_way(
    way: Direction, targets: Collection[str], costs: InNetworkCosts
) -> Direction | None:
    """The predicted direction for a packing `way`: itself, ncnn's as a substitute, or None.

    None: the library's own in-network costs price packing by bytes.
    """
    library = library_of(way)
    if library == "ncnn" or features.sharing_target(way) in targets:
        return way
    if library in costs:
        return None
    return "load" if way.startswith("load") else "store"


def largest_cache(soc: Soc, processor: Processor) -> float:
    """Bytes of the largest cache that a processor reads through; 0 if unknown."""
    if processor == "gpu" and not soc.gpu.is_cpu:
        return gpu_cache_bytes(soc)
    return float(max([soc.cpu.l2_cache_bytes, *(cache.bytes for cache in soc.cpu.caches)]))


def kept_bytes(
    elements: NDArray[np.float64],
    growth: NDArray[np.float64],
    is_transformed: NDArray[np.bool_],
    cache: float,
) -> NDArray[np.float64]:
    """Bytes that repeated ops keep in a `cache` of this size, and lose inside a network.

    `elements` are those of inputs, weights and outputs, shaped (3, ops); weights take `growth`
    (ops) times their size in memory. Rows are weights, weights transformed by a kernel variant, and
    tensors, shaped (3, ops).
    """
    inputs, weights, outputs = 4 * elements
    weights = weights * growth
    each = np.stack([weights * ~is_transformed, weights * is_transformed, inputs + outputs])
    size = np.maximum(each.sum(axis=0), 1.0)
    kept: NDArray[np.float64] = (1 - beyond(size, cache) / size) * each
    return kept


#: Zero costs: ops in a network take their latency alone.
NOTHING = InNetworkCost()


class OpPredictors(Protocol):
    @property
    def targets(self) -> tuple[str, ...]: ...

    def latency_ms(self, target: str, items: Sequence[Op]) -> NDArray[np.float64]: ...

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, NDArray[np.float64]]: ...


def fitted(
    soc: Soc, dataset: Dataset, predictors: OpPredictors, tuning: Tuning = Tuning()
) -> dict[Owner, InNetworkCost]:
    """Costs fitted to a dataset's stages, by owner, of at least `FEWEST` stages each.

    With fewer stages of ncnn, `cpu` is fitted to all CPU stages. `tuning` is that of the measured
    kernels. Raises `InvalidFileError` for a row with an unreadable op or shape.
    """
    table, slower = dataset.table("stage"), dataset.calibration()
    rows = [row for row in table.read() if row.status == "ok"]
    costs: dict[Owner, InNetworkCost] = {}
    for side in PROCESSORS:
        try:
            works = _works(rows, side, predictors, soc, tuning)
            every = [
                _shard(row, side, works, predictors, slower.get(row.run, {}).get(side, 1.0))
                for row in rows
            ]
        except CodlError as error:
            raise InvalidFileError(table.path, str(error)) from error
        shards = [shard for shard in every if shard is not None]
        owners: tuple[Owner, ...] = ("cpu", *OTHERS) if side == "cpu" else (side,)
        for owner in owners:
            mine = [shard for shard in shards if shard.owner == owner]
            if owner == side and len(mine) < FEWEST:
                mine = shards
            if len(mine) >= FEWEST:
                costs[owner] = InNetworkCost(*_fit(mine))
    return costs


class _Shard(NamedTuple):
    """A processor's work in a stage: amounts in the order of `InNetworkCost`, and its latency."""

    owner: Owner
    amounts: tuple[float, ...]
    taken_ms: float


class _Work(NamedTuple):
    """An op in a variant: milliseconds alone, bytes moved, and bytes kept in caches."""

    alone_ms: float
    backend: str
    #: Bytes of inputs, untransformed weights and output.
    moved: float
    #: Bytes of plain and of transformed weights kept in a cache, shaped (2).
    kept: NDArray[np.float64]


def _shard(
    row: StageRow,
    side: Processor,
    works_by_text: Mapping[str, _Work],
    predictors: OpPredictors,
    slower: float,
) -> _Shard | None:
    """A processor's shard of a stage.

    None if the processor is idle, mixes libraries, or an op or packing has no predictor. `slower`
    is the processor's slowdown relative to the dataset's first run.
    """
    cpu = row.cpu_ops, row.cpu_calls, row.cpu_ms
    gpu = row.gpu_ops, row.gpu_calls, row.gpu_ms
    (texts, calls, taken_ms), other = (cpu, gpu) if side == "cpu" else (gpu, cpu)
    ran = texts.split(SEPARATOR)
    if taken_ms <= 0 or not all(text in works_by_text for text in ran):
        return None
    works = [works_by_text[text] for text in ran]
    owner, *others = {owner_of(side, work.backend) for work in works}
    if others:
        return None
    moves = list(_moves_of(row.packed)) if side == "cpu" else []
    packed = sum(shape.bytes for _, shape in moves)
    try:
        packing_ms = fsum(_packing_ms(way, owner, shape, predictors) for way, shape in moves)
    except UnknownNameError:  # no predictor of the packing
        return None
    weights, transformed = np.sum([work.kept for work in works], axis=0).tolist()
    moved = (fsum(work.moved for work in works) + 2 * packed) * bool(other[0])
    alone_ms = fsum(work.alone_ms for work in works) + packing_ms
    amounts = (alone_ms, float(calls), weights, transformed, 0.0, float(packed), moved)
    return _Shard(owner, amounts, taken_ms / slower)


def _packing_ms(way: Direction, owner: Owner, shape: Shape, predictors: OpPredictors) -> float:
    """Predicted milliseconds of a packing; 0 where its cost is fitted for bytes alone."""
    if library_of(way) == "ncnn" and owner in OTHERS:  # older files name ncnn's direction
        way = f"{way}_{owner}"  # type: ignore[assignment]
    measured = measured_way(way, predictors.targets, dict.fromkeys(OTHERS, NOTHING))
    if measured is None:
        return 0.0
    return sum(float(part[0]) for part in predictors.sharing_ms(measured, [shape]).values())


def _works(
    rows: Sequence[StageRow], side: Processor, predictors: OpPredictors, soc: Soc, tuning: Tuning
) -> dict[str, _Work]:
    """Ops with a predictor that a processor ran in stages, by text `variant op`."""
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
            sizes = ColumnsByType(ops).amounts[:3]
            kept = kept_bytes(sizes, growth, is_transformed, cache)[:2].T
            moved = 4 * sizes.sum(axis=0)
            alone_ms = predictors.latency_ms(target, ops)
            each = zip(alone_ms, moved, kept, strict=True)
            works |= {
                text: _Work(ms, variant.backend, size, own)
                for text, (ms, size, own) in zip(ops_by_text, each, strict=True)
            }
    return works


def _moves_of(text: str) -> Iterator[tuple[Direction, Shape]]:
    """Directions and shapes listed in `StageRow.packed`; raises `CodlError` for another text."""
    for move in filter(None, text.split(SEPARATOR)):
        way, _, sizes = move.partition(" ")
        if way not in PACKING:
            raise CodlError(f"Cannot read {move!r}: expected one of {', '.join(PACKING)}, a shape.")
        shape = features.read(features.sharing_target("load"), sizes)
        assert isinstance(shape, Shape)
        yield PACKING[way], shape


def _fit(some: Sequence[_Shard]) -> list[float]:
    """Non-negative costs with the least sum of absolute log errors, robust; the first cost is 1."""
    from scipy.optimize import nnls  # not needed for planning

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
