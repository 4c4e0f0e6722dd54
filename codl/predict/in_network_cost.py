"""In-network cost: what ops take in a network beyond what they take alone, fitted to stages.

A predictor knows an op that runs again and again. In a network other ops have run since its weights
were read, its inputs come from the other processor or another layer, a net has to be called, and
the other processor works beside it on the same memory. All of that is fitted at once, to stages of
small plans that ran (`StageRow`): a shard takes its ops' predicted latencies, a factor of them, and
a cost for each call and each byte. Coefficients are of a SoC's memory and runtimes, so they hold
for models that nobody measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import fsum
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, InvalidFileError, UnknownNameError
from codl.ir import Op, Shape, parse
from codl.ir.columns import elements
from codl.ir.types import PROCESSORS, Direction, Processor
from codl.kernels import registry
from codl.kernels.base import Variant
from codl.kernels.feature_columns import beyond, gpu_cache_bytes
from codl.kernels.tuning import Tuning
from codl.measure.dataset import SEPARATOR, Dataset, StageRow
from codl.predict import features
from codl.records.results import Amount
from codl.records.soc import Soc

#: Fewer stages of a processor than this say nothing.
FEWEST = 12
#: Rows this many times as far off as the usual one are of something else, another program's work.
FARTHEST, REFITS = 3.5, 5
#: Of normally distributed errors, this many medians of their sizes are one standard deviation.
MEDIANS = 1.4826


@dataclass(frozen=True)
class InNetworkCost:
    """Milliseconds of a processor's shard in a network, for each of what it does.

    Its ops take what they take alone: `alone` is a factor of that in files from before. `ort` and
    `openvino` are factors of ops in these libraries, or 0: then too few stages ran in one, and it
    counts as the others do. A call is of a net on the CPU, which takes OpenVINO longer, and of a
    kernel on the GPU. All others are for a byte: of what an op alone keeps in any cache, weights
    (as the op has them, and as a variant transforms them: those are read point by point, far apart)
    and tensors, inputs and outputs; of what nets pack and unpack; and of everything where the other
    processor works at the same time.
    """

    alone: Amount = 1.0
    call_ms: Amount = 0.0
    weight_ms: Amount = 0.0
    transformed_ms: Amount = 0.0
    tensor_ms: Amount = 0.0
    packed_ms: Amount = 0.0
    beside_ms: Amount = 0.0
    ort: Amount = 0.0
    openvino: Amount = 0.0
    openvino_call_ms: Amount = 0.0

    def factor(self, backend: str) -> float:
        """Of the latency alone of an op that a library, or OpenCL, computes."""
        return {"ort": self.ort, "openvino": self.openvino}.get(backend, 0.0) or self.alone

    def net_ms(self, backend: str) -> float:
        """What a net of a library takes beyond a call."""
        return self.openvino_call_ms if backend == "openvino" else 0.0


#: Where among the costs the factors of ops in libraries stand.
OF_LIBRARIES = (7, 8)


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
InNetworkCosts: TypeAlias = Mapping[Processor, InNetworkCost]


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
) -> dict[Processor, InNetworkCost]:
    """The costs of either processor by a dataset's stages; of one with few of them there are none.

    `tuning` is that of the kernels that ran. Raises `InvalidFileError` for a row whose text is no
    op or no shape.
    """
    costs: dict[Processor, InNetworkCost] = {}
    for side in PROCESSORS:
        amounts, taken_ms = shards(soc, dataset, predictors, side, tuning)
        if len(amounts) >= FEWEST:
            for column in OF_LIBRARIES:
                if np.count_nonzero(amounts[:, column]) < FEWEST:
                    amounts[:, 0] += amounts[:, column]
                    amounts[:, column] = 0.0
            costs[side] = InNetworkCost(*fit(amounts, taken_ms))
    return costs


def shards(
    soc: Soc,
    dataset: Dataset,
    predictors: OpPredictors,
    side: Processor,
    tuning: Tuning = Tuning(),
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A processor's shards in a dataset's stages: amounts (shards, costs), milliseconds (shards).

    Raises `InvalidFileError` for a row whose text is no op or no shape.
    """
    table, slower = dataset.table("stage"), dataset.calibration()
    rows = [row for row in table.read() if row.status == "ok"]
    try:
        works = _works(rows, side, predictors, soc, tuning)
        stages = _Stages(side, largest_cache(soc, side), predictors, works)
        shards_of_rows = [stages.shard(row, slower.get(row.run, {}).get(side, 1.0)) for row in rows]
    except CodlError as error:
        raise InvalidFileError(table.path, str(error)) from error
    usable = [shard for shard in shards_of_rows if shard is not None]
    amounts = np.array([each for each, _ in usable]).reshape(-1, len(fields(InNetworkCost)))
    return amounts, np.array([taken_ms for _, taken_ms in usable])


class _Work(NamedTuple):
    """An op in a variant: milliseconds alone, and the bytes that it moves and keeps in caches."""

    alone_ms: float
    backend: str
    #: Bytes of inputs, weights and output as the op has them.
    moved: float
    kept: NDArray[np.float64]


@dataclass(frozen=True)
class _Stages:
    """What a processor did in stages."""

    side: Processor
    cache: float
    predictors: OpPredictors
    #: By text, the ops that have a predictor.
    works: Mapping[str, _Work]

    def shard(self, row: StageRow, slower: float) -> tuple[list[float], float] | None:
        """Its amounts in a stage, in the order of the costs, and its milliseconds.

        None where it did nothing, or where an op or its packing has no predictor. `slower` is by
        how much it was slower than in the dataset's first run.
        """
        cpu = row.cpu_ops, row.cpu_calls, row.cpu_ms
        gpu = row.gpu_ops, row.gpu_calls, row.gpu_ms
        (texts, calls, taken_ms), other = (cpu, gpu) if self.side == "cpu" else (gpu, cpu)
        ran = texts.split(SEPARATOR)
        if taken_ms <= 0 or not all(text in self.works for text in ran):
            return None
        works = [self.works[text] for text in ran]
        moves = list(moves_of(row.packed)) if self.side == "cpu" else []
        packed = sum(shape.bytes for _, shape in moves)
        try:
            packing_ms = fsum(self._packing_ms(*move) for move in moves)
        except UnknownNameError:  # packing was not measured
            return None
        kept = np.sum([work.kept for work in works], axis=0)
        moved = (fsum(work.moved for work in works) + 2 * packed) * bool(other[0])
        alone_ms = {"": packing_ms, "ort": 0.0, "openvino": 0.0}
        for work in works:
            library = work.backend if work.backend in alone_ms else ""
            alone_ms[library] += work.alone_ms
        others_ms, *of_libraries = alone_ms.values()
        in_openvino = float(calls) * any(work.backend == "openvino" for work in works)
        bytes_ = [*kept.tolist(), float(packed), moved]
        amounts = [others_ms, float(calls), *bytes_, *of_libraries, in_openvino]
        return amounts, taken_ms / slower

    def _packing_ms(self, way: Direction, shape: Shape) -> float:
        parts = self.predictors.sharing_ms(way, [shape]).values()
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
            each = zip(alone_ms, moved, traffic.kept(cache).T, strict=True)
            works |= {
                text: _Work(ms, variant.backend, size, kept)
                for text, (ms, size, kept) in zip(ops_by_text, each, strict=True)
            }
    return works


def moves_of(text: str) -> Iterator[tuple[Direction, Shape]]:
    """What `StageRow.packed` lists; raises `CodlError` for what is no such list."""
    for move in filter(None, text.split(SEPARATOR)):
        way, _, sizes = move.partition(" ")
        if way not in ("load", "store"):
            raise CodlError(f"Cannot read {move!r}: expected `load` or `store`, and a shape.")
        shape = features.read(features.sharing_target("load"), sizes)
        assert isinstance(shape, Shape)
        yield ("load" if way == "load" else "store"), shape


def fit(amounts: NDArray[np.float64], taken_ms: NDArray[np.float64]) -> list[float]:
    """Costs of at least 0 with the least relative errors, but for stages that something disturbed.

    `amounts` are shaped (stages, costs); the first cost is 1.
    """
    from scipy.optimize import nnls  # planning needs none of it

    alone, amounts = amounts[:, 0] / taken_ms, amounts[:, 1:]
    scale = np.maximum(amounts.max(axis=0), 1e-30)
    parts = amounts / scale / taken_ms[:, None]
    kept = np.ones(len(parts), bool)
    costs = np.zeros(amounts.shape[1])
    for _ in range(REFITS):
        costs, _ = nnls(parts[kept], 1 - alone[kept])
        errors = np.abs(np.log(np.maximum(alone + parts @ costs, 1e-9)))
        usual = MEDIANS * float(np.median(errors))
        now = errors <= FARTHEST * max(usual, 1e-3)
        if (now == kept).all():
            break
        kept = now
    return [1.0, *(float(cost) for cost in costs / scale)]
