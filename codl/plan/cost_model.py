"""Predicted latencies on one SoC: ops inside a network, data sharing, launches.

`CostModel` turns trained predictors into the milliseconds that the planner adds up: of an op in
each kernel variant, of a transfer by its parts, of packing, and of enqueueing kernels. All costs
are cached and predicted in batches.

Predictors are trained on ops that run repeatedly by themselves. Inside a network an op takes longer
(`codl.predict.in_network_cost`), and the runs of earlier plans may correct predictions.

The CPU's wait for the GPU is measured in three ways, and counted once. `dispatch` rows contain a
wait at each count of launches, so only differences between counts are used. The parts of
data-sharing rows were timed separately: `sync` is the shortest wait, on an empty queue, and `map`
and `unmap` contain a wait each. `event_wait` rows have only a wait, and replace the others where
they exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir import Op, Shape
from codl.ir.columns import ColumnsByType
from codl.ir.records.gpu_limits import UNLIMITED, GpuLimits
from codl.ir.records.soc import Soc
from codl.ir.types import PROCESSORS, Direction, Processor, Storage
from codl.kernels import registry
from codl.kernels.base import LIBRARIES, Variant
from codl.kernels.tuning import Tuning
from codl.predict.features import (
    EventWait,
    Item,
    Launches,
    sharing_target,
)
from codl.predict.in_network_cost import (
    InNetworkCost,
    InNetworkCosts,
    costs_of,
    kept_bytes,
    largest_cache,
    library_of,
    measured_way,
)

#: Typical milliseconds for which the CPU waits, in networks with stages of a few milliseconds.
GAP_MS = 1.0
#: The parts of data sharing that are queue commands.
QUEUED = ("map", "unmap")
#: A transfer, copy or packing of a tensor region: its direction and shape.
Move: TypeAlias = tuple[Direction, Shape]
Milliseconds: TypeAlias = NDArray[np.float64]
#: Factors (ops) to multiply the predictions of a processor's target for some ops with.
Factors: TypeAlias = Callable[[Processor, str, Sequence[Op]], Milliseconds]
#: A value of the CPU and one of the GPU.
Pair: TypeAlias = tuple[float, float]
#: Counts of launches are predicted in batches of at least this many.
MANY_LAUNCHES = 128


class LatencyPredictors(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def targets(self) -> tuple[str, ...]: ...

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        """By target with too few measurements to generalise, the measured items as text."""
        ...

    @property
    def inside(self) -> InNetworkCosts: ...

    def latency_ms(self, target: str, items: Sequence[Item]) -> Milliseconds: ...

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, Milliseconds]:
        """By part of data sharing; all of it is `copy` where parts were not measured separately."""
        ...


class VariantCost(NamedTuple):
    """A kernel variant of an op and its latency in milliseconds.

    `storage` is the storage of its tensors on the GPU, None on the CPU. `planar_fallback` is the
    equally fast variant for planar tensors, if any. `library` is the number of the CPU's library.
    """

    variant: str
    latency_ms: float
    storage: Storage | None = None
    planar_fallback: str | None = None
    library: int = 0


class _Predicted(NamedTuple):
    """A target's prediction of an op; corrections do not scale its `calls_ms`."""

    target: str
    cost: VariantCost
    calls_ms: float


#: By target, the places of ops in a list, and the variant of each.
_Asked: TypeAlias = Mapping[str, Sequence[tuple[int, Any]]]


@dataclass
class CostModel:
    """Predicted latencies on one SoC; each prediction is cached."""

    soc: Soc
    predictors: LatencyPredictors
    #: Predict ops with muLayer's targets, one for each kind of op and processor.
    by_op: bool = False
    #: Correction factors from plans that ran.
    corrections: Factors | None = None
    #: Milliseconds that a stage took beyond its parts, in plans that ran.
    stage_ms: float = 0.0
    #: The tuning of the kernels that were measured.
    tuning: Tuning = Tuning()
    #: Limits of the GPU, which make its work take longer.
    limits: GpuLimits = UNLIMITED
    #: The number of the library that computes all ops that it supports; None for the fastest ones.
    library: int | None = None
    #: By processor and op, the cost of each variant by name.
    _known: dict[Processor, dict[Op, dict[str, VariantCost]]] = field(
        default_factory=lambda: {processor: {} for processor in PROCESSORS}, init=False
    )
    #: By processor and op, the predictions without corrections.
    _predicted: dict[Processor, dict[Op, list[_Predicted]]] = field(
        default_factory=lambda: {processor: {} for processor in PROCESSORS}, init=False
    )
    _candidates: dict[tuple[str, Processor], list[list[Variant]]] = field(
        default_factory=dict, init=False
    )
    _parts: dict[Move, Mapping[str, float]] = field(default_factory=dict, init=False)
    #: Milliseconds of 1, 2, ... launches, predicted in one batch.
    _dispatched: Milliseconds = field(default_factory=lambda: np.empty(0), init=False)

    def corrected(self, corrections: Factors, stage_ms: float = 0.0) -> CostModel:
        """The same predictions with correction factors, and with a cost of each stage."""
        other = replace(self, corrections=corrections, stage_ms=stage_ms)
        other._predicted, other._parts = self._predicted, self._parts
        return other

    def in_library(self, library: int) -> CostModel:
        """The same predictions for plans whose CPU prefers one library for all ops."""
        other = copy(self)
        other.library = library
        return other

    @cached_property
    def _targets(self) -> frozenset[str]:
        return frozenset(self.predictors.targets)

    def inside(self, processor: Processor, library: str = "") -> InNetworkCost:
        return costs_of(self.predictors.inside, processor, library)

    # Ops.

    def prefetch(self, ops: Iterable[Op], processor: Processor) -> list[dict[str, VariantCost]]:
        """The cost of each variant of some ops, by name; each variant is predicted in one batch."""
        costs_by_op, asked = self._known[processor], list(ops)
        new = [op for op in dict.fromkeys(asked) if op not in costs_by_op]
        if new:
            self._predict([op for op in new if op not in self._predicted[processor]], processor)
            self._correct(new, processor)
        return [costs_by_op[op] for op in asked]

    def _predict(self, ops: Sequence[Op], processor: Processor) -> None:
        asked: dict[str, list[tuple[int, Any]]] = {}
        for at, op in enumerate(ops):
            for target, variant in self._measured(op, processor):
                asked.setdefault(target, []).append((at, variant))
        each = ((target, *row) for target, of_target in asked.items() for row in of_target)
        rows: list[list[_Predicted]] = [[] for _ in ops]
        predicted = self._inside_ms(processor, ops, asked) if asked else ()
        for (target, at, variant), (latency_ms, calls_ms) in zip(each, predicted, strict=True):
            cost = VariantCost(variant.name, latency_ms)
            if processor == "gpu":
                cost = cost._replace(
                    storage=variant.storage, planar_fallback=variant.planar_fallback
                )
            elif variant.backend in LIBRARIES:
                cost = cost._replace(library=LIBRARIES.index(variant.backend))
            rows[at].append(_Predicted(target, cost, calls_ms))
        self._predicted[processor].update(zip(ops, rows, strict=True))

    def _correct(self, ops: Sequence[Op], processor: Processor) -> None:
        """Cache the costs of predicted ops, multiplied with correction factors if there are any."""
        predicted, known = self._predicted[processor], self._known[processor]
        for op in ops:
            known[op] = {row.cost.variant: row.cost for row in predicted[op]}
        if self.corrections is None:
            return
        by_target: dict[str, list[tuple[Op, _Predicted]]] = {}
        for op in ops:
            for row in predicted[op]:
                by_target.setdefault(row.target, []).append((op, row))
        for target, rows in by_target.items():
            factors = self.corrections(processor, target, [op for op, _ in rows])
            for (op, row), factor in zip(rows, factors.tolist(), strict=True):
                # Call overhead belongs to the net: a net with several ops saves calls.
                latency_ms = row.calls_ms + (row.cost.latency_ms - row.calls_ms) * factor
                known[op][row.cost.variant] = row.cost._replace(latency_ms=latency_ms)

    def _measured(self, op: Op, processor: Processor) -> Iterator[tuple[str, Variant]]:
        """The variants that accept an op and have a target, with that target."""
        kind = (op.kind, processor)
        if kind not in self._candidates:
            self._candidates[kind] = registry.candidates(op.kind, processor, self.soc)
        of_kind = f"mulayer_{op.kind}_{processor}"
        by_op = self.by_op and of_kind in self._targets
        for variant in registry.accepting(op, self._candidates[kind], self.soc):
            name = of_kind if by_op else registry.target(variant, op)
            if name in self._targets:
                yield name, variant
            if by_op:
                return

    def fastest_ms(self, ops: Iterable[Op], processor: Processor) -> list[float]:
        """Milliseconds of ops in their fastest variants; infinite for an op without a variant."""
        return [*map(_least_ms, self.prefetch(ops, processor))]

    def fastest_by_storage(self, op: Op, processor: Processor) -> dict[Storage | None, VariantCost]:
        (op_costs,) = self.prefetch([op], processor)
        fastest: dict[Storage | None, VariantCost] = {}
        for cost in sorted(op_costs.values(), key=lambda cost: cost.latency_ms):
            fastest.setdefault(cost.storage, cost)
        return fastest

    def variant_ms(self, op: Op, processor: Processor, variant: str) -> float:
        """Milliseconds of an op in a variant, or in the fastest one if that has no prediction."""
        (op_costs,) = self.prefetch([op], processor)
        return op_costs[variant].latency_ms if variant in op_costs else _least_ms(op_costs)

    def _inside_ms(
        self, processor: Processor, ops: Sequence[Op], asked: _Asked
    ) -> Iterator[tuple[float, float]]:
        """Milliseconds of each asked op inside a network, and of its net calls; target by target.

        All costs besides the targets' own predictions are computed for all ops at once.
        """
        sizes = ColumnsByType([op.one_image for op in ops])
        rows = {name: sizes.some([at for at, _ in of_target]) for name, of_target in asked.items()}
        alone = [self.predictors.latency_ms(target, columns) for target, columns in rows.items()]
        alone_ms, counts = np.concatenate(alone), [*map(len, asked.values())]
        pairs = [row for of_target in asked.values() for row in of_target]
        places, variants = np.array([at for at, _ in pairs]), [variant for _, variant in pairs]
        #: The first variant of each target. All ops of a target run in one variant (muLayer's
        #: targets are an exception).
        first = [of_target[0][1] for of_target in asked.values()]
        together = np.array([variant.takes_batch for variant in variants])
        images = np.array([op.images for op in ops], np.float64)[places]
        at_once = np.where(together, images, 1.0)
        taken_ms = images * alone_ms
        # In a batch, only the first image reads the weights from memory.
        # All ops of a target, and all targets of a library, share one set of costs.
        each = [self.inside(processor, variant.backend) for variant in first]
        costs = InNetworkCost(*np.repeat(np.array([*map(astuple, each)]), counts, axis=0).T)
        # The size of weights in memory relative to the op's own, e.g. for Winograd.
        growth = [
            self.tuning.weight_growth(variant, columns, self.soc)
            for variant, columns in zip(first, rows.values(), strict=True)
        ]
        is_transformed = np.array([variant.transforms_weights for variant in variants])
        weights, transformed, tensors = kept_bytes(
            sizes.amounts[:3, places],
            np.concatenate(growth),
            is_transformed,
            largest_cache(self.soc, processor),
        )
        moved_ms = images * costs.tensor_ms * tensors
        weights_ms = costs.weight_ms * weights + costs.transformed_ms * transformed
        calls = self.turns(images) if processor == "cpu" else images / at_once
        calls_ms = costs.call_ms * calls
        taken_ms = costs.alone * taken_ms + moved_ms + weights_ms + calls_ms
        if processor == "gpu":
            taken_ms = self.limits.kept_ms(taken_ms, self.inside("gpu").call_ms)
        of_nets_ms = calls_ms if processor == "cpu" else np.zeros_like(taken_ms)
        return zip(taken_ms.tolist(), of_nets_ms.tolist(), strict=True)

    # Data sharing.

    def prefetch_sharing(self, moves: Iterable[Move]) -> None:
        """Predict some moves, in one batch for each direction and part."""
        new: dict[Direction, list[Shape]] = {}
        for direction, shape in dict.fromkeys(moves):
            if (direction, shape) not in self._parts:
                new.setdefault(direction, []).append(shape)
        for direction, shapes in new.items():
            by_part = self._sharing(direction, shapes)
            rows = zip(*(all_ms.tolist() for all_ms in by_part.values()), strict=True)
            for shape, row in zip(shapes, rows, strict=True):
                self._parts[direction, shape] = dict(zip(by_part, row, strict=True))

    def _sharing(self, direction: Direction, shapes: Sequence[Shape]) -> Mapping[str, Milliseconds]:
        """Milliseconds by part, shaped (shapes).

        Only tensors of one image were measured. A transfer of N images counts as one image with N
        times the channels; nets pack image by image. The GPU's limits apply to the parts that are
        kernels: `transform`, and relayout copies. The kernel of a transfer that was measured as a
        whole is unknown.
        """
        joined = [shape._replace(n=1, c=shape.n * shape.c) for shape in shapes]
        by_part = dict(self.predictors.sharing_ms(direction, joined))
        if joined != shapes and direction not in ("to_gpu", "to_cpu"):
            images = np.array([shape.n for shape in shapes], np.float64)
            each = [shape._replace(n=1) for shape in shapes]
            single = self.predictors.sharing_ms(direction, each)
            by_part = {part: images * single[part] for part in by_part}
        if self.limits:
            launch_ms = self.inside("gpu").call_ms
            for part in by_part if direction == "relayout" else {"transform"} & by_part.keys():
                by_part[part] = self.limits.kept_ms(by_part[part], launch_ms)
        return by_part

    def sharing_parts(self, direction: Direction, shape: Shape) -> Mapping[str, float]:
        """Milliseconds of the parts of a move by name, as measured."""
        if (direction, shape) not in self._parts:
            self.prefetch_sharing([(direction, shape)])
        return self._parts[direction, shape]

    def transfer_parts(self, direction: Direction, shape: Shape) -> Mapping[str, float]:
        """Milliseconds of a transfer's parts by name, inside an executable.

        `sync` becomes the measured wait. Maps and unmaps follow other commands, so the wait that an
        empty queue added to them is subtracted. Parts stay as timed where waits were not measured,
        or the transfer was measured as a whole.
        """
        parts, wait_ms = self.sharing_parts(direction, shape), self._wait_ms
        if wait_ms is None or "transform" not in parts:
            return parts
        queued_ms = {part: max(0.0, parts[part] - wait_ms) for part in QUEUED if part in parts}
        return {**parts, **queued_ms, "sync": wait_ms}

    @cached_property
    def _wait_ms(self) -> float | None:
        """Milliseconds from the end of a kernel until the CPU notices it; None if not measured."""
        if "event_wait_cpu" not in self._targets:
            return None
        return float(self.predictors.latency_ms("event_wait_cpu", [EventWait(GAP_MS)])[0])

    def sharing_ms(self, direction: Direction, shape: Shape) -> float:
        return sum(self.sharing_parts(direction, shape).values())

    @cached_property
    def storages(self) -> tuple[Storage, ...]:
        """The SoC's storages if copies between them were measured, else none."""
        storages = registry.storages(self.soc)
        is_known = sharing_target("relayout", storages[-1]) in self._targets
        return storages if is_known else ()

    # Both processors together, launches, packing.

    def together_ms(self, moved: NDArray[np.float64], alone_ms: Milliseconds) -> Milliseconds:
        """Milliseconds of shards that run on both processors at the same time; (pairs, 2).

        `moved` (pairs, 2) are the bytes that each shard reads and writes, and `alone_ms` (pairs, 2)
        its time without the other one.
        """
        costs = np.array([self.inside(side).beside_ms for side in PROCESSORS])
        both = ((alone_ms > 0) & np.isfinite(alone_ms)).all(axis=1, keepdims=True)
        return np.asarray(alone_ms + both * costs * moved)

    def launches_ms(self, count: int) -> float:
        """Milliseconds that the CPU needs to enqueue `count` kernels."""
        if not count or "dispatch_gpu" not in self._targets:
            return self.stage_ms if count else 0.0
        if len(self._dispatched) <= count:
            items = [Launches(number) for number in range(1, 2 * (count + 1) + MANY_LAUNCHES)]
            self._dispatched = self.predictors.latency_ms("dispatch_gpu", items)
        return max(0.0, float(self._dispatched[count] - self._dispatched[0])) + self.stage_ms

    def packing_ms(self, move: Move) -> float:
        """Milliseconds that a library needs inside a network to pack or unpack a tensor."""
        way, shape = move
        costs = self.inside("cpu", library_of(way))
        measured = measured_way(way, self._targets, self.predictors.inside)
        alone_ms = self.sharing_ms(measured, shape) if measured else 0.0
        return costs.alone * alone_ms + costs.packed_ms * shape.bytes

    def packings_ms(self, way: Direction, shapes: Iterable[Shape]) -> Milliseconds:
        """Milliseconds to pack or unpack several tensors, shaped (shapes)."""
        shapes = list(shapes)
        measured = measured_way(way, self._targets, self.predictors.inside)
        if measured:
            self.prefetch_sharing((measured, shape) for shape in shapes)
        return np.array([self.packing_ms((way, shape)) for shape in shapes], np.float64)

    def turns(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        """The number of successive calls of a net for `images`: each thread computes one image."""
        return np.maximum(1.0, images / self.soc.cpu.threads)


def _least_ms(op_costs: Mapping[str, VariantCost]) -> float:
    return min((cost.latency_ms for cost in op_costs.values()), default=inf)
