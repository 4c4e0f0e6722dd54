"""All totals of a waterfall that need no run, from the lossless bound to the predicted latency.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import fsum, inf
from typing import TypeAlias

from codl.ir import Dim, Layer, Network, Op
from codl.ir.executable import Executable
from codl.ir.ops.base import AXES, cut_step, cuts
from codl.ir.plan import Plan
from codl.ir.region import Region, Span
from codl.ir.types import PROCESSORS
from codl.lower.partition import Part, Segment, Shard, cut, partition_plan
from codl.plan.candidates import STEPS
from codl.plan.cost_model import CostModel
from codl.plan.coverage import without
from codl.plan.price import START, Price, StageTimes, stage_times, walk
from codl.records.waterfall import BOUND, Total

#: What the CPU and the GPU compute of an op; None of nothing.
Parts: TypeAlias = tuple[Op | None, Op | None]
#: A dimension, and how many rows, channels or images are the GPU's.
Cut: TypeAlias = tuple[Dim, int]


#: By which an op that cannot be cut is one processor's or the other's.
WHOLE: tuple[Dim, ...] = ("H",)


def computing_totals(network: Network, plan: Plan, cost: CostModel) -> list[Total]:
    """The totals of the bound, and of cuts, steps, chains, choices and halo.

    The last entry of each is of the results on their way to the CPU, which is no computing: 0.
    Raises `MismatchError` where the plan is for another model or SoC.
    """
    own = _Computing(network, plan, cost)
    segments = partition_plan(network, plan, cost.soc).segments
    layers = [layers for _, layers in plan.layers(network)]
    by_name = {
        BOUND: own.bound_ms,
        "cuts": own.cuts_ms,
        "steps": own.steps_ms,
        "chains": own.chains_ms,
        "choices": own.choices_ms,
        "halo": own.halo_ms,
    }
    return [Total(name, (*map(of, segments, layers), 0.0)) for name, of in by_name.items()]


def side_by_side_ms(network: Network, cost: CostModel) -> float:
    """Both processors side by side without loss, each op cut at the same ratio.

    1 / (1 / CPU + 1 / GPU) of what either takes for the ops that both can do; the others add what
    they take on the one that can.
    """
    alone = [cost.fastest_ms((x.op.whole for x in network.layers), side) for side in PROCESSORS]
    pairs = list(zip(*alone, strict=True))
    both = [fsum(ms) for ms in zip(*(pair for pair in pairs if max(pair) < inf), strict=True)]
    return fsum(min(pair) for pair in pairs if max(pair) == inf) + (lossless(*both) if both else 0)


def lossless(cpu_ms: float, gpu_ms: float) -> float:
    """What both take together for what either takes so long for: 1 / (1 / CPU + 1 / GPU)."""
    return 1 / (1 / cpu_ms + 1 / gpu_ms) if cpu_ms and gpu_ms else 0.0


@dataclass(frozen=True)
class _Computing:
    """Milliseconds of a plan's segments, by one cost model."""

    network: Network
    plan: Plan
    cost: CostModel

    def bound_ms(self, segment: Segment, layers: Sequence[Layer]) -> float:
        """Every op by both processors without loss."""
        ops = [layer.op.whole for layer in layers]
        alone = (self.cost.fastest_ms(ops, side) for side in PROCESSORS)
        return fsum(lossless(*pair) for pair in zip(*alone, strict=True))

    def cuts_ms(self, segment: Segment, layers: Sequence[Layer]) -> float:
        """Every op by itself, at its best cut."""
        return fsum(self._best_cuts[layer.op.whole] for layer in layers)

    def steps_ms(self, segment: Segment, layers: Sequence[Layer]) -> float:
        """Every op by itself, at the best of the ratios that are tried."""
        return fsum(self._best_steps[layer.op.whole] for layer in layers)

    def chains_ms(self, segment: Segment, layers: Sequence[Layer]) -> float:
        """The chain at its best cut, if both processors compute it.

        A single op is not bound to another, nor are those of one processor alone.
        """
        chain = segment.chain
        if len(layers) == 1 or chain.gpu_ratio in (0.0, 1.0):
            return self.steps_ms(segment, layers)
        tried = [(dim, ratio) for dim in _dims(layers) for ratio in self._ratios]
        options = [
            self._disjoint(layers, segment.outputs, dim, ratio)
            for dim, ratio in dict.fromkeys([*tried, (chain.dim, chain.gpu_ratio)])
        ]
        fastest = self._fastest([parts for option in options for parts in option])
        return min(_slower(option, fastest) for option in options)

    def choices_ms(self, segment: Segment, layers: Sequence[Layer]) -> float:
        """The chain as it is planned, if nothing were computed twice."""
        chain = segment.chain
        parts = self._disjoint(layers, segment.outputs, chain.dim, chain.gpu_ratio)
        return self._planned_ms(segment, parts)

    def halo_ms(self, segment: Segment, layers: Sequence[Layer]) -> float:
        """The chain as it is planned."""
        pairs = _pairs(layers, segment.cpu, segment.gpu)
        return self._planned_ms(segment, [_ops(*pair) for pair in pairs])

    @cached_property
    def _ratios(self) -> list[float]:
        """Those that a search tries, whole images, and the plan's own."""
        steps = {STEPS, *(layer.op.images for layer in self.network.layers)}
        tried = {step / count for count in steps for step in range(count + 1)}
        return sorted(tried | {chain.gpu_ratio for chain in self.plan.chains})

    @cached_property
    def _best_steps(self) -> Mapping[Op, float]:
        """Milliseconds of every op by itself at the best ratio, or on one processor."""
        return {op: min(own.values()) for op, own in self._at_steps.items()}

    @cached_property
    def _best_cuts(self) -> Mapping[Op, float]:
        """The same at the best cut: anywhere between the ratios next to the best one."""
        finer = {
            op: [cut for dim in op.dims for cut in self._around(op, dim, own)]
            for op, own in self._at_steps.items()
        }
        return {
            op: min([self._best_steps[op], *own.values()])
            for op, own in self._cuts_ms(finer).items()
        }

    @cached_property
    def _at_steps(self) -> Mapping[Op, Mapping[Cut, float]]:
        """Milliseconds of every op by itself at all ratios that are tried."""
        block = self.cost.soc.gpu.vector_width
        return self._cuts_ms(
            {
                op: [
                    (dim, place)
                    for dim in op.dims or WHOLE
                    for place in cuts(op, dim, self._ratios if op.dims else (0, 1), align=block)
                ]
                for op in dict.fromkeys(layer.op.whole for layer in self.network.layers)
            }
        )

    def _around(self, op: Op, dim: Dim, known: Mapping[Cut, float]) -> list[Cut]:
        """The cuts of a dimension between the neighbours of the best one that is known."""
        places = sorted(place for own, place in known if own == dim)
        best = places.index(min(places, key=lambda place: known[dim, place]))
        first, last = places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)]
        block = self.cost.soc.gpu.vector_width
        step = cut_step(op, dim, block)
        return [(dim, place) for place in range(first + step, last, step)]

    def _cuts_ms(self, asked: Mapping[Op, Sequence[Cut]]) -> dict[Op, dict[Cut, float]]:
        """Milliseconds of ops by themselves at some cuts."""
        parts = {op: {cut: _cut_at(op, *cut) for cut in own} for op, own in asked.items()}
        fastest = self._fastest([pair for own in parts.values() for pair in own.values()])
        return {
            op: {cut: _slower([pair], fastest) for cut, pair in own.items()}
            for op, own in parts.items()
        }

    def _disjoint(
        self, layers: Sequence[Layer], outputs: Sequence[str], dim: Dim, ratio: float
    ) -> list[Parts]:
        """A chain's parts of its layers at a cut, if nothing were computed twice."""
        shards = cut(layers, outputs, dim, ratio, block=self.cost.soc.gpu.vector_width)
        return [disjoint(*pair, dim, ratio) for pair in _pairs(layers, *shards)]

    def _fastest(self, parts: Sequence[Parts]) -> tuple[Mapping[Op, float], Mapping[Op, float]]:
        """Milliseconds of all parts in their fastest variants on either processor."""
        known = []
        for side, processor in enumerate(PROCESSORS):
            ops = list(dict.fromkeys(op for pair in parts if (op := pair[side]) is not None))
            known.append(dict(zip(ops, self.cost.fastest_ms(ops, processor), strict=True)))
        return known[0], known[1]

    def _planned_ms(self, segment: Segment, parts: Sequence[Parts]) -> float:
        """The slower processor's milliseconds, in the plan's variants."""
        sides = []
        for side, processor in enumerate(PROCESSORS):
            self.cost.prefetch([op for pair in parts if (op := pair[side])], processor)
            named = zip(segment.chain.ops, parts, strict=True)
            variants = segment.chain.variants
            own = ((op, variants.get(name, {})) for name, pair in named if (op := pair[side]))
            sides.append(
                fsum(self.cost.variant_ms(op, processor, v.get(processor, "")) for op, v in own)
            )
        return max(sides)


def disjoint(cpu: Part | None, gpu: Part | None, dim: Dim, gpu_ratio: float) -> Parts:
    """What both compute of a layer if what is in both parts were cut at the chain's ratio.

    A layer that has no such dimension stays as it is on both.
    """
    if cpu is None or gpu is None or dim not in cpu.layer.op.dims:
        return _ops(cpu, gpu)
    if cpu.region.meet(gpu.region).is_empty:
        return cpu.op, gpu.op
    axis, op = AXES[dim], cpu.layer.op
    spans: list[Span] = [getattr(part.region, axis) for part in (cpu, gpu)]
    first, last = max(span.start for span in spans), min(span.stop for span in spans)
    step = op.channel_step if dim == "OC" else 1
    place = first + round(gpu_ratio * (last - first) / step) * step
    every = spans[0].join(spans[1])
    ends = Span(place, every.stop), Span(every.start, place)
    regions = (
        part.region._replace(**{axis: span}) for part, span in zip((cpu, gpu), ends, strict=True)
    )
    one, other = (_restricted(op, region) for region in regions)
    return one, other


def _cut_at(op: Op, dim: Dim, place: int) -> Parts:
    """An op's parts where the GPU gets so much of a dimension."""
    whole, axis = Region.whole(op.output), AXES[dim]
    size = getattr(whole, axis).size
    spans = Span(place, size), Span(0, place)
    cpu, gpu = (_restricted(op, whole._replace(**{axis: span})) for span in spans)
    return cpu, gpu


def _restricted(op: Op, region: Region) -> Op | None:
    if region.is_empty:
        return None
    return op if region == Region.whole(op.output) else op.restrict(region)


def _ops(cpu: Part | None, gpu: Part | None) -> Parts:
    return (cpu.op if cpu else None), (gpu.op if gpu else None)


def _pairs(
    layers: Iterable[Layer], cpu: Shard, gpu: Shard
) -> list[tuple[Part | None, Part | None]]:
    """Both shards' parts of every layer."""
    by_name = [{part.layer.name: part for part in shard.parts} for shard in (cpu, gpu)]
    return [(by_name[0].get(x.name), by_name[1].get(x.name)) for x in layers]


def _slower(parts: Sequence[Parts], known: tuple[Mapping[Op, float], Mapping[Op, float]]) -> float:
    """The slower processor's milliseconds of some parts."""
    return max(
        fsum(known[side][op] for pair in parts if (op := pair[side]) is not None) for side in (0, 1)
    )


def _dims(layers: Sequence[Layer]) -> list[Dim]:
    """The dimensions at which a chain of these can be cut with nothing computed whole by both."""
    dims = [dim for dim in AXES if all(dim in layer.op.dims for layer in layers)]
    mixes = any(not layer.op.carries_channels for layer in layers[1:])
    return [dim for dim in dims if dim != "OC" or not mixes]


def predicted_totals(
    network: Network, plan: Plan, executable: Executable, cost: CostModel
) -> list[Total]:
    """The totals of computing, and those of the executable that the plan was lowered to.

    Of the latter all but the first two are walks over its commands, with one term of the cost model
    after the other; the last one is its price. Raises as `computing_totals` does.
    """
    chains = ChainTotals(plan, executable)
    fused = stage_times(executable, without(cost, "packing", "relayouts", "contention"))
    launched = stage_times(executable, without(cost, "contention"))
    shared = [_at_once(own) for own in launched]
    laid = [_for_nothing(own) for own in shared]
    return [
        *computing_totals(network, plan, cost),
        chains.in_turn("fusion", fused),
        chains.in_turn("layouts", laid),
        chains.walked("overlap", walk(executable, laid)),
        chains.walked("sharing", walk(executable, shared)),
        chains.walked("launches", walk(executable, launched)),
        chains.walked("contention", walk(executable, stage_times(executable, cost))),
    ]


def _at_once(times: StageTimes) -> StageTimes:
    """If launches took no time, neither the CPU's nor on their way to the GPU."""
    return replace(times, launches_ms=START, first_launch_ms=0.0)


def _for_nothing(times: StageTimes) -> StageTimes:
    """If what one processor has made were there for the other at once."""
    return replace(times, transfers_ms={number: {} for number in times.transfers_ms})


class ChainTotals:
    """Totals of an executable's stages, by the chains of its plan.

    The last entry is of the stage in which the CPU gets the results.
    """

    def __init__(self, plan: Plan, executable: Executable) -> None:
        self._count = len(plan.chains) + 1
        self._stages = _chain_numbers(plan, executable)

    def in_turn(self, name: str, times: Sequence[StageTimes]) -> Total:
        """If no stage began before both processors were done with the one before."""
        return self.total(name, [max(own.works_ms) for own in times])

    def walked(self, name: str, price: Price) -> Total:
        """From the end of one stage to the end of the next, whichever processor is later."""
        return self.ending(name, [max(stage.ends_ms) for stage in price.stages])

    def ending(self, name: str, ends_ms: Sequence[float]) -> Total:
        """Of stages that end at such times since the start."""
        return self.total(name, [end - before for before, end in pairwise([0.0, *ends_ms])])

    def total(self, name: str, stages_ms: Sequence[float]) -> Total:
        """Of stages that take so long; a chain without a stage does nothing."""
        chains_ms = [0.0] * self._count
        for chain, ms in zip(self._stages, stages_ms, strict=True):
            chains_ms[chain] += ms
        return Total(name, tuple(chains_ms))


def _chain_numbers(plan: Plan, executable: Executable) -> list[int]:
    """The number of every stage's chain, by their labels: chains that do nothing have no stage."""
    labels = [chain.label for chain in plan.chains]
    numbers, first = [], 0
    for stage in executable.stages:
        found = labels[first:].index(stage.label) if stage.label in labels[first:] else None
        numbers.append(len(labels) if found is None else first + found)
        first = min(numbers[-1] + 1, len(labels))
    return numbers
