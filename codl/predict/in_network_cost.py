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
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.errors import CodlError, InvalidFileError, UnknownNameError
from codl.ir import Op, Shape, parse
from codl.ir.columns import elements
from codl.ir.types import PROCESSORS, Direction, Processor
from codl.kernels import registry
from codl.kernels.feature_columns import beyond, gpu_cache_bytes
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

    `alone` is a factor of its ops' latencies alone. A call is of a net on the CPU, and of a kernel
    on the GPU. All others are for a byte: of the weights, inputs and outputs that an op alone keeps
    in the processor's own cache; of weights that it keeps in the last one; of what ncnn's nets pack
    and unpack; and of everything where the other processor works at the same time.
    """

    alone: Amount = 1.0
    call_ms: Amount = 0.0
    weight_ms: Amount = 0.0
    read_ms: Amount = 0.0
    written_ms: Amount = 0.0
    far_weight_ms: Amount = 0.0
    packed_ms: Amount = 0.0
    beside_ms: Amount = 0.0


@dataclass(frozen=True)
class CacheSizes:
    """Bytes of the private and the last-level cache of a processor; 0 for none."""

    private: float
    last: float

    @classmethod
    def of(cls, soc: Soc, processor: Processor) -> CacheSizes:
        if processor == "gpu" and not soc.gpu.is_cpu:
            return cls(gpu_cache_bytes(soc), 0.0)
        last = max((cache.bytes for cache in soc.cpu.caches), default=0)
        return cls(float(soc.cpu.l2_cache_bytes), float(last))

    def kept(self, elements: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bytes that ops which are repeated keep in caches, and lose inside a network.

        `elements` are those of inputs, weights and outputs, shaped (3, ops). Shaped (4, ops): of
        weights, inputs and outputs in the processor's own cache, of weights in the last one.
        """
        inputs, weights, outputs = 4 * elements
        size = np.maximum(inputs + weights + outputs, 1.0)
        private, last = (1 - beyond(size, cache) / size for cache in (self.private, self.last))
        far = np.maximum(last - private, 0.0)
        return np.stack([private * weights, private * inputs, private * outputs, far * weights])


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


def fitted(soc: Soc, dataset: Dataset, predictors: OpPredictors) -> dict[Processor, InNetworkCost]:
    """The costs of either processor by a dataset's stages; of one with few of them there are none.

    Raises `InvalidFileError` for a row whose text is no op or no shape.
    """
    costs: dict[Processor, InNetworkCost] = {}
    for side in PROCESSORS:
        amounts, taken_ms = shards(soc, dataset, predictors, side)
        if len(amounts) >= FEWEST:
            costs[side] = InNetworkCost(*fit(amounts, taken_ms))
    return costs


def shards(
    soc: Soc, dataset: Dataset, predictors: OpPredictors, side: Processor
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A processor's shards in a dataset's stages: amounts (shards, costs), milliseconds (shards).

    Raises `InvalidFileError` for a row whose text is no op or no shape.
    """
    table, slower = dataset.table("stage"), dataset.calibration()
    rows = [row for row in table.read() if row.status == "ok"]
    try:
        stages = _Stages(side, CacheSizes.of(soc, side), predictors, _alone(rows, side, predictors))
        shards_of_rows = [stages.shard(row, slower.get(row.run, {}).get(side, 1.0)) for row in rows]
    except CodlError as error:
        raise InvalidFileError(table.path, str(error)) from error
    usable = [shard for shard in shards_of_rows if shard is not None]
    amounts = np.array([each for each, _ in usable]).reshape(-1, len(fields(InNetworkCost)))
    return amounts, np.array([taken_ms for _, taken_ms in usable])


@dataclass(frozen=True)
class _Stages:
    """What a processor did in stages."""

    side: Processor
    caches: CacheSizes
    predictors: OpPredictors
    #: By text, the ops that have a predictor, and their milliseconds alone.
    alone: Mapping[str, tuple[Op, float]]

    def shard(self, row: StageRow, slower: float) -> tuple[list[float], float] | None:
        """Its amounts in a stage, in the order of the costs, and its milliseconds.

        None where it did nothing, or where an op or its packing has no predictor. `slower` is by
        how much it was slower than in the dataset's first run.
        """
        cpu = row.cpu_ops, row.cpu_calls, row.cpu_ms
        gpu = row.gpu_ops, row.gpu_calls, row.gpu_ms
        (texts, calls, taken_ms), other = (cpu, gpu) if self.side == "cpu" else (gpu, cpu)
        ran = texts.split(SEPARATOR)
        if taken_ms <= 0 or not all(text in self.alone for text in ran):
            return None
        ops, ops_ms = zip(*(self.alone[text] for text in ran), strict=True)
        moves = list(moves_of(row.packed)) if self.side == "cpu" else []
        packed = sum(shape.bytes for _, shape in moves)
        try:
            alone_ms = sum(ops_ms) + sum(self._packing_ms(*move) for move in moves)
        except UnknownNameError:  # packing was not measured
            return None
        amounts = np.array(elements(ops), np.float64)
        kept = self.caches.kept(amounts).sum(axis=1)
        moved = (4 * amounts.sum() + 2 * packed) * bool(other[0])
        return [alone_ms, float(calls), *kept.tolist(), float(packed), moved], taken_ms / slower

    def _packing_ms(self, way: Direction, shape: Shape) -> float:
        parts = self.predictors.sharing_ms(way, [shape]).values()
        return sum(float(part[0]) for part in parts)


def _alone(
    rows: Sequence[StageRow], side: Processor, predictors: OpPredictors
) -> dict[str, tuple[Op, float]]:
    """What a processor ran in stages, by its text `variant op`: the op, and its milliseconds alone.

    One batch for each target; without those that have no predictor.
    """
    lists = (row.cpu_ops if side == "cpu" else row.gpu_ops for row in rows)
    by_target: dict[str, dict[str, Op]] = {}
    for text in dict.fromkeys(text for texts in lists if texts for text in texts.split(SEPARATOR)):
        name, _, of_op = text.partition(" ")
        op = parse(of_op)
        by_target.setdefault(registry.target(registry.find(op, name), op), {})[text] = op
    alone: dict[str, tuple[Op, float]] = {}
    for target, ops in by_target.items():
        if target in predictors.targets:
            alone_ms = predictors.latency_ms(target, list(ops.values())).tolist()
            alone |= dict(zip(ops, zip(ops.values(), alone_ms, strict=True), strict=True))
    return alone


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

    `amounts` are shaped (stages, costs).
    """
    from scipy.optimize import nnls  # planning needs none of it

    scale = np.maximum(amounts.max(axis=0), 1e-30)
    parts = amounts / scale / taken_ms[:, None]
    kept = np.ones(len(parts), bool)
    costs = np.zeros(amounts.shape[1])
    for _ in range(REFITS):
        costs, _ = nnls(parts[kept], np.ones(kept.sum()))
        errors = np.abs(np.log(np.maximum(parts @ costs, 1e-9)))
        usual = MEDIANS * float(np.median(errors))
        now = errors <= FARTHEST * max(usual, 1e-3)
        if (now == kept).all():
            break
        kept = now
    return [float(cost) for cost in costs / scale]
