"""Predicted totals of a latency waterfall, from the lossless bound to the predicted latency.

By the names of the terms that end with them. Of the first six each is a sum over chains of what
the slower processor computes, in ops of which nobody waits for another:

- `bound`: every op on both processors without loss, 1 / (1 / CPU + 1 / GPU);
- `cuts`: every op by itself at its best cut, whichever processor is slower;
- `steps`: at the best of the ratios that a search tries;
- `chains`: every chain at the best cut for all of its ops, with nothing computed twice;
- `choices`: every chain at the plan's cut, in the plan's kernel variants;
- `halo`: with what both processors compute;
- `fusion`: of the executable's stages in turn, with what running ops together saves;
- `layouts`: with packing, and copies between storages;
- `overlap`: a walk over the executable's commands, in which nobody waits for the end of a stage;
- `sharing`: the walk with data sharing;
- `launches`: the walk with launches;
- `contention`: the walk with what processors slow each other down, which is the price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import fsum, inf
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from codl.ir import Dim, Layer, Network, Op
from codl.ir.executable import Executable
from codl.ir.ops.base import AXES, cut_step
from codl.ir.plan import Plan
from codl.ir.region import Region, Span
from codl.ir.types import PROCESSORS
from codl.lower.partition import Segment, Shard, cut, partition_plan
from codl.plan.candidates import STEPS
from codl.plan.cost_model import CostModel, Pair
from codl.plan.coverage import without
from codl.plan.price import Price, StageTimes, stage_times, walk
from codl.plan.region_array import NONE, Numbers
from codl.plan.sub_ops import DIMS, SubOps
from codl.records.waterfall import BOUND, Total

#: The totals of computing, in order.
COMPUTING = (BOUND, "cuts", "steps", "chains", "choices", "halo")
NOWHERE = Region(Span(0, 0), Span(0, 0), Span(0, 0))
#: What the CPU and the GPU compute of an op; None of nothing.
Parts: TypeAlias = tuple[Op | None, Op | None]


def side_by_side_ms(network: Network, cost: CostModel) -> float:
    """Both processors side by side without loss, each op cut at the same ratio.

    1 / (1 / CPU + 1 / GPU) of what either takes for the ops that both can do; the others add what
    they take on the one that can.
    """
    alone = [cost.fastest_ms((x.op for x in network.layers), side) for side in PROCESSORS]
    pairs = list(zip(*alone, strict=True))
    both = [fsum(ms) for ms in zip(*(pair for pair in pairs if max(pair) < inf), strict=True)]
    return fsum(min(pair) for pair in pairs if max(pair) == inf) + (lossless(*both) if both else 0)


def lossless(cpu_ms: float, gpu_ms: float) -> float:
    """What both take together for what either takes so long for: 1 / (1 / CPU + 1 / GPU)."""
    return 1 / (1 / cpu_ms + 1 / gpu_ms) if cpu_ms and gpu_ms else 0.0


def predicted_totals(
    network: Network, plan: Plan, executable: Executable, cost: CostModel
) -> list[Total]:
    """The totals of computing, and those of the executable that the plan was lowered to.

    Of the latter all but the first two are walks over its stages, with one term of the cost model
    after the other; the last one is its price. Raises `MismatchError` where the plan is for another
    model or SoC.
    """
    chains = ChainTotals(plan, executable)
    fused = stage_times(executable, without(cost, "packing", "relayouts", "contention"))
    launched = stage_times(executable, without(cost, "contention"))
    shared = [replace(stage, launches_ms=0.0, first_launch_ms=0.0) for stage in launched]
    laid = [replace(stage, transfers_ms={at: {} for at in stage.transfers_ms}) for stage in shared]
    return [
        *_computing_totals(network, plan, cost),
        chains.in_turn("fusion", fused),
        chains.in_turn("layouts", laid),
        chains.walked("overlap", walk(executable, laid)),
        chains.walked("sharing", walk(executable, shared)),
        chains.walked("launches", walk(executable, launched)),
        chains.walked("contention", walk(executable, stage_times(executable, cost))),
    ]


class ChainTotals:
    """Totals of an executable's stages, by the chains of its plan.

    The last entry is of the stage in which the CPU gets the results.
    """

    def __init__(self, plan: Plan, executable: Executable) -> None:
        self._count = len(plan.chains) + 1
        #: The number of every stage's chain, by their labels: chains that do nothing have no stage.
        self._chains: list[int] = []
        labels, first = [chain.label for chain in plan.chains], 0
        for stage in executable.stages:
            is_chain = stage.label in labels[first:]
            self._chains.append(labels.index(stage.label, first) if is_chain else len(labels))
            first = min(self._chains[-1] + 1, len(labels))

    def in_turn(self, name: str, times: Sequence[StageTimes]) -> Total:
        """If no stage began before both processors were done with the one before."""
        return self.total(name, [max(stage.works_ms) for stage in times])

    def walked(self, name: str, price: Price) -> Total:
        """From the end of one stage to the end of the next, whichever processor is later."""
        ends_ms = [0.0, *map(max, price.ends_ms)]
        return self.total(name, [end - before for before, end in pairwise(ends_ms)])

    def total(self, name: str, stages_ms: Sequence[float]) -> Total:
        """Of stages that take so long; a chain without a stage does nothing."""
        chains_ms = [0.0] * self._count
        for chain, ms in zip(self._chains, stages_ms, strict=True):
            chains_ms[chain] += ms
        return Total(name, tuple(chains_ms))


# Computing.


def _computing_totals(network: Network, plan: Plan, cost: CostModel) -> list[Total]:
    """The totals of the bound, and of cuts, steps, chains, choices and halo.

    The last entry of each is of the results on their way to the CPU, which is no computing: 0.
    """
    ratios = tried_ratios(network, plan)
    ops = [layer.op for layer in network.layers]
    at_steps, at_cuts, _ = best_cuts(ops, cost, ratios)
    alone = zip(*(cost.fastest_ms(ops, side) for side in PROCESSORS), strict=True)
    bounds = dict(zip(ops, (lossless(*pair) for pair in alone), strict=True))
    totals: dict[str, list[float]] = {name: [] for name in COMPUTING}
    segments = partition_plan(network, plan, cost.soc).segments
    for segment, (chain, layers) in zip(segments, plan.layers(network), strict=True):
        costs = _Chain(segment, layers, cost)
        for name, by_op in ((BOUND, bounds), ("cuts", at_cuts), ("steps", at_steps)):
            totals[name].append(fsum(by_op[layer.op] for layer in layers))
        # A single op is not bound to another, nor are those of one processor alone.
        is_bound = len(layers) > 1 and 0 < chain.gpu_ratio < 1
        totals["chains"].append(costs.best_ms(ratios) if is_bound else totals["steps"][-1])
        totals["choices"].append(costs.planned_ms(costs.disjoint(chain.dim, chain.gpu_ratio)))
        totals["halo"].append(costs.planned_ms(costs.parts(segment.cpu, segment.gpu)))
    return [Total(name, (*chains_ms, 0.0)) for name, chains_ms in totals.items()]


def tried_ratios(network: Network, plan: Plan) -> list[float]:
    """The ratios that a search tries, and the plan's own."""
    steps = {STEPS, *(layer.op.images for layer in network.layers)}
    tried = {step / count for count in steps for step in range(count + 1)}
    return sorted(tried | {chain.gpu_ratio for chain in plan.chains})


class OpCut(NamedTuple):
    """An op in two parts, and what each takes: the CPU's, and the GPU's."""

    dim: Dim
    gpu_ratio: float
    parts: tuple[Op, Op]
    parts_ms: Pair


class BestCuts(NamedTuple):
    """Every op by itself: milliseconds at the best of some ratios and at the best cut of all.

    One processor alone counts as a cut in both. `split` has the best cut into two parts, for ops
    that have one.
    """

    at_steps: Mapping[Op, float]
    at_any: Mapping[Op, float]
    split: Mapping[Op, OpCut]


def best_cuts(ops: Sequence[Op], cost: CostModel, ratios: Sequence[float]) -> BestCuts:
    """The best cuts at some ratios, and between those next to the best one of a dimension."""
    sub_ops, block = SubOps(ops, cost, ratios), cost.soc.gpu.vector_width

    def parts_ms(parts: Numbers) -> NDArray[np.float64]:
        return np.stack([sub_ops.fastest_ms(parts[:, side], side) for side in (0, 1)], axis=1)

    at_ratios = [sub_ops.of(op, sub_ops.shares(op)) for op in range(len(sub_ops.ops))]
    parts_ms(np.concatenate(at_ratios))  # predicted at once
    at_steps = [parts_ms(parts).max(axis=1) for parts in at_ratios]
    between: list[Numbers] = []
    places_of: list[list[tuple[Dim, int]]] = []
    for number, (op, ms) in enumerate(zip(sub_ops.ops, at_steps, strict=True)):
        finer = [at_ratios[number]]
        places_of.append([(dim, place) for dim in DIMS for place in sub_ops.cuts(number, dim)])
        for dim, own_ms in zip(DIMS, ms.reshape(len(DIMS), -1), strict=True):
            if dim in op.dims:
                places, first = np.unique(sub_ops.cuts(number, dim), return_index=True)
                best, step = int(own_ms[first].argmin()), cut_step(op, dim, block)
                ends = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
                inner = range(int(ends[0]) + step, int(ends[1]), step)
                finer.append(sub_ops.of(number, sub_ops.halves(number, dim, inner)))
                places_of[-1] += [(dim, place) for place in inner]
        between.append(np.concatenate(finer))
    parts_ms(np.concatenate(between))
    at_any: dict[Op, float] = {}
    split: dict[Op, OpCut] = {}
    for op, numbers, cuts in zip(sub_ops.ops, between, places_of, strict=True):
        works_ms = parts_ms(numbers)
        slower_ms = works_ms.max(axis=1)
        at_any[op] = float(slower_ms.min())
        is_split = (numbers != NONE).all(axis=1) & [dim in op.dims for dim, _ in cuts]
        slower_ms[~is_split] = inf
        best = int(slower_ms.argmin())
        if slower_ms[best] < inf:
            dim, place = cuts[best]
            cpu, gpu = (sub_ops.op(number) for number in numbers[best].tolist())
            size = getattr(Region.whole(op.output), AXES[dim]).size
            split[op] = OpCut(dim, place / size, (cpu, gpu), tuple(works_ms[best].tolist()))
    steps_ms = (float(ms.min()) for ms in at_steps)
    return BestCuts(dict(zip(sub_ops.ops, steps_ms, strict=True)), at_any, split)


class _Chain(NamedTuple):
    """A chain of a plan, whose parts of layers take what one cost model says."""

    segment: Segment
    layers: Sequence[Layer]
    cost: CostModel

    def parts(self, cpu: Shard, gpu: Shard) -> list[Parts]:
        """What both shards compute of every layer."""
        named = [{part.layer.name: part.op for part in shard.parts} for shard in (cpu, gpu)]
        return [(named[0].get(x.name), named[1].get(x.name)) for x in self.layers]

    def disjoint(self, dim: Dim, gpu_ratio: float) -> list[Parts]:
        """The same at a cut, if nothing were computed twice: each part that both have is cut again.

        A layer that has no such dimension stays as it is on both.
        """
        block = self.cost.soc.gpu.vector_width
        shards = cut(self.layers, self.segment.outputs, dim, gpu_ratio, block=block)
        parts = self.parts(*shards)
        for at, layer in enumerate(self.layers):
            cpu, gpu = (shard.outputs.get(layer.output, NOWHERE) for shard in shards)
            if dim in layer.op.dims and not cpu.meet(gpu).is_empty:
                parts[at] = _cut_again(layer.op, cpu, gpu, dim, gpu_ratio)
        return parts

    def best_ms(self, ratios: Sequence[float]) -> float:
        """At the best cut, if nothing were computed twice."""
        chain = self.segment.chain
        cuts = dict.fromkeys((dim, ratio) for dim in _dims(self.layers) for ratio in ratios)
        options = [self.disjoint(*cut) for cut in cuts | {(chain.dim, chain.gpu_ratio): None}]
        for side, processor in enumerate(PROCESSORS):
            ops = (pair[side] for parts in options for pair in parts)
            self.cost.prefetch((op for op in ops if op is not None), processor)
        return min(self._slower_ms(parts, {}) for parts in options)

    def planned_ms(self, parts: Sequence[Parts]) -> float:
        """In the plan's variants."""
        return self._slower_ms(parts, self.segment.chain.variants)

    def _slower_ms(
        self, parts: Sequence[Parts], variants: Mapping[str, Mapping[str, str]]
    ) -> float:
        """The slower processor's milliseconds: in some variants, and elsewhere in the fastest."""
        return max(
            fsum(
                self.cost.variant_ms(op, side, variants.get(layer.name, {}).get(side, ""))
                for layer, pair in zip(self.layers, parts, strict=True)
                if (op := pair[PROCESSORS.index(side)]) is not None
            )
            for side in PROCESSORS
        )


def _cut_again(op: Op, cpu: Region, gpu: Region, dim: Dim, gpu_ratio: float) -> Parts:
    """What both compute of a layer if what is in both their parts were cut at a ratio."""
    axis = AXES[dim]
    spans: list[Span] = [getattr(region, axis) for region in (cpu, gpu)]
    first, last = max(span.start for span in spans), min(span.stop for span in spans)
    step = op.channel_step if dim == "OC" else 1
    place = first + round(gpu_ratio * (last - first) / step) * step
    every = spans[0].join(spans[1])
    ends = Span(place, every.stop), Span(every.start, place)
    cut = [region._replace(**{axis: span}) for region, span in zip((cpu, gpu), ends, strict=True)]
    parts = [None if region.is_empty else op.restrict(region) for region in cut]
    return parts[0], parts[1]


def _dims(layers: Sequence[Layer]) -> list[Dim]:
    """The dimensions at which a chain of these can be cut with nothing computed whole by both."""
    dims = [dim for dim in AXES if all(dim in layer.op.dims for layer in layers)]
    mixes = any(not layer.op.carries_channels for layer in layers[1:])
    return [dim for dim in dims if dim != "OC" or not mixes]


# Ops that a plan leaves whole.


def left_whole(network: Network, plan: Plan, cost: CostModel) -> list[WholeOp]:
    """Every op that the plan leaves whole, the one that saves most first.

    `cost` covers the network. Every part counts in the variant that is predicted fastest.
    """
    whole = [
        (layer, PROCESSORS[int(chain.gpu_ratio)])
        for chain, layers in plan.layers(network)
        for layer in layers
        if chain.gpu_ratio in (0, 1)
    ]
    if not whole:
        return []
    ops = [layer.op for layer, _ in whole]
    cuts = best_cuts(ops, cost, tried_ratios(network, plan)).split
    of_cuts = (cut.gpu_ratio for cut in cuts.values())
    ratios = sorted({0.0, 1.0, *(chain.gpu_ratio for chain in plan.chains), *of_cuts})
    make = partial(
        make_plan,
        network,
        cost,
        strategy=plan.strategy,
        sharing=plan.sharing,
        costs=ChainCosts(network, cost, ratios),
    )
    now = make(plan.chains)
    now_ms, shared_ms = now.predicted_ms or 0.0, _shared_ms(network, now, cost)
    rows = []
    for layer, processor in whole:
        cut = cuts.get(layer.op)
        row = _computing(layer, processor, cut, cost)
        if cut is not None:
            split = make([*_with_split(plan.chains, layer, cut)])
            row = replace(
                row,
                sharing_ms=_shared_ms(network, split, cost) - shared_ms,
                net_ms=(split.predicted_ms or 0.0) - now_ms,
            )
        rows.append(row)
    return sorted(rows, key=lambda row: -row.saves_ms)


def _with_split(chains: Sequence[Chain], layer: Layer, cut: OpCut) -> Iterator[Chain]:
    """The chains with one layer in two parts, and what is before and behind it in its chain."""
    for chain in chains:
        if layer.name not in chain.ops:
            yield chain
            continue
        at = chain.ops.index(layer.name)
        before, behind = (replace(chain, ops=ops) for ops in (chain.ops[:at], chain.ops[at + 1 :]))
        yield from (before,) if before.ops else ()
        yield chain_of([layer], cut.dim, cut.gpu_ratio)
        yield from (behind,) if behind.ops else ()


def _shared_ms(network: Network, plan: Plan, cost: CostModel) -> float:
    """What all transfers of a plan take."""
    return fsum(
        ms
        for moves in partition_plan(network, plan, cost.soc).exchanges
        for move in moves
        for ms in cost.transfer_parts(
            move.direction, move.region.shape(network.shapes[move.tensor])
        ).values()
    )


def _computing(layer: Layer, processor: Processor, cut: OpCut | None, cost: CostModel) -> WholeOp:
    """What an op takes whole on a processor, and in two parts."""
    alone_ms = [cost.fastest_ms([layer.op], side)[0] for side in PROCESSORS]
    whole_ms = alone_ms[PROCESSORS.index(processor)]
    if cut is None:
        return WholeOp(op=layer.name, processor=processor, whole_ms=whole_ms, best_ms=whole_ms)
    best_ms = max(cut.parts_ms)
    variants_ms = _variants_ms(layer, cut, cost)
    return WholeOp(
        op=layer.name,
        processor=processor,
        whole_ms=whole_ms,
        best_ms=best_ms,
        dim=cut.dim,
        gpu_ratio=cut.gpu_ratio,
        saves_ms=whole_ms - best_ms,
        cuts_ms=best_ms - lossless(*alone_ms) - variants_ms,
        variants_ms=variants_ms,
    )


def _variants_ms(layer: Layer, cut: OpCut, cost: CostModel) -> float:
    """What the slower part takes more since the fastest variant of the whole is not one of its own.

    That is its share of what the whole op takes in the fastest of the part's variants, and less its
    share of what that takes in the fastest of all.
    """
    side = cut.parts_ms.index(max(cut.parts_ms))
    processor: Processor = PROCESSORS[side]
    of_whole, of_part = cost.prefetch([layer.op, cut.parts[side]], processor)
    common = [known.latency_ms for name, known in of_whole.items() if name in of_part]
    if not common:
        return 0.0
    share = cut.gpu_ratio if processor == "gpu" else 1 - cut.gpu_ratio
    return share * (min(common) - min(known.latency_ms for known in of_whole.values()))
