"""Predicted latencies on one SoC: of ops inside a network, of data sharing, of both sides at once.

Predictors know an op that runs again and again. Inside a network it takes more (see
`codl.predict.in_network_cost`), its batch may be computed at once, and plans that ran may have
shown something else.

Weights may be anywhere, or each of them on one processor alone. Cut by rows, a product has all of
its weights on both processors; cut by columns each has its own. Two plans of the same layers have
weights in common only where both have them in the same places: so one of them follows the other.

What it costs one processor to know of the other's work is counted once. Three measurements know of
it. `dispatch` rows have a first launch and a wait in each count alike: of them the differences
count, what one more launch takes. Rows of data sharing have parts that were each timed by itself:
`sync` is the least that a wait can take, of a queue that has nothing left to do, and a map or an
unmap has a first launch and a wait of its own in it. `first_launch` and `event_wait` rows have
these two alone, and where they are known they take the place of all that. Where kernels raise
flags, `flag_wait` rows have the wait, with the kernel that raises one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import inf
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Network, Op, Region, Shape
from codl.ir.columns import ColumnsByType
from codl.ir.plan import Plan
from codl.ir.types import PROCESSORS, Direction, Processor, Storage
from codl.kernels import registry
from codl.kernels.base import LIBRARIES, Variant
from codl.kernels.tuning import Tuning
from codl.lower.partition import partition_plan
from codl.predict.context_terms import Batch, EventWait, FirstLaunch, FlagWait, Gap, Launches
from codl.predict.features import Item, sharing_target
from codl.predict.in_network_cost import (
    InNetworkCost,
    InNetworkCosts,
    Traffic,
    costs_of,
    largest_cache,
    library_of,
    measured_way,
)
from codl.records.gpu_limits import UNLIMITED, GpuLimits
from codl.records.soc import Soc

#: Of what a residual add takes on the GPU, the part that is left where a convolution does it: it
#: reads one tensor, instead of two, and writes none. 0.2 was measured (docs/decisions.md).
FUSED_ADD_FRACTION = 1 / 3


#: What the CPU and the GPU compute of a layer.
Shares: TypeAlias = tuple[Region | None, Region | None]


@dataclass(frozen=True)
class WeightPlaces:
    """`once`: no weights on both processors. `shares` are by layer those of a plan to follow.

    `cuts` are the dimension and the ratio of the chain that each layer has there.
    """

    once: bool = False
    shares: Mapping[str, Shares] = field(default_factory=dict)
    cuts: Mapping[str, tuple[Dim, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, network: Network, plan: Plan, soc: Soc) -> WeightPlaces:
        """Those of a plan that has weights once."""
        shares: dict[str, Shares] = {}
        cuts: dict[str, tuple[Dim, float]] = {}
        for segment in partition_plan(network, plan, soc).segments:
            parts = [{p.layer.name: p.region for p in s.parts} for s in (segment.cpu, segment.gpu)]
            for name in segment.chain.ops:
                shares[name] = parts[0].get(name), parts[1].get(name)
                cuts[name] = segment.chain.dim, segment.chain.gpu_ratio
        return cls(True, shares, cuts)


ANYWHERE = WeightPlaces()


#: A queue is empty for about so long, and the CPU waits for as long, in networks whose stages take
#: some milliseconds.
GAP_MS = 1.0
#: Parts of data sharing that the queue does.
QUEUED = ("map", "unmap")


@dataclass(frozen=True)
class SignalCosts:
    """Milliseconds from enqueueing on an empty queue to a kernel's beginning, 0 where that was not
    measured; and from a kernel's end to the CPU's knowing it, None where that was not.

    `launches` are how many kernels a transfer to the CPU takes: its own, and one that raises a
    flag. Where waits for flags were not measured, they count as those for events.
    """

    first_launch_ms: float = 0.0
    wait_ms: float | None = None
    launches: int = 1

    @classmethod
    def of(cls, predictors: LatencyPredictors, *, raises_flags: bool = False) -> SignalCosts:
        targets = frozenset(predictors.targets)

        def predicted_ms(signal: Gap) -> float | None:
            target = f"{signal.kind}_{signal.processor}"
            if target not in targets:
                return None
            return float(predictors.latency_ms(target, [signal])[0])

        wait_ms = predicted_ms(FlagWait(GAP_MS)) if raises_flags else None
        return cls(
            first_launch_ms=predicted_ms(FirstLaunch(GAP_MS)) or 0.0,
            wait_ms=predicted_ms(EventWait(GAP_MS)) if wait_ms is None else wait_ms,
            launches=1 + raises_flags,
        )

    def inside(self, parts: Mapping[str, float]) -> Mapping[str, float]:
        """Milliseconds of a transfer's parts by name, inside an executable.

        The CPU waits as was measured; maps and unmaps stand behind other commands, so what an empty
        queue added to them is taken off. Parts are left as they were timed where waits are not
        known, and a transfer that is not known by its parts.
        """
        if self.wait_ms is None or "transform" not in parts:
            return parts
        added_ms = self.first_launch_ms + self.wait_ms
        queued_ms = {part: max(0.0, parts[part] - added_ms) for part in QUEUED if part in parts}
        return {**parts, **queued_ms, "sync": self.wait_ms}


#: A region of a tensor on its way from one place to another.
Move: TypeAlias = tuple[Direction, Shape]
Milliseconds: TypeAlias = NDArray[np.float64]
#: What to multiply predictions of a processor's target for some ops with, (ops).
Factors: TypeAlias = Callable[[Processor, str, Sequence[Op]], Milliseconds]
#: One of the CPU, one of the GPU.
Pair: TypeAlias = tuple[float, float]
#: Numbers of launches up to about this are predicted in one batch.
MANY_LAUNCHES = 128


class LatencyPredictors(Protocol):
    """What the planner asks of predictors; milliseconds."""

    @property
    def name(self) -> str: ...

    @property
    def targets(self) -> tuple[str, ...]: ...

    @property
    def few(self) -> Mapping[str, frozenset[str]]:
        """The items, as text, of `targets` of which too few were measured to tell of others."""
        ...

    @property
    def inside(self) -> InNetworkCosts:
        """What ops take more inside a network; of a processor that is not there, nothing."""
        ...

    def latency_ms(self, target: str, items: Sequence[Item]) -> Milliseconds: ...

    def sharing_ms(
        self, direction: Direction, shapes: Sequence[Shape]
    ) -> Mapping[str, Milliseconds]:
        """By the part of sharing; all of it a `copy` where parts are not known apart."""
        ...


class VariantCost(NamedTuple):
    """A kernel variant of an op and its latency in milliseconds.

    `storage` is how its tensors lie on the GPU; None on the CPU. What lies planar the variant
    `planar_fallback`, if there is one, computes in its place, as fast. `library` is the number of the
    CPU's library.
    """

    variant: str
    latency_ms: float
    storage: Storage | None = None
    planar_fallback: str | None = None
    library: int = 0


class _Predicted(NamedTuple):
    """What a target predicts of an op; `calls_ms` of it corrections leave as they are."""

    target: str
    cost: VariantCost
    calls_ms: float


class _Asked(NamedTuple):
    """Ops of one target, by their places among all, and the variant that each would run in."""

    places: list[int]
    variants: list[Any]


@dataclass
class CostModel:
    """Predicted latencies on one SoC; everything is predicted once."""

    soc: Soc
    predictors: LatencyPredictors
    #: Predict an op's latency by muLayer's targets, which do not tell variants apart.
    by_op: bool = False
    #: What plans that ran say about these predictions.
    corrections: Factors | None = None
    #: Milliseconds of a stage that plans which ran took beyond all of its parts.
    stage_ms: float = 0.0
    #: How the kernels were tuned that the predictions are of.
    tuning: Tuning = Tuning()
    #: Rules of planning that are switched off, by the names that `codl.plan.coverage.TERMS` has.
    off: frozenset[str] = frozenset()
    #: What the GPU is limited to: what it computes takes so much longer.
    limits: GpuLimits = UNLIMITED
    #: Where plans may have weights.
    places: WeightPlaces = ANYWHERE
    #: The number of the library that computes all that it can on the CPU; None where the best do.
    library: int | None = None
    #: Every variant with a predictor, by name.
    _known: dict[Processor, dict[Op, dict[str, VariantCost]]] = field(
        default_factory=lambda: {processor: {} for processor in PROCESSORS}, init=False
    )
    #: The same by predictors alone.
    _predicted: dict[Processor, dict[Op, list[_Predicted]]] = field(
        default_factory=lambda: {processor: {} for processor in PROCESSORS}, init=False
    )
    _candidates: dict[tuple[str, Processor], list[list[Variant]]] = field(
        default_factory=dict, init=False
    )
    _parts: dict[Move, Mapping[str, float]] = field(default_factory=dict, init=False)
    _dispatched: Milliseconds = field(default_factory=lambda: np.empty(0), init=False)

    def corrected(self, corrections: Factors, stage_ms: float = 0.0) -> CostModel:
        """The same predictions, with what measured plans say about them, and about stages."""
        other = replace(self, corrections=corrections, stage_ms=stage_ms)
        other._predicted, other._parts = self._predicted, self._parts
        return other

    def in_library(self, library: int) -> CostModel:
        """The same predictions for plans whose CPU computes all that it can in one library."""
        other = copy(self)
        other.library = library
        return other

    def with_predictors(self, predictors: LatencyPredictors) -> CostModel:
        """Other predictors, of which nothing is known yet."""
        return replace(self, predictors=predictors)

    @cached_property
    def _known_targets(self) -> frozenset[str]:
        return frozenset(self.predictors.targets)

    def inside(self, processor: Processor, library: str = "") -> InNetworkCost:
        """What ops of a processor, or of a library of the CPU, take more inside a network."""
        return costs_of(self.predictors.inside, processor, library)

    # Ops.

    def prefetch(self, ops: Iterable[Op], processor: Processor) -> list[dict[str, VariantCost]]:
        """Predict many ops in one batch for each kernel variant: their variants by name."""
        costs_by_op, asked = self._known[processor], list(ops)
        new = [op for op in dict.fromkeys(asked) if op not in costs_by_op]
        if new:
            self._predict([op for op in new if op not in self._predicted[processor]], processor)
            self._correct(new, processor)
        return [costs_by_op[op] for op in asked]

    def _predict(self, ops: Sequence[Op], processor: Processor) -> None:
        asked: dict[str, _Asked] = {}
        for at, op in enumerate(ops):
            for target, variant in self._targets(op, processor):
                of_target = asked.setdefault(target, _Asked([], []))
                of_target.places.append(at)
                of_target.variants.append(variant)
        rows: list[list[_Predicted]] = [[] for _ in ops]
        for target, latencies in self._inside_ms(processor, ops, asked).items():
            for at, variant, (latency_ms, calls_ms) in zip(*asked[target], latencies, strict=True):
                cost = VariantCost(variant.name, latency_ms)
                if processor == "gpu":
                    cost = cost._replace(storage=variant.storage, planar_fallback=variant.planar_fallback)
                elif variant.backend in LIBRARIES:
                    cost = cost._replace(library=LIBRARIES.index(variant.backend))
                rows[at].append(_Predicted(target, cost, calls_ms))
        self._predicted[processor].update(zip(ops, rows, strict=True))

    def _correct(self, ops: Sequence[Op], processor: Processor) -> None:
        """Note what is known of ops that were predicted, with corrections where there are some."""
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
                # Calls are a net's, and those that it saves are not its ops'.
                latency_ms = row.calls_ms + (row.cost.latency_ms - row.calls_ms) * factor
                known[op][row.cost.variant] = row.cost._replace(latency_ms=latency_ms)

    def _targets(self, op: Op, processor: Processor) -> Iterator[tuple[str, Variant]]:
        """The variants that accept an op, with the targets that predict them."""
        kind = (op.kind, processor)
        if kind not in self._candidates:
            self._candidates[kind] = registry.candidates(op.kind, processor, self.soc)
        of_kind = f"mulayer_{op.kind}_{processor}"
        by_op = self.by_op and of_kind in self._known_targets
        for variant in registry.accepting(op, self._candidates[kind], self.soc):
            name = of_kind if by_op else registry.target(variant, op)
            if name in self._known_targets:
                yield name, variant
            if by_op:
                return

    def fastest_ms(self, ops: Iterable[Op], processor: Processor) -> list[float]:
        """Milliseconds of ops in their fastest variants; infinite where there is none."""
        return [
            min((cost.latency_ms for cost in op_costs.values()), default=inf)
            for op_costs in self.prefetch(ops, processor)
        ]

    def fastest_by_storage(self, op: Op, processor: Processor) -> dict[Storage | None, VariantCost]:
        """The fastest variant for every storage, the fastest of all first."""
        (op_costs,) = self.prefetch([op], processor)
        fastest: dict[Storage | None, VariantCost] = {}
        for cost in sorted(op_costs.values(), key=lambda cost: cost.latency_ms):
            fastest.setdefault(cost.storage, cost)
        return fastest

    def variant_ms(self, op: Op, processor: Processor, variant: str) -> float:
        """Milliseconds of an op in a variant; of one without a predictor as in the fastest."""
        (op_costs,) = self.prefetch([op], processor)
        if variant in op_costs:
            return op_costs[variant].latency_ms
        return min((cost.latency_ms for cost in op_costs.values()), default=inf)

    def _inside_ms(
        self, processor: Processor, ops: Sequence[Op], asked: Mapping[str, _Asked]
    ) -> dict[str, list[tuple[float, float]]]:
        """Milliseconds inside a network of the ops that are asked for, by target, and how many of
        them are a net's calls.

        Everything but the targets themselves is predicted in one go for all of them.
        """
        if not asked:
            return {}
        sizes = ColumnsByType([op.one_image for op in ops])
        rows = {target: sizes.some(request.places) for target, request in asked.items()}
        alone = [self.predictors.latency_ms(target, columns) for target, columns in rows.items()]
        alone_ms = np.concatenate(alone)
        places = np.concatenate([request.places for request in asked.values()])
        variants = [variant for request in asked.values() for variant in request.variants]
        together = np.array([variant.takes_batch for variant in variants])
        images = np.array([op.images for op in ops], np.float64)[places]
        at_once = np.where(together, images, 1.0)
        single = [op for columns in rows.values() for op in columns]
        taken_ms = self._batch_ms(single, alone_ms, at_once, processor) * (images / at_once)
        # Of a batch only the first image finds the weights far away.
        costs = self._costs(processor, asked.values())
        growth = [
            self._growth(request.variants, columns)
            for request, columns in zip(asked.values(), rows.values(), strict=True)
        ]
        is_transformed = np.array([variant.transforms_weights for variant in variants])
        traffic = Traffic.of(sizes.amounts[:3, places], np.concatenate(growth), is_transformed)
        weights, transformed, tensors = traffic.kept(largest_cache(self.soc, processor))
        moved_ms = images * costs.tensor_ms * tensors
        weights_ms = costs.weight_ms * weights + costs.transformed_ms * transformed
        calls = self.turns(images) if processor == "cpu" else images / at_once
        calls_ms = costs.call_ms * calls
        taken_ms = costs.alone * taken_ms + moved_ms + weights_ms + calls_ms
        if processor == "gpu":
            taken_ms = self.limits.kept_ms(taken_ms, self.inside("gpu").call_ms)
        of_nets_ms = calls_ms if processor == "cpu" else np.zeros_like(taken_ms)
        pairs = list(zip(taken_ms.tolist(), of_nets_ms.tolist(), strict=True))
        ends = accumulate((len(request.places) for request in asked.values()), initial=0)
        return {target: pairs[a:b] for target, (a, b) in zip(asked, pairwise(ends), strict=True)}

    def _costs(self, processor: Processor, asked: Iterable[_Asked]) -> InNetworkCost:
        """The costs inside a network of what is asked for, as columns; of a target all are alike.

        What one library computes is of one law.
        """
        counts = [len(request.places) for request in asked]
        each = [self.inside(processor, request.variants[0].backend) for request in asked]
        columns = np.repeat(np.array([astuple(costs) for costs in each]), counts, axis=0).T
        return InNetworkCost(*columns)

    def _growth(self, variants: Sequence[Variant], ops: Sequence[Op]) -> NDArray[np.float64]:
        """How many times as many numbers the weights of ops are in memory, shaped (ops).

        Of one target, whose ops all run in one variant, but for muLayer's.
        """
        return self.tuning.weight_growth(variants[0], ops, self.soc)

    def _batch_ms(
        self,
        single: Sequence[Op],
        single_ms: Milliseconds,
        images: NDArray[np.float64],
        processor: Processor,
    ) -> Milliseconds:
        """Milliseconds of several images of ops at once; one image takes `single_ms`; (ops).

        As many times as long where no batches were measured; never more, and not less than one.
        """
        taken_ms = np.asarray(images * single_ms, np.float64)
        target, many = f"batch_{processor}", np.flatnonzero(images > 1)
        if many.size and target in self._known_targets:
            items = [
                Batch(single[at], float(single_ms[at]), int(images[at])) for at in many.tolist()
            ]
            together = self.predictors.latency_ms(target, items)
            taken_ms[many] = np.clip(together, single_ms[many], taken_ms[many])
        return taken_ms

    # Data sharing.

    def prefetch_sharing(self, moves: Iterable[Move]) -> None:
        """Predict data sharing in one batch for each direction and part."""
        new: dict[Direction, list[Shape]] = {}
        for direction, shape in dict.fromkeys(moves):
            if (direction, shape) not in self._parts:
                new.setdefault(direction, []).append(shape)
        for direction, shapes in new.items():
            by_part = self._with_rests(direction, self._sharing(direction, shapes))
            rows = zip(*(all_ms.tolist() for all_ms in by_part.values()), strict=True)
            for shape, row in zip(shapes, rows, strict=True):
                self._parts[direction, shape] = dict(zip(by_part, row, strict=True))

    def _sharing(self, direction: Direction, shapes: Sequence[Shape]) -> Mapping[str, Milliseconds]:
        """Milliseconds by part, shaped (shapes).

        Only tensors of one image were measured. Nets take others image by image; what is moved
        from one processor to the other may as well be one image with the channels of all.
        """
        joined = [shape._replace(n=1, c=shape.n * shape.c) for shape in shapes]
        by_part = self.predictors.sharing_ms(direction, joined)
        if joined == shapes or direction in ("to_gpu", "to_cpu"):
            return by_part
        images = np.array([shape.n for shape in shapes], np.float64)
        single = self.predictors.sharing_ms(direction, [shape._replace(n=1) for shape in shapes])
        return {part: images * single[part] for part in by_part}

    def _with_rests(
        self, direction: Direction, by_part: Mapping[str, Milliseconds]
    ) -> Mapping[str, Milliseconds]:
        """The same where kernels that transform or copy on the GPU keep its limits, too.

        Of a transfer that was measured as a whole nobody knows what its kernel took.
        """
        kernels = set(by_part) if direction == "relayout" else {"transform"} & set(by_part)
        if not self.limits or not kernels:
            return by_part
        launch_ms = self.inside("gpu").call_ms
        kept = {part: self.limits.kept_ms(by_part[part], launch_ms) for part in kernels}
        return {**by_part, **kept}

    def sharing_parts(self, direction: Direction, shape: Shape) -> Mapping[str, float]:
        """Milliseconds of a transfer's parts by name."""
        if (direction, shape) not in self._parts:
            self.prefetch_sharing([(direction, shape)])
        return self._parts[direction, shape]

    def transfer_parts(self, direction: Direction, shape: Shape) -> Mapping[str, float]:
        """The same inside an executable."""
        return self.signals.inside(self.sharing_parts(direction, shape))

    @cached_property
    def signals(self) -> SignalCosts:
        return SignalCosts.of(self.predictors, raises_flags=self.soc.gpu.raises_flags)

    def sharing_ms(self, direction: Direction, shape: Shape) -> float:
        return sum(self.sharing_parts(direction, shape).values())

    def relayout_ms(self, source: Storage, target: Storage, shape: Shape) -> float:
        """A copy on the GPU between two storages: 0 where it was not measured."""
        if source not in self.storages or target not in self.storages:
            return 0.0
        return self.sharing_ms("relayout", shape)

    @cached_property
    def storages(self) -> tuple[Storage, ...]:
        """The SoC's storages, where it is known what a copy from one to another costs."""
        storages = registry.storages(self.soc)
        is_known = sharing_target("relayout", storages[-1]) in self._known_targets
        return storages if is_known else ()

    # Both processors, and launches.

    def together_ms(self, moved: NDArray[np.float64], alone_ms: Milliseconds) -> Milliseconds:
        """What two shards take that are under way at the same time, beside each other.

        `moved` are bytes that they read and write, `alone_ms` what each takes otherwise; both
        shaped (pairs, 2), and so is what they take.
        """
        costs = np.array([self.inside(side).beside_ms for side in PROCESSORS])
        both = ((alone_ms > 0) & np.isfinite(alone_ms)).all(axis=1, keepdims=True)
        return np.asarray(alone_ms + both * costs * moved)

    def launches_ms(self, count: int) -> float:
        """What enqueueing some kernels takes the CPU, before it gets to its own shard."""
        if not count or "dispatch_gpu" not in self._known_targets:
            return self.stage_ms if count else 0.0
        dispatches = self._dispatches_ms(count + 1)
        return max(0.0, float(dispatches[count] - dispatches[0])) + self.stage_ms

    def packing_ms(self, move: Move) -> float:
        """What a library takes inside a network to pack or unpack a tensor."""
        way, shape = move
        costs = self.inside("cpu", library_of(way))
        measured = measured_way(way, self._known_targets, self.predictors.inside)
        alone_ms = self.sharing_ms(measured, shape) if measured else 0.0
        return costs.alone * alone_ms + costs.packed_ms * shape.bytes

    def packings_ms(self, way: Direction, shapes: Iterable[Shape]) -> Milliseconds:
        """The same of several tensors, shaped (shapes)."""
        shapes = list(shapes)
        measured = measured_way(way, self._known_targets, self.predictors.inside)
        if measured:
            self.prefetch_sharing((measured, shape) for shape in shapes)
        return np.array([self.packing_ms((way, shape)) for shape in shapes], np.float64)

    def turns(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        """How often a net runs for a number of images, on all threads of the CPU at once.

        What batches were measured to take is of one call.
        """
        if "batch_cpu" in self._known_targets:
            return np.ones_like(images)
        return np.maximum(1.0, images / self.soc.cpu.threads)

    def _dispatches_ms(self, most: int) -> Milliseconds:
        """Of 1, 2, ... launches, `most` at least: all at once, as a search asks for them all."""
        if len(self._dispatched) < most:
            items = [Launches(count) for count in range(1, 2 * most + MANY_LAUNCHES)]
            self._dispatched = self.predictors.latency_ms("dispatch_gpu", items)
        return self._dispatched
